"""Clock offsets between two ranks that may be,
and how well each explains the ends of their collectives."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct
from stepscope.core.trace import NONE, Int64

_MIN_SHARE = 0.4
"""Share of the collectives in the time both recorded that must be found under an offset for it to
be one."""
_LOST_COST = 3.5
"""What an entry without a partner costs, in nats: recorders lose about 3 in 100."""
_FLOOR_NS = 10_000
"""Distance of ends below which it says nothing: the grain of device timestamps and NCCL's own
skew."""
_NUM_ANCHORS = 128
_NUM_CANDIDATES = 8
_GAP_CAP_NS = 100_000_000
_STEP_BONUS = 0.2
"""Bonus for equal step numbers: they may be counted from each rank's own first step, so they break
ties alone."""
_FAR_PENALTY = 0.1
"""Penalty per e-fold of offset beyond a millisecond: among equal candidates the smallest wins, as
hosts' clocks are roughly set."""
DOUBT_NS, _SAME_NS = 1_000_000, 10_000_000
_SAME_SHARE = 0.08
"""An offset of 1 to 10 ms from which one end in twelve
strays towards zero is scatter around one clock."""


class Track(Struct, frozen=True, kw_only=True):
    """One rank's entries, sorted by end, with numbers that mean the same on all ranks."""

    rank: int
    entry: Int64
    """Index into the rank's collective records."""
    group: Int64
    """The process group, or one direction between two of its ranks, as a number."""
    token: Int64
    """Group, operation, type and size as a number: equal on all ranks that take part."""
    side: Int64
    """1 a send and -1 a receive whose other end is not known; 0 otherwise."""
    firm: Int64
    """1 where nobody can leave before all have come: such ends are simultaneous."""
    start_ns: Int64
    end_ns: Int64
    sequence: Int64
    step: Int64
    number: Int64
    """The step's number where the recording names it, alike on all ranks; else NONE."""
    node: str = ""


TrackPart = tuple[int, Int64]
"""A track's index, and some of its entries."""


class Offset(Struct, frozen=True, kw_only=True):
    """Added to the second rank's clock, the first one's comes out."""

    ns: int
    reach_ns: int
    """How far the ends of one collective still lie apart, but for strays."""
    num: int
    score: float
    fit: float
    """The score by the ends alone, however far the clocks are apart."""
    gap_ns: int = 0
    """How far apart collectives of one kind are: another offset by less pairs the same ones."""
    settled: bool = True
    """False: another offset, which pairs others, fits about as well."""
    numbered: bool = False
    """The two ranks' step numbers mean the same steps."""


class Ends(Struct, frozen=True):
    """Ends of one side, sorted by key and time."""

    key: Int64
    time: Int64
    step: Int64
    gap: Int64


