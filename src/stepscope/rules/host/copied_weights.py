"""The weights are copied or averaged anew after every update.

What it sees: on a run without a device, operators over tensors of the weights' sizes between an
optimizer's step and the next forward pass, for half of the weights and more: `deepcopy` of a model
or of its `state_dict`, an average of weights made with new tensors.

Why it costs: each pass reads all weights and writes as many bytes, mostly into memory that is new
to the process; and an operator is called for each of them.

Evidence it needs: operators with their shapes (`record_shapes=True`), which `stepscope run`
records. Stacks (`with_stack=True`) name the line.

What to do: copies every so many steps, or of the state that is to be kept alone. An average in
place, in one call: `torch._foreach_lerp_(averages, weights, 0.001)`, which is what
`torch.optim.swa_utils.AveragedModel` does, and every 10th step (with as much more weight) does as
well. The gain is that of a copy every 50th step, or of one pass for an average in place of several;
half of it at the least.

Example: `deepcopy(model.state_dict())` twice a step around an average took 14 of 35 ms.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.weights import first_tensor, trained_weights
from stepscope.core.trace import NONE, Bool, Int64
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_tasks import home_of, in_optimizer, reading

CODE = "copied-weights"
BOUND = "host"
COPIES = re.compile(r"^aten::(clone|copy_|_to_copy|to|contiguous)$")
NO_PASS = re.compile(
    r"^aten::(zero_|\w+_like|new_empty|detach_?|view|alias|set_|select|slice|t|transpose)$"
)
"""Zeros of gradients, which are as large as the weights; and what moves no bytes."""
MIN_BYTES = 4096
"""Bytes of a weight that counts: other tensors are as large as small ones too."""
MIN_PASSES = 0.5
"""Over all weights, a step."""
EVERY = 50
"""Steps, of which one still copies."""


def propose(case: Case) -> Proposal | None:
    """A copy now and then; an average in one pass."""
    graph = case.graph
    trained = trained_weights(case.context)
    if not graph.on_host or trained is None or (case.kinds is not None and case.kinds.comms.all()):
        return None
    read, segment = _read_of_weights(case, graph, frozenset(trained.sizes))
    passes = float(read.sum()) / max(graph.num_steps, 1) / max(trained.size_bytes, 1)
    if passes < MIN_PASSES:
        return None
    trace, tasks = case.context.trace, np.flatnonzero(read)
    names = Counter(str(trace.names[trace.name[at]]) for at in graph.task_event[tasks].tolist())
    averages = any(not COPIES.match(name) for name in names)
    left = max(1 / EVERY, 1 / max(passes, 1.0)) if averages else 1 / EVERY
    if left >= 1:
        return None
    mask = _stretches(read > 0, segment)
    within = mask & np.append(mask[1:], False)
    spent_ns = np.where(mask, graph.task_ns, 0) + np.where(within, graph.call_parts["work"], 0)
    most = " and ".join(name for name, _ in names.most_common(2))
    return Proposal(
        summary=f"All weights are {'averaged' if averages else 'copied'} after each update: "
        f"{float(spent_ns.sum()) / max(graph.num_steps, 1) / 1e6:.2f} ms a step.",
        action="average in place, in one call (torch._foreach_lerp_, "
        "torch.optim.swa_utils.AveragedModel), or every 10th step"
        if averages
        else f"copy the weights every {EVERY}th step, or those alone that are to be kept",
        evidence=(
            (
                f"{passes:.1f} passes over the weights a step, most of {most}, between the "
                "optimizer's step and the next forward pass"
            ),
        ),
        events=graph.task_event[mask],
        events_ns=spent_ns[mask],
        change=lambda before: _left(before, mask, within, left),
        cautious=lambda before: _left(before, mask, within, (1 + left) / 2),
    )


def _read_of_weights(case: Case, graph: Graph, sizes: frozenset[int]) -> tuple[Int64, Int64]:
    """Bytes that each task reads of a tensor as large as a weight after an update, 0 of others; and
    which update that is. By size, for a copied storage has no shape."""
    trace, events = case.context.trace, graph.task_event
    optimizer, home = in_optimizer(case, graph), home_of(case, graph)
    training = trace.fwd_thread[events] > 0
    training[home[home != NONE]] = True
    place = np.arange(len(events))
    updated = np.maximum.accumulate(np.where(optimizer, place, NONE))
    trained = np.maximum.accumulate(np.where(training, place, NONE))
    apart = optimizer | reading(case) | matching(trace, NO_PASS)[events]
    wanted = np.flatnonzero((updated > trained) & ~apart & (trace.detail[events] >= 0))
    read = np.zeros(len(events), np.int64)
    size_of: dict[int, int] = {}
    for task in wanted.tolist():
        detail = int(trace.detail[events[task]])
        if detail not in size_of:
            tensor = first_tensor(trace, int(events[task]))
            size_of[detail] = 0 if tensor is None or tensor[1] not in sizes else tensor[1]
        read[task] = size_of[detail] if size_of[detail] >= MIN_BYTES else 0
    return read, updated


def _stretches(chosen: Bool, segment: Int64) -> Bool:
    """Mask from the first to the last after each update: what lies between is of the same work."""
    mask = np.zeros(len(chosen), np.bool_)
    for each in distinct(segment[chosen]).tolist():
        inside = np.flatnonzero(chosen & (segment == each))
        mask[inside[0] : inside[-1] + 1] = True
    return mask


def _left(graph: Graph, mask: Bool, within: Bool, share: float) -> Graph:
    work = graph.call_parts["work"]
    return replace(
        graph,
        task_ns=np.where(mask, graph.task_ns * share, graph.task_ns),
        call_parts=graph.call_parts | {"work": np.where(within, work * share, work)},
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, includes=("python-overhead",))
