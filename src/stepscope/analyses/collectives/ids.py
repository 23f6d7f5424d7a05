"""One number for all entries of the ranks' collective records that are the same collective.

In groups of more than two ranks nobody may have recorded the other rank of a send. Pipelines pass
between neighbours of a group, and between its last and its first rank: a send belongs to the
receive of a neighbour that ends with it, unless another neighbour's does so too. Then they cannot
be distinguished, and both stay alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from stepscope.analyses.collectives.alignment import MAX_NS, align_lists, fill_gaps, nth, ordinals
from stepscope.analyses.collectives.clock_offsets import Track, TrackPart, nearest
from stepscope.analyses.collectives.clocks import Clocks
from stepscope.core.trace import NONE, Bool, Int64

_NEAR_NS = 5_000_000
"""The two ends of a transfer end no further apart."""
_CLEARLY = 4
"""How much further off another rank's must end for the nearest to be the one."""
_FLOOR_NS = 50_000
"""Closer than this, ends cannot be distinguished."""
_MIN_NS = 200_000
"""Ends of one collective may lie this far apart at least;
up to MAX_NS, half more than was measured."""
_LOOSE_NS = 5_000_000
"""The same where ranks may leave early."""


class CollectiveIds(Struct, kw_only=True):
    """The number of each entry of all tracks, one track after the other;
    NONE where no other rank's was found."""

    tracks: Sequence[Track]
    clocks: Clocks
    base: Int64
    ids: Int64
    next_id: int = 0
    lone: list[int] = field(default_factory=list)
    """Groups with sends and receives whose other rank is not known."""

    def assign(self, part: TrackPart, numbers: Int64) -> None:
        i, rows = part
        self.ids[self.base[i] + rows] = numbers


def assign_ids(
    tracks: Sequence[Track], clocks: Clocks, members: Sequence[tuple[int, ...]]
) -> CollectiveIds:
    """Number the entries group by group; each number has entries of two ranks or more."""
    base = np.concatenate(([0], np.cumsum([len(t.entry) for t in tracks]))).astype(np.int64)
    collective_ids = CollectiveIds(
        tracks=tracks, clocks=clocks, base=base, ids=np.full(int(base[-1]), NONE, np.int64)
    )
    for group, parts in sorted(_by_group(tracks).items()):
        plain = [(i, mine) for i, rows in parts if len(mine := rows[tracks[i].side[rows] == 0])]
        sided = [(i, mine) for i, rows in parts if len(mine := rows[tracks[i].side[rows] != 0])]
        if all(bool((tracks[i].sequence[rows] != NONE).all()) for i, rows in plain):
            _by_sequence(collective_ids, plain)
        else:
            for tied in _by_root(plain, clocks):
                _by_time(collective_ids, tied)
        left = False
        for tied in _by_root(sided, clocks):
            left |= _by_ends(collective_ids, tied, members[group])
        if left:
            collective_ids.lone.append(group)
    collective_ids.ids = _shared(collective_ids.ids)
    return collective_ids


def _by_group(tracks: Sequence[Track]) -> dict[int, list[TrackPart]]:
    per_group: dict[int, list[TrackPart]] = defaultdict(list)
    for i, track in enumerate(tracks):
        order = np.argsort(track.group, kind="stable")
        groups, first = np.unique(track.group[order], return_index=True)
        for group, rows in zip(
            groups.tolist(), np.split(order, first[1:]) if len(order) else [], strict=True
        ):
            per_group[group].append((i, rows))
    return per_group


def _by_root(parts: Sequence[TrackPart], clocks: Clocks) -> list[list[TrackPart]]:
    """Parts whose times can be compared."""
    by_root: dict[int, list[TrackPart]] = defaultdict(list)
    for part in parts:
        by_root[int(clocks.root[part[0]])].append(part)
    return list(by_root.values())


def _by_sequence(collective_ids: CollectiveIds, parts: list[TrackPart]) -> None:
    """Same kind, same sequence number: the same collective.
    Those that share a number are counted through."""
    if not parts:
        return
    keys = []
    for i, rows in parts:
        both = np.stack(
            (collective_ids.tracks[i].token[rows], collective_ids.tracks[i].sequence[rows])
        )
        _, same = np.unique(both, axis=1, return_inverse=True)
        keys.append(np.concatenate((both, [nth(same.reshape(-1).astype(np.int64))])))
    number: Int64
    _, number = np.unique(np.concatenate(keys, axis=1), axis=1, return_inverse=True)
    number = number.reshape(-1) + collective_ids.next_id
    for part, mine in zip(
        parts, np.split(number, np.cumsum([len(rows) for _, rows in parts])[:-1]), strict=True
    ):
        collective_ids.assign(part, mine)
    collective_ids.next_id = int(number.max()) + 1


class _Collectives(Struct, frozen=True, kw_only=True):
    """The collectives found so far, sorted by time."""

    time: Int64
    token: Int64
    number: Int64
    """The number of the step."""
    id: Int64

    def joined(self, other: _Collectives) -> _Collectives:
        time = np.concatenate((self.time, other.time))
        order = np.argsort(time, kind="stable")
        return _Collectives(
            time=time[order],
            token=np.concatenate((self.token, other.token))[order],
            number=np.concatenate((self.number, other.number))[order],
            id=np.concatenate((self.id, other.id))[order],
        )


