"""Numbers of many tensors are made and read in every step.

What it sees: on a run without a device, stretches of a step in which numbers are read one after the
other (`.item()`, `float()`, `.tolist()`, `.numpy()`), with the norms and means that they are of,
32 and more in a piece. Backward needs nothing of it, and no matrix is multiplied there: models
that read a number here and there, and evaluations, are not meant.

Why it costs: a norm, a mean and a deviation of each parameter are as many operators as a small
model has, and a list of a tensor's numbers makes an object of Python of each.

Evidence it needs: operators (`ProfilerActivity.CPU`). Stacks (`with_stack=True`) name the line.

What to do: log every 50th step; or `torch._foreach_norm` of all gradients and one read of the
stacked norms. Where the numbers are needed in each step (gradients clipped by hand),
`torch.nn.utils.clip_grad_norm_`. The gain is of every 50th step; half of it where they stay.

Example: norm, mean and deviation of 48 parameters and their gradients took 3.5 of a 10 ms step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.core.trace import Bool, Float64
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_tasks import READ, reading

CODE = "logged-tensors"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    every: int = 50
    """Steps, of which one still logs."""
    left: float = 0.5
    """Where the numbers are needed in each step."""


POLICY = Policy()


def propose(case: Case) -> Proposal | None:
    """Read in one step of many."""
    graph = case.graph
    tasks = reading(case)
    if not tasks.any():
        return None
    trace, steps = case.context.trace, max(graph.num_steps, 1)
    spent_ns = np.where(tasks, graph.task_ns, 0.0) + np.where(_within(tasks), _work(graph), 0.0)
    num = int((tasks & matching(trace, READ)[graph.task_event]).sum()) / steps
    names = Counter(
        str(trace.names[trace.name[event]])
        for event in graph.task_event[tasks].tolist()
        if not READ.match(trace.names[trace.name[event]])
    )
    made = " and ".join(name for name, _ in names.most_common(2))
    return Proposal(
        summary=f"{num:.0f} numbers of tensors are made and read in each step: "
        f"{float(spent_ns.sum()) / steps / 1e6:.2f} ms.",
        action=f"log every {POLICY.every}th step; or torch._foreach_norm of all gradients and one "
        "read; to clip, torch.nn.utils.clip_grad_norm_",
        evidence=(
            f"{int(tasks.sum()) / steps:.0f} operators a step make and read them"
            + (f", most of {made}" if made else ""),
        ),
        events=graph.task_event[tasks],
        events_ns=spent_ns[tasks],
        change=lambda before: _less_often(before, tasks, 1 / POLICY.every),
        cautious=lambda before: _less_often(before, tasks, POLICY.left),
    )


def _within(tasks: Bool) -> Bool:
    """Calls whose Python, up to the next one, is of the stretch."""
    within: Bool = tasks & np.append(tasks[1:], False)
    return within


def _work(graph: Graph) -> Float64:
    return graph.call_parts["work"]


def _less_often(graph: Graph, tasks: Bool, left: float) -> Graph:
    work = _work(graph)
    return replace(
        graph,
        task_ns=np.where(tasks, graph.task_ns * left, graph.task_ns),
        call_parts=graph.call_parts | {"work": np.where(_within(tasks), work * left, work)},
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, includes=("python-overhead",))
