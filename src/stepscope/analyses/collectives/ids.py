"""One number for all entries of the ranks' collective records that are the same collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.analyses.collectives.alignment import MOST_NS, aligned, filled, nth, places
from stepscope.analyses.collectives.clock_offsets import Track
from stepscope.analyses.collectives.clocks import Clocks
from stepscope.analyses.collectives.send_recv import pairs_in
from stepscope.core.trace import NONE, Int64

_LEAST_NS = 200_000
"""Least bound of how far apart ends of one collective may lie; up to MOST_NS, half more than was measured."""
_LOOSE_NS = 5_000_000
"""The same where ranks may leave early."""

Part = tuple[int, Int64]
"""A track's index, and some of its entries."""


@dataclass(slots=True, kw_only=True)
class CollectiveIds:
    """The number of each entry of all tracks, one track after the other; NONE where no other rank's was found."""

    tracks: Sequence[Track]
    clocks: Clocks
    base: Int64
    ids: Int64
    next_id: int = 0
    lone: list[int] = field(default_factory=list)
    """Lanes with sends and receives whose other end could not be told."""

    def give(self, part: Part, numbers: Int64) -> None:
        i, rows = part
        self.ids[self.base[i] + rows] = numbers


def numbered(tracks: Sequence[Track], clocks: Clocks, members: Sequence[tuple[int, ...]]) -> CollectiveIds:
    """Number the entries by lane; each number has entries of two ranks or more."""
    base = np.concatenate(([0], np.cumsum([len(t.entry) for t in tracks]))).astype(np.int64)
    made = CollectiveIds(tracks=tracks, clocks=clocks, base=base, ids=np.full(int(base[-1]), NONE, np.int64))
    for lane, parts in sorted(_by_lane(tracks).items()):
        plain = [(i, mine) for i, rows in parts if len(mine := rows[tracks[i].side[rows] == 0])]
        sided = [(i, mine) for i, rows in parts if len(mine := rows[tracks[i].side[rows] != 0])]
        if all(bool((tracks[i].sequence[rows] != NONE).all()) for i, rows in plain):
            _by_sequence(made, plain)
        else:
            for some in _by_root(plain, clocks):
                _by_time(made, some)
        left = False
        for some in _by_root(sided, clocks):
            left |= _by_ends(made, some, members[lane])
        if left:
            made.lone.append(lane)
    made.ids = _shared(made.ids)
    return made


def _by_lane(tracks: Sequence[Track]) -> dict[int, list[Part]]:
    per_lane: dict[int, list[Part]] = defaultdict(list)
    for i, track in enumerate(tracks):
        order = np.argsort(track.lane, kind="stable")
        lanes, first = np.unique(track.lane[order], return_index=True)
        for lane, rows in zip(lanes.tolist(), np.split(order, first[1:]) if len(order) else [], strict=True):
            per_lane[lane].append((i, rows))
    return per_lane


def _by_root(parts: Sequence[Part], clocks: Clocks) -> list[list[Part]]:
    """Parts whose times can be compared."""
    found: dict[int, list[Part]] = defaultdict(list)
    for part in parts:
        found[int(clocks.root[part[0]])].append(part)
    return list(found.values())


def _by_sequence(made: CollectiveIds, parts: list[Part]) -> None:
    """Same kind, same sequence number: the same collective. Those that share a number are counted through."""
    if not parts:
        return
    keys = []
    for i, rows in parts:
        both = np.stack((made.tracks[i].token[rows], made.tracks[i].sequence[rows]))
        _, same = np.unique(both, axis=1, return_inverse=True)
        keys.append(np.concatenate((both, [nth(same.reshape(-1).astype(np.int64))])))
    number: Int64
    _, number = np.unique(np.concatenate(keys, axis=1), axis=1, return_inverse=True)
    number = number.reshape(-1) + made.next_id
    for part, mine in zip(parts, np.split(number, np.cumsum([len(rows) for _, rows in parts])[:-1]), strict=True):
        made.give(part, mine)
    made.next_id = int(number.max()) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The collectives found so far, sorted by time."""

    time: Int64
    token: Int64
    number: Int64
    """The number of the step."""
    id: Int64

    def joined(self, other: _Known) -> _Known:
        time = np.concatenate((self.time, other.time))
        order = np.argsort(time, kind="stable")
        return _Known(
            time=time[order],
            token=np.concatenate((self.token, other.token))[order],
            number=np.concatenate((self.number, other.number))[order],
            id=np.concatenate((self.id, other.id))[order],
        )


def _by_time(made: CollectiveIds, parts: list[Part]) -> None:
    """Lay each rank's list against the list of all found so far; what is new in it joins that list."""
    clocks, none = made.clocks, np.zeros(0, np.int64)
    parts = sorted(parts, key=lambda part: (-len(part[1]), part[0]))
    known = _Known(time=none, token=none, number=none, id=none)
    for i, rows in parts:
        track = made.tracks[i]
        time, token, firm = track.end_ns[rows] + clocks.offset_ns[i], track.token[rows], track.firm[rows]
        number = track.number[rows] if clocks.numbered[i] else np.full(len(rows), NONE, np.int64)
        tolerance = int(np.clip(1.5 * max(clocks.reach_ns[i], clocks.reach_ns[parts[0][0]]), _LEAST_NS, MOST_NS))
        near = np.where(firm == 1, tolerance, max(tolerance, _LOOSE_NS))
        at = aligned(time, token, near, known.time, known.token, *places(token, number, known.token, known.number))
        at = filled(at, time, token, firm, known.time, known.token)
        found = at != NONE
        fresh = np.arange(made.next_id, made.next_id + int((~found).sum()))
        made.next_id += len(fresh)
        mine = np.empty(len(rows), np.int64)
        mine[found], mine[~found] = known.id[at[found]], fresh
        made.give((i, rows), mine)
        # A new one keeps its place between its neighbours, whatever the noise of its end says.
        there = np.zeros(len(rows), np.int64)
        there[found] = known.time[at[found]]
        low = np.maximum.accumulate(np.where(found, there, np.iinfo(np.int64).min))
        high = np.minimum.accumulate(np.where(found, there, np.iinfo(np.int64).max)[::-1])[::-1]
        new = ~found
        known = known.joined(_Known(time=np.clip(time, low, high)[new], token=token[new], number=number[new], id=fresh))


def _by_ends(made: CollectiveIds, parts: list[Part], members: tuple[int, ...]) -> bool:
    """Sends with receives whose other rank is not recorded; whether some are left over."""
    send, recv = pairs_in(made.tracks, parts, made.clocks.offset_ns, made.base, members)
    made.ids[send] = made.ids[recv] = np.arange(made.next_id, made.next_id + len(send))
    made.next_id += len(send)
    return 2 * len(send) < sum(len(rows) for _, rows in parts)


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