def _by_time(collective_ids: CollectiveIds, parts: list[TrackPart]) -> None:
    """Align each rank's list with the list of all collectives so far;
    what is new in it joins that list."""
    clocks, none = collective_ids.clocks, np.zeros(0, np.int64)
    parts = sorted(parts, key=lambda part: (-len(part[1]), part[0]))
    collectives = _Collectives(time=none, token=none, number=none, id=none)
    for i, rows in parts:
        track = collective_ids.tracks[i]
        time = track.end_ns[rows] + clocks.offset_ns[i]
        token = track.token[rows]
        firm = track.firm[rows]
        number = track.number[rows] if clocks.numbered[i] else np.full(len(rows), NONE, np.int64)
        tolerance = int(
            np.clip(1.5 * max(clocks.reach_ns[i], clocks.reach_ns[parts[0][0]]), _MIN_NS, MAX_NS)
        )
        near = np.where(firm == 1, tolerance, max(tolerance, _LOOSE_NS))
        ordinal = ordinals(token, number, collectives.token, collectives.number)
        position = align_lists(
            time, token, near, collectives.time, collectives.token, *ordinal, firm
        )
        position = fill_gaps(position, time, token, firm, collectives.time, collectives.token)
        matched = position != NONE
        fresh = np.arange(collective_ids.next_id, collective_ids.next_id + int((~matched).sum()))
        collective_ids.next_id += len(fresh)
        mine = np.empty(len(rows), np.int64)
        mine[matched], mine[~matched] = collectives.id[position[matched]], fresh
        collective_ids.assign((i, rows), mine)
        # A new one stays between its neighbours, whatever the noise of its end says.
        matched_time = np.zeros(len(rows), np.int64)
        matched_time[matched] = collectives.time[position[matched]]
        low = np.maximum.accumulate(np.where(matched, matched_time, np.iinfo(np.int64).min))
        high = np.minimum.accumulate(np.where(matched, matched_time, np.iinfo(np.int64).max)[::-1])[
            ::-1
        ]
        new = ~matched
        collectives = collectives.joined(
            _Collectives(
                time=np.clip(time, low, high)[new], token=token[new], number=number[new], id=fresh
            )
        )


def _by_ends(
    collective_ids: CollectiveIds, parts: list[TrackPart], members: tuple[int, ...]
) -> bool:
    """Sends with receives whose other rank is not recorded; whether some are left over."""
    ids = collective_ids.ids
    offsets = collective_ids.clocks.offset_ns
    first = collective_ids.next_id
    send, recv = pairs_in(collective_ids.tracks, parts, offsets, collective_ids.base, members)
    ids[send] = ids[recv] = np.arange(first, first + len(send))
    collective_ids.next_id += len(send)
    return 2 * len(send) < sum(len(rows) for _, rows in parts)


def _shared(ids: Int64) -> Int64:
    """Numbers from 0 for those that two entries or more have."""
    has_id = ids != NONE
    if not has_id.any():
        return ids
    keep = np.bincount(ids[has_id]) > 1
    number: Int64 = np.where(keep, np.cumsum(keep) - 1, NONE)
    result: Int64 = ids.copy()
    result[has_id] = number[ids[has_id]]
    return result


def pairs_in(
    tracks: Sequence[Track],
    parts: Sequence[TrackPart],
    offsets: Int64,
    base: Int64,
    members: tuple[int, ...],
) -> tuple[Int64, Int64]:
    """Sends and their receives, counted over all tracks one after the other."""
    index_of = {rank: index for index, rank in enumerate(members)}
    part_at = {
        index_of[tracks[part[0]].rank]: part for part in parts if tracks[part[0]].rank in index_of
    }
    near = []
    for index, part in part_at.items():
        around = {(index - 1) % len(members), (index + 1) % len(members)} - {index}
        near += [
            _between(tracks, part, part_at[other], offsets, base)
            for other in sorted(around & part_at.keys())
        ]
    if not near:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    off, send, recv = (np.concatenate(column) for column in zip(*near, strict=True))
    clear = _is_clear(off, send) & _is_clear(off, recv)
    return send[clear], recv[clear]


def _between(
    tracks: Sequence[Track], a: TrackPart, b: TrackPart, offsets: Int64, base: Int64
) -> tuple[Int64, Int64, Int64]:
    """One rank's sends and another's receives: how far apart they end, and which they are."""
    (i, rows), (j, others) = a, b
    rows, others = rows[tracks[i].side[rows] > 0], others[tracks[j].side[others] < 0]
    others = others[np.lexsort((tracks[j].end_ns[others], tracks[j].token[others]))]
    sent, received = tracks[i].end_ns[rows] + offsets[i], tracks[j].end_ns[others] + offsets[j]
    of, to = nearest(tracks[i].token[rows], sent, tracks[j].token[others], received, _NEAR_NS)
    return np.abs(sent[of] - received[to]), base[i] + rows[of], base[j] + others[to]


def _is_clear(off: Int64, of: Int64) -> Bool:
    """Mask of the pairs that are the nearest for their entry, with no other about as near."""
    order = np.lexsort((off, of))
    first = np.ones(len(order), np.bool_)
    first[1:] = np.diff(of[order]) != 0
    following = np.full(len(order), np.iinfo(np.int64).max, np.int64)
    same = ~first[1:]
    following[:-1][same] = off[order][1:][same]
    clear = np.zeros(len(order), np.bool_)
    clear[order] = first & (following > _CLEARLY * np.maximum(off[order], _FLOOR_NS))
    return clear
