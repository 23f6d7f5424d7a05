"""How far two ranks' clocks are apart, from the ends of collectives that both took part in.

A collective that synchronises ends at the same instant on all its ranks. Under the right offset the
two ranks' ends of one kind lie on each other; under a wrong one (a whole step further, say) they
lie apart by as much as the steps' lengths vary.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from stepscope.analyses.collectives.clock_offsets import (
    DOUBT_NS,
    Ends,
    Offset,
    Track,
    candidates,
    centre,
    common,
    in_order,
    judge,
    reach_of,
    shifts,
)
from stepscope.core.trace import NONE, Int64

WINDOWS_NS = (1_000_000, 5_000_000, 20_000_000)
"""How far apart two ranks' ends of one collective may lie: on a device of its own microseconds, on
one that processes share by turns or on a loaded host milliseconds."""
_SAME_FACTOR = 1.3
"""How much better another offset must be than one clock that explains as many ends."""
_CHANCE = 20
"""Part of the distance between collectives of one
kind within which an offset of zero is no chance."""
_ALIKE = 0.9
"""Share of collectives with equal step numbers from which on the numbers mean the same steps."""
_EVEN = 0.9
"""Share of ends in kinds and steps of equal number on both
ranks from which on nothing was lost but at the rims."""
_MARGIN = 2.5
"""Difference by which an offset must fit better than the next one that pairs others, in the scatter
of such figures: a collective's varies by about one nat, the mean of n by one over the root of n."""
_MISCOUNTED = 1.0
"""Nats a collective by which ends must fit better against the step numbers than with them for the
numbers to be wrong."""


class Clocks(Struct, frozen=True, kw_only=True):
    """The ranks' clocks, by index: sets of ranks tied together, each by the clock of its root."""

    offset_ns: Int64
    """Added to a rank's clock gives its root's."""
    reach_ns: Int64
    """How far a rank's ends lie from others' of the same collective."""
    root: Int64
    numbered: list[bool]
    """Whether the step numbers of a rank mean the same steps as its root's."""
    partner: dict[int, int] = field(default_factory=dict)
    """Whom each was compared with, in the order they were tied; roots: themselves."""
    vague: set[int] = field(default_factory=set)
    """Ranks for which several offsets fitted alike."""

    @classmethod
    def apart(cls, num: int) -> Clocks:
        none = np.zeros(num, np.int64)
        return cls(offset_ns=none, reach_ns=none.copy(), root=np.arange(num), numbered=[True] * num)

    def begin(self, index: int) -> None:
        """A set of its own."""
        self.partner[index] = index

    def tie(self, index: int, other: int, offset: Offset) -> bool:
        """Into the other's set; False where the offset is in doubt."""
        if not offset.settled:
            self.vague.add(index)
            return False
        root = int(self.root[other])
        self.partner[index], self.root[index] = other, root
        self.offset_ns[index] = self.offset_ns[other] + offset.ns
        self.reach_ns[index] = offset.reach_ns
        self.reach_ns[root] = max(self.reach_ns[root], offset.reach_ns)
        self.numbered[index] = self.numbered[other] and offset.numbered
        return True


def offset_between(a: Track, b: Track) -> Offset | None:
    """The offset that explains most of two ranks' ends best;
    None where they have nothing in common.

    Equal sequence numbers settle it. Else ends are compared within steps of one number, and across
    all steps only where that finds nothing or fits far worse: ranks that began to count apart.
    """
    counted = _by_sequence(a, b)
    if counted is not None:
        return counted
    inside = _by_ends(a, b, within_steps=True)
    if inside is not None and inside.settled and inside.reach_ns <= WINDOWS_NS[0]:
        return inside
    across = _by_ends(a, b, within_steps=False)
    if inside is None or across is None:
        return across if inside is None else inside
    if abs(across.ns - inside.ns) <= inside.gap_ns // 2:
        return replace(inside, settled=inside.settled or across.settled)
    return across if across.settled and across.score > inside.score + _MISCOUNTED else inside


