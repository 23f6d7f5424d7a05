"""Sends and the receives they belong to, in groups of more than two ranks, where nobody recorded the other rank.

Pipelines pass between neighbours of a group, and between its last and its first rank. A send belongs to the receive of a
neighbour that ends with it, unless another neighbour's does so too: then nothing tells them apart, and both stay alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.clock_offsets import Track, nearest
from stepscope.core.trace import Int64

_NEAR_NS = 5_000_000
"""The two ends of a transfer end no further apart."""
_CLEARLY = 4
"""How much further off another rank's must end for the nearest to be the one."""
_FLOOR_NS = 50_000
"""Closer than this, ends cannot be distinguished."""

Part = tuple[int, Int64]


def pairs_in(
    tracks: Sequence[Track], parts: Sequence[Part], offsets: Int64, base: Int64, members: tuple[int, ...]
) -> tuple[Int64, Int64]:
    """Sends and their receives, counted over all tracks one after the other."""
    place = {rank: at for at, rank in enumerate(members)}
    at = {place[tracks[part[0]].rank]: part for part in parts if tracks[part[0]].rank in place}
    near = []
    for here, part in at.items():
        beside = sorted({(here - 1) % len(members), (here + 1) % len(members)} & at.keys() - {here})
        near += [_between(tracks, part, at[there], offsets, base) for there in beside]
    if not near:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    off, send, recv = (np.concatenate(column) for column in zip(*near, strict=True))
    clear = _is_clear(off, send) & _is_clear(off, recv)
    return send[clear], recv[clear]


def _between(tracks: Sequence[Track], a: Part, b: Part, offsets: Int64, base: Int64) -> tuple[Int64, Int64, Int64]:
    """One rank's sends beside another's receives: how far apart they end, and which they are."""
    (i, rows), (j, others) = a, b
    rows, others = rows[tracks[i].side[rows] > 0], others[tracks[j].side[others] < 0]
    others = others[np.lexsort((tracks[j].end_ns[others], tracks[j].token[others]))]
    sent, received = tracks[i].end_ns[rows] + offsets[i], tracks[j].end_ns[others] + offsets[j]
    of, to = nearest(tracks[i].token[rows], sent, tracks[j].token[others], received, _NEAR_NS)
    return np.abs(sent[of] - received[to]), base[i] + rows[of], base[j] + others[to]


def _is_clear(off: Int64, of: Int64) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
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
