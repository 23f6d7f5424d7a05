"""Which entries of the ranks' ledgers are the same collective, and when each rank arrived at it on one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.clocks import Track, centre, nearest, offset_between
from stepscope.core.comms import Collective, Ledger, Matched
from stepscope.core.trace import NONE, Bool, Int64

FIRM = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Nobody leaves these before everybody has come. The root of a broadcast can."""
_UNEVEN = frozenset({"all_to_all", "gather", "scatter", "barrier", "sendrecv", "other"})
"""Ranks may give and get different sizes, or none is recorded."""
_P2P = {"send": 1, "recv": -1}
_LEAST_NS, _MOST_NS = 200_000, 20_000_000
"""Bounds of how far apart ends of one collective may lie; between them, half more than was measured."""
_LOOSE_NS = 5_000_000
_TRIES = 4

Group = tuple[str, tuple[int, ...]]


def match(ledgers: Sequence[Ledger]) -> Matched:
    """Match the ranks' collectives by group and sequence, else by order and time, and align the clocks on their ends."""
    ledgers = sorted(ledgers, key=lambda one: one.rank)
    words = _Words(ledgers)
    tracks = [words.track(one, _base(one, ledgers[0])) for one in ledgers]
    offsets, reaches, partner = _offsets(tracks)
    ids = _numbered(tracks, offsets, reaches, words)
    return _assembled(ledgers, tracks, words, ids, *_settled(tracks, ids, offsets, partner))


def _base(ledger: Ledger, reference: Ledger) -> int:
    """What to add to a rank's times so that they count from where the reference's do."""
    return ledger.base_ns - reference.base_ns if ledger.base_ns and reference.base_ns else 0


