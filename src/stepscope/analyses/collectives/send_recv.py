"""Sends and the receives they belong to, in groups of more than two ranks,
where nobody recorded the other rank.

Pipelines pass between neighbours of a group, and between its last and its first rank. A send
belongs to the receive of a neighbour that ends with it, unless another neighbour's does so too:
then they cannot be distinguished, and both stay alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.clock_offsets import Track, TrackPart, nearest
from stepscope.core.trace import Bool, Int64

_NEAR_NS = 5_000_000
"""The two ends of a transfer end no further apart."""
_CLEARLY = 4
"""How much further off another rank's must end for the nearest to be the one."""
_FLOOR_NS = 50_000
"""Closer than this, ends cannot be distinguished."""


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
    """Which pair is the nearest for its entry, with no other about as near."""
    order = np.lexsort((off, of))
    first = np.ones(len(order), np.bool_)
    first[1:] = np.diff(of[order]) != 0
    following = np.full(len(order), np.iinfo(np.int64).max, np.int64)
    same = ~first[1:]
    following[:-1][same] = off[order][1:][same]
    clear = np.zeros(len(order), np.bool_)
    clear[order] = first & (following > _CLEARLY * np.maximum(off[order], _FLOOR_NS))
    return clear
