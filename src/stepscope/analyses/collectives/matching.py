"""Which entries of the ranks' collective records are the same collective, and when each rank arrived at it on one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.clock_offsets import Track, centre
from stepscope.analyses.collectives.clocks import Clocks, offset_between
from stepscope.analyses.collectives.ids import CollectiveIds, numbered
from stepscope.analyses.collectives.keys import CollectiveKeys
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.trace import NONE, Bool, Int64

_TRIES = 4
_MOST_NAMED = 8


def match(rank_records: Sequence[CollectiveRecords]) -> Matched:
    """Match the ranks' collectives by group and sequence, else by order and time, and align the clocks on their ends."""
    rank_records = sorted(rank_records, key=lambda one: one.rank)
    words = CollectiveKeys(rank_records)
    tracks = [words.track(one, _base(one, rank_records[0])) for one in rank_records]
    clocks = _clocks(tracks)
    made = numbered(tracks, clocks, words.members)
    return _assembled(rank_records, made, words, _settled(made))


def _base(collective_records: CollectiveRecords, reference: CollectiveRecords) -> int:
    """What to add to a rank's times so that they count from where the reference's do."""
    return collective_records.base_ns - reference.base_ns if collective_records.base_ns and reference.base_ns else 0


def _clocks(tracks: Sequence[Track]) -> Clocks:
    """The clocks of all ranks. Each set of ranks that collectives tie together starts at its lowest rank."""
    clocks = Clocks.apart(len(tracks))
    counts = [dict(zip(*(x.tolist() for x in np.unique(t.lane, return_counts=True)), strict=True)) for t in tracks]
    # Per lane, the ranks still to be tied: each is looked at by few others, however large the group.
    waiting: dict[int, set[int]] = defaultdict(set)
    for i, count in enumerate(counts):
        for lane in count:
            waiting[lane].add(i)
    tries = np.zeros(len(tracks), np.int64)

    def leave(one: int) -> None:
        for lane in counts[one]:
            waiting[lane].discard(one)

    for start in range(len(tracks)):
        if start in clocks.partner:
            continue
        clocks.begin(start)
        leave(start)
        queue = [start]
        for a in queue:
            weight: dict[int, int] = defaultdict(int)
            for lane, have in counts[a].items():
                for b in waiting[lane]:
                    weight[b] += min(have, counts[b][lane])
            for b in sorted(weight, key=lambda one: (-weight[one], one)):
                tries[b] += 1
                found = offset_between(tracks[a], tracks[b])
                if found is not None and clocks.tie(b, a, found):
                    queue.append(b)
                    leave(b)
                elif tries[b] >= _TRIES:
                    leave(b)
    return clocks


def _settled(made: CollectiveIds) -> Int64:
    """Offsets from all that was matched, along the way they were found."""
    tracks, ids, base = made.tracks, made.ids, made.base
    settled: Int64 = made.clocks.offset_ns.copy()
    for i, other in made.clocks.partner.items():
        if i == other:
            continue
        mine, theirs = ids[base[i] : base[i + 1]], ids[base[other] : base[other + 1]]
        _, at, there = np.intersect1d(np.where(mine == NONE, -2, mine), theirs, return_indices=True)
        firm = tracks[i].firm[at] == 1
        if firm.any():
            at, there = at[firm], there[firm]
        if len(at):
            settled[i] = settled[other] + centre(tracks[other].end_ns[there] - tracks[i].end_ns[at])
    return settled


def _medians(number: Int64, values: Int64) -> Int64:
    """Per number, the median of its values; 0 for numbers without any."""
    order = np.lexsort((values, number))
    count = np.bincount(number)
    first = np.cumsum(count) - count
    values = values[order]
    some = count > 0
    result = np.zeros(len(count), np.int64)
    low, high = values[(first + (count - 1) // 2)[some]], values[(first + count // 2)[some]]
    result[some] = low + (high - low) // 2
    return result


def _assembled(rank_records: Sequence[CollectiveRecords], made: CollectiveIds, words: CollectiveKeys, offsets: Int64) -> Matched:
    num = int(made.ids.max()) + 1 if len(made.ids) else 0
    of: dict[int, Int64] = {}
    arrival: dict[int, Int64] = {}
    took, needed = np.zeros(num, np.int64), np.zeros(num, np.int64)
    last = np.full(num, np.iinfo(np.int64).min, np.int64)
    ends = []
    sizes = np.array([len(members) for members in words.members] or [0], np.int64)
    for i, (collective_records, track) in enumerate(zip(rank_records, made.tracks, strict=True)):
        mine = made.ids[made.base[i] : made.base[i + 1]]
        of[collective_records.rank], arrival[collective_records.rank] = np.empty_like(mine), np.empty_like(mine)
        of[collective_records.rank][track.entry] = mine
        arrival[collective_records.rank][track.entry] = track.start_ns + offsets[i]
        found = np.flatnonzero(mine != NONE)
        np.maximum.at(last, mine[found], track.start_ns[found] + offsets[i])
        np.add.at(took, mine[found], 1)
        needed[mine[found]] = np.where(track.side[found] != 0, 2, sizes[track.lane[found]])
        ends.append(np.stack((mine[found], track.end_ns[found] + offsets[i])))
    complete: Bool = took >= needed
    unaligned = tuple(
        collective_records.rank
        for collective_records, one in zip(rank_records, made.clocks.root.tolist(), strict=True)
        if one != 0
    )
    return Matched(
        ranks=tuple(one.rank for one in rank_records),
        offset_ns={one.rank: int(offsets[i]) + _base(one, rank_records[0]) for i, one in enumerate(rank_records)},
        unaligned=unaligned,
        of=of,
        num=num,
        arrival_ns=arrival,
        last_ns=last,
        end_ns=_medians(*np.concatenate(ends, axis=1)) if num else np.zeros(0, np.int64),
        complete=complete,
        notes=_notes(rank_records, made, words),
    )


def _notes(rank_records: Sequence[CollectiveRecords], made: CollectiveIds, words: CollectiveKeys) -> tuple[str, ...]:
    clocks, first = made.clocks, rank_records[0].rank if rank_records else 0
    outside = [i for i, one in enumerate(clocks.root.tolist()) if one != 0]
    vague = [rank_records[i].rank for i in outside if i in clocks.vague]
    apart = [rank_records[i].rank for i in outside if i not in clocks.vague]
    notes = []
    if apart:
        notes.append(
            f"no collective ties the clocks of ranks {_named(apart)} to rank {first}'s: their times are not comparable with its"
        )
    if vague:
        notes.append(
            f"the collectives of ranks {_named(vague)} repeat so evenly that several shifts against other ranks' fit alike: they "
            "were not matched, and nothing is said about who came late to them"
        )
    if made.lone:
        ranks = sorted({rank for lane in made.lone for rank in words.members[lane]})
        notes.append(
            f"sends and receives between ranks {_named(ranks)} do not say which other rank is meant: some were not matched"
        )
    return tuple(notes)


def _named(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_MOST_NAMED])) + (", ..." if len(ranks) > _MOST_NAMED else "")
