"""Which part of a step launches a collective: forward, backward or the optimizer;
and how long the backward passes last."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.analyses.grouping import grouped, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.rank_context import RankContext
from stepscope.core.comms import BACKWARD, FORWARD, OPTIMIZER
from stepscope.core.trace import NONE, Int64

Int8 = NDArray[np.int8]

PHASES = ("forward", "backward", "optimizer")
"""Names of core.comms' FORWARD, BACKWARD and OPTIMIZER, in this order."""
SHARDED_BACKWARD = re.compile(r"^(FSDP::|FullyShardedDataParallel\.).*backward")
"""What FSDP does for the backward pass:
its last scatter comes in a callback, when autograd's ranges are over."""


def step_parts(context: RankContext, events: Int64) -> Int64:
    """The part of the step that launched each;
    NONE where its launch is not known, or backward cannot be distinguished."""
    return step_part_of(context)[events].astype(np.int64)


def step_part_of(context: RankContext) -> Int8:
    """The same of every event of the trace."""
    charges = context.origins
    part = np.full(len(context.trace), NONE, np.int8)
    if charges.backward.any():
        part[charges.work] = np.where(charges.launch != NONE, FORWARD, NONE)
        part[charges.work[charges.backward]] = BACKWARD
        marked = ancestor_with(
            context.links.parent, charges.launch, matching(context.trace, SHARDED_BACKWARD)
        )
        part[charges.work[marked != NONE]] = BACKWARD
        part[charges.work[charges.optimizer]] = OPTIMIZER
    return part


def backward_spans(context: RankContext) -> tuple[tuple[int, int, int], ...]:
    """Spans of the steps' backward passes, from the first compute kernel to the end of the last."""
    trace, charges = context.trace, context.origins
    work = charges.work[charges.backward]
    work = work[~context.collective[work]]
    work = work[context.cut.step_of[work] != NONE]
    if len(work) == 0:
        return ()
    order, begins = grouped(context.cut.step_of[work])
    work = work[order]
    first = np.minimum.reduceat(trace.start_ns[work], begins)
    last = np.maximum.reduceat(trace.end_ns[work], begins)
    steps = context.cut.step_of[work[begins]]
    return tuple(zip(steps.tolist(), first.tolist(), last.tolist(), strict=True))
