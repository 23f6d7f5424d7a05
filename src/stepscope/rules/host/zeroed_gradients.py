"""Gradients are written with zeros instead of being dropped.

What it sees: work inside `Optimizer.zero_grad`.

Why it costs: each gradient takes a launch of the host's and a pass over its memory; and the next
backward pass adds to zeros where it could hand its own tensors over.

Evidence it needs: the `Optimizer.zero_grad` mark, which PyTorch's own optimizers write.

What to do: `optimizer.zero_grad()`, whose default since torch 2.0 is `set_to_none=True`.

Example: `zero_grad(set_to_none=False)` of SGD launches a kernel for each of 148 parameters, a step.
"""

from __future__ import annotations

import re

from stepscope.analyses.intervals import join
from stepscope.core.trace import Kind
from stepscope.rules.case import Case
from stepscope.rules.evidence import ZERO_GRAD
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import (
    calls_inside,
    named_events,
    ranges_of,
    tasks_of,
    without_ranges,
)
from stepscope.rules.shared.micro_batches import begun_by_operators

ADDED_UP = re.compile(r"AccumulateGrad$")


def propose(case: Case) -> Proposal | None:
    """Drop the gradients: nothing is written, and what one backward pass gives is not added."""
    graph = case.graph
    zeroing = ranges_of(case, named_events(case, ZERO_GRAD, Kind.MARK))
    adding = ranges_of(case, named_events(case, ADDED_UP, Kind.OP))
    passes = max(map(len, begun_by_operators(case.context)), default=0)
    tasks = tasks_of(graph, calls_inside(graph, zeroing))
    num = tasks.sum() / graph.num_steps
    if num < 1:
        return None
    return Proposal(
        summary=f"zero_grad writes zeros: {num:.0f} kernels or operators a step.",
        action="optimizer.zero_grad(set_to_none=True), the default since torch 2.0",
        evidence=(f"{num:.0f} launches a step inside Optimizer.zero_grad",),
        events=graph.task_event[tasks],
        # Of several passes all but the first add to what is there.
        change=lambda before: without_ranges(
            case, before, zeroing if passes > 1 else join(zeroing, adding)
        ),
        cautious=lambda before: without_ranges(case, before, zeroing),
    )


RULE = Rule(code="zeroed-gradients", bound="host", text=__doc__, propose=propose)