def _by_sequence(a: Track, b: Track) -> Offset | None:
    keys = []
    for track in (a, b):
        numbered = np.flatnonzero((track.sequence != NONE) & (track.firm == 1))
        keys.append((numbered, np.stack((track.token[numbered], track.sequence[numbered]))))
    (in_a, key_a), (in_b, key_b) = keys
    if not len(in_a) or not len(in_b):
        return None
    _, which = np.unique(np.concatenate((key_a, key_b), axis=1), axis=1, return_inverse=True)
    which = which.reshape(-1)
    _, of_a, of_b = np.intersect1d(which[: len(in_a)], which[len(in_a) :], return_indices=True)
    if not len(of_a):
        return None
    entry_a, entry_b = in_a[of_a], in_b[of_b]
    difference = a.end_ns[entry_a] - b.end_ns[entry_b]
    offset = centre(difference)
    has_number = (a.number[entry_a] != NONE) & (b.number[entry_b] != NONE)
    alike = (
        bool(has_number.any())
        and float((a.number[entry_a][has_number] == b.number[entry_b][has_number]).mean()) > _ALIKE
    )
    reach = int(np.abs(difference - offset).max())
    return Offset(
        ns=offset, reach_ns=reach, num=len(entry_a), score=np.inf, fit=np.inf, numbered=alike
    )


def _by_ends(a: Track, b: Track, *, within_steps: bool) -> Offset | None:
    for only_firm in (True, False):
        first, second = common(a, b, only_firm, within_steps)
        if len(first.time) >= (4 if only_firm else 1) and len(second.time):
            break
    else:
        return None
    if within_steps and (even := _by_order(first, second)):
        return even
    offsets: list[Offset] = []
    for window in WINDOWS_NS:
        results = [
            offset
            for candidate in candidates(first, second, window)
            if (offset := judge(first, second, candidate, window))
        ]
        most = max((offset.num for offset in results), default=0)
        # A few ends at the rims of two recordings can agree
        # by chance better than all of them do by right.
        offsets += [offset for offset in results if offset.num * 3 >= most]
        if most == min(len(first.time), len(second.time)):
            break
    if not offsets:
        return None
    best = max(offsets, key=lambda offset: offset.score)
    is_same_node = bool(a.node) and a.node == b.node
    if same := _one_clock(offsets, best, is_same_node=is_same_node, within_steps=within_steps):
        return replace(same, numbered=within_steps)
    for shift in shifts(first, second, best.ns, WINDOWS_NS[-1]):
        offsets += [
            offset for window in WINDOWS_NS if (offset := judge(first, second, shift, window))
        ]
    rivals = [offset.fit for offset in offsets if abs(offset.ns - best.ns) > best.gap_ns // 2]
    ahead = best.fit - max(rivals, default=-np.inf)
    return replace(best, settled=ahead * np.sqrt(best.num) >= _MARGIN, numbered=within_steps)


def _by_order(a: Ends, b: Ends) -> Offset | None:
    """Where both ranks have equally many of nearly each kind in each step:
    nothing was lost, and the first is the first."""
    difference = in_order(a, b)
    if len(difference) < _EVEN * max(len(a.time), len(b.time)):
        return None
    offset = centre(difference)
    judged = judge(a, b, offset, WINDOWS_NS[-1])
    if judged is None:
        return None
    return replace(judged, ns=offset, reach_ns=reach_of(np.abs(difference - offset)), numbered=True)


def _one_clock(
    offsets: list[Offset], best: Offset, *, is_same_node: bool, within_steps: bool
) -> Offset | None:
    """The best of those that say the clocks are one,
    where that is known or as likely as the best of all."""
    near = [offset for offset in offsets if abs(offset.ns) <= DOUBT_NS]
    if not is_same_node:
        near = [offset for offset in near if offset.num >= best.num]
        near = [
            offset
            for offset in near
            if offset.score * _SAME_FACTOR >= best.score or offset.reach_ns <= best.reach_ns
        ]
    if not is_same_node and not within_steps:
        # Where collectives follow each other closely, some wrong offset always lies near zero.
        near = [offset for offset in near if abs(offset.ns) <= offset.gap_ns // _CHANCE]
    return max(near, key=lambda offset: offset.score, default=None)