class _Words:
    """Groups and kinds, numbered alike for all ranks."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        by_name: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        seen: dict[Group, set[int]] = defaultdict(set)
        for ledger in ledgers:
            for kind in ledger.kinds:
                if kind.group_ranks:
                    by_name[kind.group].add(tuple(sorted(kind.group_ranks)))
        self._only = {name: next(iter(ranks)) for name, ranks in by_name.items() if len(ranks) == 1 and name}
        for ledger in ledgers:
            for kind in ledger.kinds:
                seen[self.group(kind)].add(ledger.rank)
        self.lanes: dict[Group, int] = {group: i for i, group in enumerate(seen)}
        self.members = [group[1] or tuple(sorted(seen[group])) for group in seen]
        self._tokens: dict[tuple[object, ...], int] = {}

    def group(self, kind: Collective) -> Group:
        """Name and ranks; ranks that a recorder left out are those the others wrote."""
        return kind.group, tuple(sorted(kind.group_ranks)) or self._only.get(kind.group, ())

    def track(self, ledger: Ledger, base_ns: int) -> Track:
        """A ledger in these words, sorted by end, its times `base_ns` later."""
        rows = np.zeros((max(1, len(ledger.kinds)), 4), np.int64)
        for i, kind in enumerate(ledger.kinds):
            rows[i] = self._row(kind, ledger.rank)
        order = np.lexsort((ledger.start_ns, ledger.end_ns))
        lane, token, side, firm = (rows[ledger.kind[order], column] for column in range(4))
        return Track(
            rank=ledger.rank,
            entry=order,
            lane=lane,
            token=token,
            side=side,
            firm=firm,
            start_ns=ledger.start_ns[order] + base_ns,
            end_ns=ledger.end_ns[order] + base_ns,
            sequence=ledger.sequence[order],
            step=ledger.step[order],
        )

    def _row(self, kind: Collective, rank: int) -> tuple[int, int, int, int]:
        lane = self.lanes[self.group(kind)]
        members = self.members[lane]
        op, side = kind.op, 0
        if op in _P2P:
            side = _P2P[op]
            op = "p2p"
            if len(members) == 2 and rank in members:
                # Only one other rank can be meant: who sends says which way it goes.
                other = members[0] if members[1] == rank else members[1]
                op, side = f"from {rank if side > 0 else other}", 0
        size = () if kind.op in _UNEVEN else (kind.dtype, kind.bytes)
        token = self._tokens.setdefault((lane, op, kind.on_device, *size), len(self._tokens))
        return lane, token, side, int(kind.op in FIRM)


def _offsets(tracks: Sequence[Track]) -> tuple[Int64, Int64, dict[int, int]]:
    """Per rank: what to add to its clock, and how far its ends lie from others'; and whom each was compared with, in order.

    Ranks go by index. Each set of ranks that collectives connect starts at its lowest rank, whose partner is itself.
    """
    num = len(tracks)
    offsets, reaches, tries = np.zeros(num, np.int64), np.zeros(num, np.int64), np.zeros(num, np.int64)
    partner: dict[int, int] = {}
    counts = [dict(zip(*(x.tolist() for x in np.unique(t.lane, return_counts=True)), strict=True)) for t in tracks]
    in_lane: dict[int, list[int]] = defaultdict(list)
    for i, count in enumerate(counts):
        for lane in count:
            in_lane[lane].append(i)
    for start in range(num):
        if start in partner:
            continue
        partner[start] = start
        queue = [start]
        for a in queue:
            weight: dict[int, int] = defaultdict(int)
            for lane, have in counts[a].items():
                for b in in_lane[lane]:
                    if b not in partner and tries[b] < _TRIES:
                        weight[b] += min(have, counts[b][lane])
            for b in sorted(weight, key=lambda one: (-weight[one], one)):
                tries[b] += 1
                if found := offset_between(tracks[a], tracks[b]):
                    partner[b], offsets[b], reaches[b] = a, offsets[a] + found.ns, found.reach_ns
                    reaches[start] = max(reaches[start], found.reach_ns)
                    queue.append(b)
    return offsets, reaches, partner


def _numbered(tracks: Sequence[Track], offsets: Int64, reaches: Int64, words: _Words) -> Int64:
    """Per entry of all tracks, one after the other, the number of its collective; each has entries of two ranks or more."""
    base = np.concatenate(([0], np.cumsum([len(t.entry) for t in tracks]))).astype(np.int64)
    ids = np.full(int(base[-1]), NONE, np.int64)
    per_lane: dict[int, list[tuple[int, Int64]]] = defaultdict(list)
    for i, track in enumerate(tracks):
        order = np.argsort(track.lane, kind="stable")
        lanes, first = np.unique(track.lane[order], return_index=True)
        for lane, rows in zip(lanes.tolist(), np.split(order, first[1:]) if len(order) else [], strict=True):
            per_lane[lane].append((i, rows))
    next_id = 0
    for lane in range(len(words.members)):
        parts = per_lane.get(lane, [])
        sided = [(i, rows[tracks[i].side[rows] != 0]) for i, rows in parts]
        plain = [(i, rows[tracks[i].side[rows] == 0]) for i, rows in parts]
        plain = [(i, rows) for i, rows in plain if len(rows)]
        if all(bool((tracks[i].sequence[rows] != NONE).all()) for i, rows in plain):
            next_id = _by_sequence(tracks, plain, base, ids, next_id)
        else:
            next_id = _by_time(tracks, plain, offsets, reaches, base, ids, next_id)
        next_id = _by_ends(tracks, sided, offsets, words.members[lane], base, ids, next_id)
    return _shared(ids)


def _by_sequence(tracks: Sequence[Track], parts: list[tuple[int, Int64]], base: Int64, ids: Int64, next_id: int) -> int:
    """Same kind, same sequence number: the same collective. Those that share a number are counted through."""
    if not parts:
        return next_id
    keys = []
    for i, rows in parts:
        token, sequence = tracks[i].token[rows], tracks[i].sequence[rows]
        order = np.lexsort((rows, sequence, token))
        fresh = np.ones(len(rows), np.bool_)
        fresh[1:] = (np.diff(token[order]) != 0) | (np.diff(sequence[order]) != 0)
        at = np.arange(len(rows))
        nth = np.empty(len(rows), np.int64)
        nth[order] = at - np.maximum.accumulate(np.where(fresh, at, 0))
        keys.append(np.stack((token, sequence, nth), axis=1))
    number: Int64
    _, number = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    number = number.reshape(-1)
    where = np.concatenate([base[i] + rows for i, rows in parts])
    ids[where] = number + next_id
    return next_id + int(number.max()) + 1


def _by_time(
    tracks: Sequence[Track], parts: list[tuple[int, Int64]], offsets: Int64, reaches: Int64, base: Int64, ids: Int64, next_id: int
) -> int:
    """Lay each rank's list against the list of all found so far; what is new in it joins that list."""
    list_ns, list_token, list_id = (np.zeros(0, np.int64) for _ in range(3))
    parts = sorted(parts, key=lambda part: (-len(part[1]), part[0]))
    for i, rows in parts:
        track = tracks[i]
        time, token, firm = track.end_ns[rows] + offsets[i], track.token[rows], track.firm[rows]
        tolerance = int(np.clip(1.5 * max(reaches[i], reaches[parts[0][0]]), _LEAST_NS, _MOST_NS))
        near = np.where(firm == 1, tolerance, max(tolerance, _LOOSE_NS))
        at = filled(aligned(time, token, near, list_ns, list_token), time, token, firm, list_ns, list_token)
        found = at != NONE
        fresh = np.arange(next_id, next_id + int((~found).sum()))
        next_id += len(fresh)
        mine = np.empty(len(rows), np.int64)
        mine[found], mine[~found] = list_id[at[found]], fresh
        ids[base[i] + rows] = mine
        # A new one keeps its place between its neighbours, whatever the noise of its end says.
        low = np.maximum.accumulate(np.where(found, list_ns[at] if len(list_ns) else 0, np.iinfo(np.int64).min))
        high = np.minimum.accumulate(np.where(found, list_ns[at] if len(list_ns) else 0, np.iinfo(np.int64).max)[::-1])[::-1]
        list_ns = np.concatenate((list_ns, np.clip(time, low, high)[~found]))
        list_token, list_id = np.concatenate((list_token, token[~found])), np.concatenate((list_id, fresh))
        order = np.argsort(list_ns, kind="stable")
        list_ns, list_token, list_id = list_ns[order], list_token[order], list_id[order]
    return next_id


