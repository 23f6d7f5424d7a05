"""Which entries of the ranks' collective records are the same collective,
and when each rank arrived at it on one clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.clock_offsets import Track, centre
from stepscope.analyses.collectives.clocks import Clocks, offset_between
from stepscope.analyses.collectives.ids import CollectiveIds, assign_ids
from stepscope.analyses.collectives.keys import CollectiveKeys
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.trace import NONE, Bool, Int64

_TRIES = 4
_MAX_NAMED = 8


def match(rank_records: Sequence[CollectiveRecords]) -> Matched:
    """Match the ranks' collectives by group and sequence, else by order and time,
    and align the clocks on their ends."""
    rank_records = sorted(rank_records, key=lambda records: records.rank)
    keys = CollectiveKeys(rank_records)
    tracks = [keys.track(records, _base(records, rank_records[0])) for records in rank_records]
    clocks = _clocks(tracks)
    collective_ids = assign_ids(tracks, clocks, keys.members)
    return _assemble(rank_records, collective_ids, keys, _settled(collective_ids))


def _base(records: CollectiveRecords, reference: CollectiveRecords) -> int:
    """What to add to a rank's times so that they count from where the reference's do."""
    return records.base_ns - reference.base_ns if records.base_ns and reference.base_ns else 0


def _clocks(tracks: Sequence[Track]) -> Clocks:
    """The clocks of all ranks. Each set of ranks that
    collectives tie together starts at its lowest rank."""
    clocks = Clocks.apart(len(tracks))
    counts = [Counter(track.group.tolist()) for track in tracks]
    # The ranks still to be tied, per group: each is compared with few others in a large group, too.
    waiting: dict[int, set[int]] = defaultdict(set)
    for i, count in enumerate(counts):
        for group in count:
            waiting[group].add(i)
    tries = np.zeros(len(tracks), np.int64)

    def leave(index: int) -> None:
        for group in counts[index]:
            waiting[group].discard(index)

    for start in range(len(tracks)):
        if start in clocks.partner:
            continue
        clocks.begin(start)
        leave(start)
        queue = [start]
        for a in queue:
            weight: dict[int, int] = defaultdict(int)
            for group, have in counts[a].items():
                for b in waiting[group]:
                    weight[b] += min(have, counts[b][group])
            for b in sorted(weight, key=lambda index: (-weight[index], index)):
                tries[b] += 1
                offset = offset_between(tracks[a], tracks[b])
                if offset is not None and clocks.tie(b, a, offset):
                    queue.append(b)
                    leave(b)
                elif tries[b] >= _TRIES:
                    leave(b)
    return clocks


def _settled(collective_ids: CollectiveIds) -> Int64:
    """Offsets from all that was matched, along the way they were found."""
    tracks, ids, base = collective_ids.tracks, collective_ids.ids, collective_ids.base
    settled: Int64 = collective_ids.clocks.offset_ns.copy()
    for i, other in collective_ids.clocks.partner.items():
        if i == other:
            continue
        mine, theirs = ids[base[i] : base[i + 1]], ids[base[other] : base[other + 1]]
        _, own, others = np.intersect1d(
            np.where(mine == NONE, -2, mine), theirs, return_indices=True
        )
        firm = tracks[i].firm[own] == 1
        if firm.any():
            own, others = own[firm], others[firm]
        if len(own):
            settled[i] = settled[other] + centre(
                tracks[other].end_ns[others] - tracks[i].end_ns[own]
            )
    return settled


def _medians(number: Int64, values: Int64) -> Int64:
    """Median of each number's values; 0 for numbers without any."""
    order = np.lexsort((values, number))
    count = np.bincount(number)
    first = np.cumsum(count) - count
    values = values[order]
    some = count > 0
    result = np.zeros(len(count), np.int64)
    low, high = values[(first + (count - 1) // 2)[some]], values[(first + count // 2)[some]]
    result[some] = low + (high - low) // 2
    return result


def _assemble(
    rank_records: Sequence[CollectiveRecords],
    collective_ids: CollectiveIds,
    keys: CollectiveKeys,
    offsets: Int64,
) -> Matched:
    ids, base = collective_ids.ids, collective_ids.base
    num = int(ids.max()) + 1 if len(ids) else 0
    of: dict[int, Int64] = {}
    arrival: dict[int, Int64] = {}
    took, needed = np.zeros(num, np.int64), np.zeros(num, np.int64)
    last = np.full(num, np.iinfo(np.int64).min, np.int64)
    ends = []
    sizes = np.array([len(members) for members in keys.members] or [0], np.int64)
    for i, track in enumerate(collective_ids.tracks):
        mine = ids[base[i] : base[i + 1]]
        of[track.rank], arrival[track.rank] = np.empty_like(mine), np.empty_like(mine)
        of[track.rank][track.entry] = mine
        arrival[track.rank][track.entry] = track.start_ns + offsets[i]
        matched = np.flatnonzero(mine != NONE)
        np.maximum.at(last, mine[matched], track.start_ns[matched] + offsets[i])
        np.add.at(took, mine[matched], 1)
        needed[mine[matched]] = np.where(track.side[matched] != 0, 2, sizes[track.group[matched]])
        ends.append(np.stack((mine[matched], track.end_ns[matched] + offsets[i])))
    complete: Bool = took >= needed
    roots = collective_ids.clocks.root.tolist()
    ranks = tuple(records.rank for records in rank_records)
    return Matched(
        ranks=ranks,
        offset_ns={
            records.rank: int(offset) + _base(records, rank_records[0])
            for records, offset in zip(rank_records, offsets, strict=True)
        },
        unaligned=tuple(rank for rank, root in zip(ranks, roots, strict=True) if root != 0),
        of=of,
        num=num,
        arrival_ns=arrival,
        last_ns=last,
        end_ns=_medians(*np.concatenate(ends, axis=1)) if num else np.zeros(0, np.int64),
        complete=complete,
        notes=_notes(rank_records, collective_ids, keys),
    )


def _notes(
    rank_records: Sequence[CollectiveRecords], collective_ids: CollectiveIds, keys: CollectiveKeys
) -> tuple[str, ...]:
    clocks, first = collective_ids.clocks, rank_records[0].rank if rank_records else 0
    outside = [i for i, root in enumerate(clocks.root.tolist()) if root != 0]
    vague = [rank_records[i].rank for i in outside if i in clocks.vague]
    apart = [rank_records[i].rank for i in outside if i not in clocks.vague]
    notes = []
    if apart:
        notes.append(
            f"no collective ties the clocks of ranks {named_ranks(apart)} to rank {first}'s: "
            "their times are not comparable with its"
        )
    if vague:
        notes.append(
            f"the collectives of ranks {named_ranks(vague)} repeat so evenly that several shifts "
            "against other ranks' fit alike: they were not matched, and nothing is said about who "
            "came late to them"
        )
    if collective_ids.lone:
        ranks = sorted({rank for group in collective_ids.lone for rank in keys.members[group]})
        notes.append(
            f"sends and receives between ranks {named_ranks(ranks)} do not say which other rank "
            "is meant: some were not matched"
        )
    return tuple(notes)


def named_ranks(ranks: Sequence[int]) -> str:
    """The first few, and that there are more: 0, 1, 2, ..."""
    return ", ".join(map(str, ranks[:_MAX_NAMED])) + (", ..." if len(ranks) > _MAX_NAMED else "")