def common(a: Track, b: Track, only_firm: bool, within_steps: bool) -> tuple[Ends, Ends]:
    """Ends of the kinds that both have;
    `within_steps`, a kind is another in each step, and what lies outside is left out."""
    key_a, key_b = a.token, b.token
    if within_steps:
        both = np.stack((np.concatenate((key_a, key_b)), np.concatenate((a.number, b.number))))
        key = np.unique(both, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
        key_a, key_b = key[: len(key_a)], key[len(key_a) :]
    in_a, in_b = np.isin(key_a, key_b), np.isin(key_b, key_a)
    # A send may belong to any rank's receive, where the other rank is not recorded.
    in_a, in_b = in_a & (a.side == 0), in_b & (b.side == 0)
    if within_steps:
        in_a, in_b = in_a & (a.number != NONE), in_b & (b.number != NONE)
    if only_firm:
        in_a, in_b = in_a & (a.firm == 1), in_b & (b.firm == 1)
    return _ends(key_a[in_a], a.end_ns[in_a], a.step[in_a]), _ends(
        key_b[in_b], b.end_ns[in_b], b.step[in_b]
    )


def _ends(key: Int64, time: Int64, step: Int64) -> Ends:
    order = np.lexsort((time, key))
    key, time, step = key[order], time[order], step[order]
    apart = np.full(len(key) + 1, _GAP_CAP_NS, np.int64)
    same = key[1:] == key[:-1]
    apart[1:-1][same] = np.minimum(np.diff(time)[same], _GAP_CAP_NS)
    return Ends(key, time, step, np.minimum(apart[1:], apart[:-1]))


def candidates(a: Ends, b: Ends, window: int) -> list[int]:
    """Where differences between same-kind ends crowd."""
    by_time = np.argsort(a.time, kind="stable")
    anchors = by_time[distinct(np.linspace(0, len(by_time) - 1, _NUM_ANCHORS).astype(np.int64))]
    low = np.searchsorted(b.key, a.key[anchors], "left")
    count = np.searchsorted(b.key, a.key[anchors], "right") - low
    which = np.repeat(low - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    difference = np.sort(np.repeat(a.time[anchors], count) - b.time[which])
    crowd = np.searchsorted(difference, difference + window, "right") - np.arange(len(difference))
    offsets: list[int] = []
    near = np.abs(difference) <= window
    if near.any():
        offsets.append(int(np.median(difference[near])))
    ordered = in_order(a, b)
    if len(ordered):
        offsets.append(int(np.median(ordered)))
    for _ in range(_NUM_CANDIDATES):
        peak = int(np.argmax(crowd))
        if crowd[peak] <= 0:
            break
        last = peak + int(crowd[peak])
        offsets.append(int(np.median(difference[peak:last])))
        begin = int(np.searchsorted(difference, difference[peak] - window, "right"))
        crowd[begin:last] = 0
    return offsets


def in_order(a: Ends, b: Ends) -> Int64:
    """Differences between the ends of kinds that both recorded equally often, one by one."""
    keys, which = np.unique(np.concatenate((a.key, b.key)), return_inverse=True)
    of_a, of_b = which.reshape(-1)[: len(a.key)], which.reshape(-1)[len(a.key) :]
    even = np.bincount(of_a, minlength=len(keys)) == np.bincount(of_b, minlength=len(keys))
    result: Int64 = a.time[even[of_a]] - b.time[even[of_b]]
    return result


def shifts(a: Ends, b: Ends, offset: int, window: int) -> list[int]:
    """The offsets that pair each end with the next of its kind, or with the one before, instead."""
    of_b, of_a = nearest(b.key, b.time + offset, a.key, a.time, window)
    offsets = []
    for by in (-1, 1):
        other = np.clip(of_a + by, 0, len(a.key) - 1)
        is_neighbour = (a.key[other] == a.key[of_a]) & (other != of_a)
        if is_neighbour.any():
            offsets.append(int(np.median(a.time[other[is_neighbour]] - b.time[of_b[is_neighbour]])))
    return offsets


def nearest(
    key: Int64, time: Int64, in_key: Int64, in_time: Int64, window: int
) -> tuple[Int64, Int64]:
    """Nearest in time of the same key among the second (sorted by key and time) for each of the
    first, each taken once.

    Returns indices of the first and of the second.
    """
    if not len(key) or not len(in_key):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    time, in_time, span = _squeezed(time, in_time, window)
    # Key and time in one number, so that one search serves all keys.
    names, number = np.unique(np.concatenate((key, in_key)), return_inverse=True)
    number = number.reshape(-1).astype(np.int64) * span
    assert len(names) * span < 2**62
    flat, in_flat = number[: len(key)] + time, number[len(key) :] + in_time
    right = np.searchsorted(in_flat, flat)
    left = np.clip(right - 1, 0, len(in_flat) - 1)
    right = np.clip(right, 0, len(in_flat) - 1)
    pick = np.where(np.abs(in_flat[left] - flat) <= np.abs(in_flat[right] - flat), left, right)
    off = np.abs(in_flat[pick] - flat)
    order = np.lexsort((off, pick))
    first = np.ones(len(order), np.bool_)
    first[1:] = pick[order][1:] != pick[order][:-1]
    taken = order[first & (off[order] <= window)]
    taken.sort()
    return taken, pick[taken]


def _squeezed(time: Int64, in_time: Int64, window: int) -> tuple[Int64, Int64, int]:
    """Times from zero with no gap wider than twice the window and more:
    a stray time of zero must not make numbers overflow."""
    both = np.concatenate((time, in_time))
    order = np.argsort(both, kind="stable")
    flat = np.empty(len(both), np.int64)
    flat[order] = np.cumsum(
        np.minimum(np.diff(both[order], prepend=both[order[0]]), 2 * window + 1)
    )
    return flat[: len(time)], flat[len(time) :], int(flat.max()) + 2 * window + 1


def judge(a: Ends, b: Ends, offset: int, window: int) -> Offset | None:
    """How well an offset explains the ends:
    how near they lie, against how far apart collectives are, and how many stay alone."""
    for _ in range(2):
        of_b, of_a = nearest(b.key, b.time + offset, a.key, a.time, window)
        if not len(of_a):
            return None
        difference = a.time[of_a] - b.time[of_b]
        offset = centre(difference)
    num = len(of_a)
    begin = max(int(a.time.min()), int(b.time.min()) + offset) - window
    end = min(int(a.time.max()), int(b.time.max()) + offset) + window
    inside_a = max(num, int(((a.time >= begin) & (a.time <= end)).sum()))
    inside_b = max(num, int(((b.time + offset >= begin) & (b.time + offset <= end)).sum()))
    if num < _MIN_SHARE * min(inside_a, inside_b):
        return None
    residual = np.abs(difference - offset)
    width = (
        np.abs(_without_drift(difference - offset, a.time[of_a])) + np.median(residual) + _FLOOR_NS
    ) * (1 + 4 / num)
    lost = inside_a + inside_b - 2 * num
    score = (float(np.log1p(a.gap[of_a] / width).sum()) - _LOST_COST * lost) / (num + lost / 2)
    # One agreement is spent on the offset itself; recordings mostly cover the same steps.
    score *= (
        (num - 1) / num * float(np.sqrt(num / min(len(a.time), len(b.time)))) if num > 1 else 0.2
    )
    has_step = (a.step[of_a] != NONE) & (b.step[of_b] != NONE)
    if has_step.any():
        score += _STEP_BONUS * float((a.step[of_a][has_step] == b.step[of_b][has_step]).mean())
    far = _FAR_PENALTY * float(np.log1p(abs(offset) / 1_000_000))
    gap = int(np.median(a.gap[of_a]))
    return Offset(
        ns=offset, reach_ns=reach_of(residual), num=num, score=score - far, fit=score, gap_ns=gap
    )


def reach_of(residual: Int64) -> int:
    """The greatest; where it is far beyond most, both ranks lost events,
    and the far ones are no pairs."""
    return int(min(float(residual.max()), 3 * float(np.percentile(residual, 80))))


def centre(difference: Int64) -> int:
    """The median; zero where the differences scatter around it,
    as they do when processes take turns on one device."""
    middle = int(np.median(difference))
    if DOUBT_NS < abs(middle) < _SAME_NS:
        strays = difference * (1 if middle > 0 else -1) < abs(middle) / 2
        if int(strays.sum()) >= max(1.0, _SAME_SHARE * len(difference)):
            return 0
    return middle


def _without_drift(residual: Int64, time: Int64) -> Int64:
    """Residuals less a steady drift between the clocks."""
    if len(residual) < 8:
        return residual
    order = np.argsort(time)
    half = len(order) // 2
    early, late = order[:half], order[half:]
    run = float(np.median(time[late]) - np.median(time[early]))
    rise = float(np.median(residual[late]) - np.median(residual[early]))
    # Crystals differ by less than 200 parts in a million.
    if run <= 0 or abs(rise) > 2e-4 * run:
        return residual
    drift: Int64 = (rise / run * (time - time[order[half]])).astype(np.int64)
    return residual - drift