def aligned(time: Int64, token: Int64, near: Int64, list_ns: Int64, list_token: Int64) -> Int64:
    """Per entry, its place in a list of the same kinds sorted by time, in order and within `near`; NONE where it has none."""
    at = np.full(len(time), NONE, np.int64)
    low, high = np.searchsorted(list_ns, time - near, "left"), np.searchsorted(list_ns, time + near, "right")
    count = high - low
    of = np.repeat(np.arange(len(time)), count)
    to = np.repeat(low - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    same = token[of] == list_token[to]
    of, to = of[same], to[same]
    if not len(of):
        return at
    if bool((np.diff(of) > 0).all() and (np.diff(to) > 0).all()):
        at[of] = to
        return at
    gain = 1.0 - np.abs(time[of] - list_ns[to]) / (near[of] + 1)
    chain = _heaviest_chain(of.tolist(), to.tolist(), gain.tolist(), len(list_ns))
    at[of[chain]] = to[chain]
    return at


def filled(at: Int64, time: Int64, token: Int64, firm: Int64, list_ns: Int64, list_token: Int64) -> Int64:
    """Places also for those between the same neighbours on both sides, alike one by one: late or early ends, not losses."""
    at = at.copy()
    known = np.flatnonzero(at != NONE)
    if not len(known) or len(known) == len(at):
        return at
    for low, high in zip([-1, *known.tolist()], [*known.tolist(), len(at)], strict=True):
        if high - low < 2:
            continue
        mine = np.arange(low + 1, high)
        first = at[low] + 1 if low >= 0 else 0
        stop = at[high] if high < len(at) else len(list_ns)
        theirs = np.arange(first, stop)
        if low < 0 or high == len(at):
            # Recordings begin and end apart: count from the neighbour that both have.
            num = min(len(mine), len(theirs))
            mine, theirs = (mine[len(mine) - num :], theirs[len(theirs) - num :]) if low < 0 else (mine[:num], theirs[:num])
        if not len(mine) or len(mine) != len(theirs) or bool((token[mine] != list_token[theirs]).any()):
            continue
        if low >= 0 and high < len(at):
            span = np.full(len(mine), list_ns[stop] - list_ns[first - 1])
        else:
            span = 2 * np.abs(list_ns[theirs] - list_ns[stop if low < 0 else first - 1])
        near = np.abs(time[mine] - list_ns[theirs]) <= np.where(firm[mine] == 1, np.minimum(span // 5, _MOST_NS // 2), span)
        at[mine[near]] = theirs[near]
    return at


def _heaviest_chain(of: list[int], to: list[int], gain: list[float], size: int) -> Int64:
    """The pairs, rising on both sides, with the greatest sum of gains; a prefix-maximum tree keeps it n log n."""
    tree_value, tree_pair = [0.0] * (size + 1), [-1] * (size + 1)
    before, total = [-1] * len(of), [0.0] * len(of)
    best, begin = -1, 0
    while begin < len(of):
        end = begin
        while end < len(of) and of[end] == of[begin]:
            node, value, pair = to[end], 0.0, -1
            while node > 0:
                if tree_value[node] > value:
                    value, pair = tree_value[node], tree_pair[node]
                node &= node - 1
            total[end], before[end] = value + gain[end], pair
            end += 1
        for pair in range(begin, end):
            if best < 0 or total[pair] > total[best]:
                best = pair
            node = to[pair] + 1
            while node <= size:
                if tree_value[node] < total[pair]:
                    tree_value[node], tree_pair[node] = total[pair], pair
                node += node & -node
        begin = end
    chain = []
    while best >= 0:
        chain.append(best)
        best = before[best]
    return np.array(chain[::-1], np.int64)


def _by_ends(
    tracks: Sequence[Track],
    parts: list[tuple[int, Int64]],
    offsets: Int64,
    members: tuple[int, ...],
    base: Int64,
    ids: Int64,
    next_id: int,
) -> int:
    """Sends with receives where the group has more than two ranks: the nearest end, between neighbours in the group first."""
    place = {rank: at for at, rank in enumerate(members)}
    pairs = [(a, b) for a in parts for b in parts if a[0] != b[0]]
    away = [abs(place.get(tracks[a[0]].rank, 0) - place.get(tracks[b[0]].rank, 0)) for a, b in pairs]
    for distance in (1, len(members) - 1):
        rows: list[tuple[Int64, Int64, Int64]] = []
        for (a, b), apart in zip(pairs, away, strict=True):
            if apart == distance:
                rows.append(_p2p_pairs(tracks, a, b, offsets, base, ids))
        if not rows:
            continue
        off, send, recv = (np.concatenate(column) for column in zip(*rows, strict=True))
        for k in np.argsort(off, kind="stable").tolist():
            if ids[send[k]] == NONE and ids[recv[k]] == NONE:
                ids[send[k]] = ids[recv[k]] = next_id
                next_id += 1
    return next_id


def _p2p_pairs(
    tracks: Sequence[Track], a: tuple[int, Int64], b: tuple[int, Int64], offsets: Int64, base: Int64, ids: Int64
) -> tuple[Int64, Int64, Int64]:
    """One rank's sends beside another's receives: how far apart they end, and which they are."""
    (i, rows), (j, others) = a, b
    rows = rows[(tracks[i].side[rows] > 0) & (ids[base[i] + rows] == NONE)]
    others = others[(tracks[j].side[others] < 0) & (ids[base[j] + others] == NONE)]
    others = others[np.lexsort((tracks[j].end_ns[others], tracks[j].token[others]))]
    sent, received = tracks[i].end_ns[rows] + offsets[i], tracks[j].end_ns[others] + offsets[j]
    of, to = nearest(tracks[i].token[rows], sent, tracks[j].token[others], received, _LOOSE_NS)
    return np.abs(sent[of] - received[to]), base[i] + rows[of], base[j] + others[to]


def _shared(ids: Int64) -> Int64:
    """Numbers from 0 for those that two entries or more have."""
    found = ids != NONE
    if not found.any():
        return ids
    keep = np.bincount(ids[found]) > 1
    number: Int64 = np.where(keep, np.cumsum(keep) - 1, NONE)
    result: Int64 = ids.copy()
    result[found] = number[ids[found]]
    return result


def _settled(tracks: Sequence[Track], ids: Int64, offsets: Int64, partner: dict[int, int]) -> tuple[Int64, Int64]:
    """Offsets from all that was matched, along the way they were found; and per rank, the one whose clock is meant."""
    base = np.concatenate(([0], np.cumsum([len(t.entry) for t in tracks]))).astype(np.int64)
    settled, root = offsets.copy(), np.arange(len(tracks))
    for i, other in partner.items():
        if i == other:
            continue
        root[i] = root[other]
        mine, theirs = ids[base[i] : base[i + 1]], ids[base[other] : base[other + 1]]
        _, at, there = np.intersect1d(np.where(mine == NONE, -2, mine), theirs, return_indices=True)
        firm = tracks[i].firm[at] == 1
        if firm.any():
            at, there = at[firm], there[firm]
        if len(at):
            settled[i] = settled[other] + centre(tracks[other].end_ns[there] - tracks[i].end_ns[at])
    return settled, root


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


def _assembled(
    ledgers: Sequence[Ledger], tracks: Sequence[Track], words: _Words, ids: Int64, offsets: Int64, root: Int64
) -> Matched:
    num = int(ids.max()) + 1 if len(ids) else 0
    of: dict[int, Int64] = {}
    arrival: dict[int, Int64] = {}
    took, lane_of = np.zeros(num, np.int64), np.zeros(num, np.int64)
    last = np.full(num, np.iinfo(np.int64).min, np.int64)
    p2p = np.zeros(num, np.bool_)
    numbers, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    base = 0
    for i, (ledger, track) in enumerate(zip(ledgers, tracks, strict=True)):
        mine = ids[base : base + len(track.entry)]
        base += len(track.entry)
        per_entry = np.full(len(track.entry), NONE, np.int64)
        per_entry[track.entry] = mine
        found = mine != NONE
        arrived = np.full(num, NONE, np.int64)
        arrived[mine[found]] = track.start_ns[found] + offsets[i]
        np.maximum.at(last, mine[found], track.start_ns[found] + offsets[i])
        took[mine[found]] += 1
        lane_of[mine[found]] = track.lane[found]
        p2p[mine[found]] |= track.side[found] != 0
        of[ledger.rank], arrival[ledger.rank] = per_entry, arrived
        numbers.append(mine[found])
        ends.append(track.end_ns[found] + offsets[i])
    sizes = np.array([len(members) for members in words.members] or [0], np.int64)
    complete: Bool = took >= np.where(p2p, 2, sizes[lane_of])
    unaligned = tuple(ledger.rank for ledger, one in zip(ledgers, root.tolist(), strict=True) if one != 0)
    return Matched(
        ranks=tuple(one.rank for one in ledgers),
        offset_ns={one.rank: int(offsets[i]) + _base(one, ledgers[0]) for i, one in enumerate(ledgers)},
        unaligned=unaligned,
        of=of,
        num=num,
        arrival_ns=arrival,
        last_ns=last,
        end_ns=_medians(np.concatenate(numbers), np.concatenate(ends)) if num else np.zeros(0, np.int64),
        complete=complete,
        notes=_notes(ledgers, unaligned),
    )


def _notes(ledgers: Sequence[Ledger], unaligned: tuple[int, ...]) -> tuple[str, ...]:
    if not unaligned:
        return ()
    names = ", ".join(map(str, unaligned[:8])) + (", ..." if len(unaligned) > 8 else "")
    return (
        f"no collective ties the clocks of ranks {names} to rank {ledgers[0].rank}'s: their times are not comparable with its",
    )
