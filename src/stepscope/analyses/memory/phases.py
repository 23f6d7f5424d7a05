"""Forward, backward or optimizer: which part of a step the host was in at any moment."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.analyses.host.nesting import is_within
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.projection import BACKWARD_RANGE, OPTIMIZER_RANGE
from stepscope.core.trace import NONE, Bool, Int64, Kind

FORWARD, BACKWARD, UPDATE = 0, 1, 2


class PhaseRuns(Struct, frozen=True, kw_only=True):
    """Stretches of one phase, in order of time."""

    start_ns: Int64
    phase: Int64

    def run_at(self, moments: Int64) -> Int64:
        """The number of the stretch each moment is in; what is before all of them is in the
        first."""
        return np.maximum(np.searchsorted(self.start_ns, moments, side="right") - 1, 0)

    def has_between(self, phase: int, first: Int64, last: Int64) -> Bool:
        """Whether a stretch of that phase comes after `first` and not after `last`."""
        num = np.concatenate([[0], np.cumsum(self.phase == phase)])
        between: Bool = num[last + 1] > num[np.minimum(first, last) + 1]
        return between


def phase_runs(context: RankContext) -> PhaseRuns | None:
    """None where no backward pass was recorded."""
    trace, links = context.trace, context.links
    backward, update = matching(trace, BACKWARD_RANGE), matching(trace, OPTIMIZER_RANGE)
    host = ~trace.device_work & ~trace.is_kind(Kind.DEVICE_MARK, Kind.SYNC)
    backward, update = backward & host, update & host
    if not backward.any():
        return None
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & _training_threads(context)[trace.thread])
    plain = ops[~is_within(trace, links.parent, ops, backward | update)]
    events = np.concatenate([plain, np.flatnonzero(backward), np.flatnonzero(update)])
    phase = np.concatenate(
        [
            np.full(len(plain), FORWARD),
            np.full(int(backward.sum()), BACKWARD),
            np.full(int(update.sum()), UPDATE),
        ]
    )
    order = np.argsort(trace.start_ns[events], kind="stable")
    start, phase = trace.start_ns[events][order], _with_clipping(phase[order])
    begins = np.flatnonzero(np.concatenate([[True], phase[1:] != phase[:-1]]))
    return PhaseRuns(start_ns=start[begins], phase=phase[begins])


def _training_threads(context: RankContext) -> Bool:
    """Threads that launch work: operators of others, which pin batches, are in no phase."""
    threads = np.zeros(len(context.trace.threads), np.bool_)
    launch = context.links.launch[context.charges.work]
    threads[context.trace.thread[launch[launch != NONE]]] = True
    return threads


def _with_clipping(phase: Int64) -> Int64:
    """What runs between a backward pass and the optimizer is the optimizer's: gradients are
    clipped there."""
    known = phase != FORWARD
    indices = np.arange(len(phase))
    before = np.maximum.accumulate(np.where(known, indices, NONE))
    after = np.minimum.accumulate(np.where(known, indices, len(phase))[::-1])[::-1]
    bounded = ~known & (before >= 0) & (after < len(phase))
    inside = bounded.copy()
    inside[bounded] = (phase[before[bounded]] == BACKWARD) & (phase[after[bounded]] == UPDATE)
    result: Int64 = np.where(inside, UPDATE, phase)
    return result
