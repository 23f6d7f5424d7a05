"""The optimizer updates one parameter at a time.

What it sees: many kernels inside `Optimizer.step`, several for each parameter, where a few
multi-tensor kernels would do.

Why it costs: a loop over parameters launches each operation of the update for each of them:
thousands of launches of small kernels, and every intermediate goes through memory. The host is busy
with them, and so is the device when parameters are large.

Evidence it needs: the `Optimizer.step` mark, which PyTorch's own optimizers write; shapes
(`record_shapes=True`) for the bytes.

What to do: `fused=True` (Adam, AdamW, SGD, Adagrad on CUDA), else `foreach=True`. For an optimizer
of your own: torch._foreach_* operators, or torch.compile(optimizer.step).

Example: AdamW(foreach=False) over 245 parameters took 54.6 ms a step; with fused=True it was 43.2
ms.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching, median
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import Intervals, contains, union
from stepscope.core.diagnosis import Abstention
from stepscope.core.hardware import OperatorCall
from stepscope.core.run import RankMetadata
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.replay.changes import without_tasks
from stepscope.replay.graph import Graph
from stepscope.replay.profiler_cost import USUAL_COST_NS
from stepscope.rules.case import Case
from stepscope.rules.memory.dtype_casts import trained_weights
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import call_of_task, calls_inside, share_inside, tasks_of
from stepscope.rules.shared.measured import probed_time
from stepscope.rules.shared.micro_batches import numbered_micro_batches
from stepscope.rules.shared.rates import STREAM_SHARE

CODE = "looped-optimizer"
BOUND = "host"

STEP = re.compile(r"^Optimizer\.step#")
MULTI_TENSOR = re.compile(
    r"multi_tensor_(apply|lamb)|^aten::_(foreach|fused)_|triton_|Fused(Adam|LAMB)", re.IGNORECASE
)
ROOT = re.compile(r"^aten::(sqrt|rsqrt|addcdiv)_?$")
MOMENTUM = re.compile(r"^aten::(lerp|mul)_$")

FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
"""Classes of torch.optim that take `fused=True`."""

HIGH_COST_NS = 3_000.0
"""Nanoseconds that the profiler costs per recorded operator, at the upper end of what was measured
on one host."""


class Policy(Struct, frozen=True, kw_only=True):
    least_kernels: int = 16
    """Kernels in one Optimizer.step below which there is no loop worth the name."""
    parameter_ns: float = 4_000.0
    """The host's time per parameter that is left: lists of tensors are gathered, grouped and
    checked. lab/optim_loop.fixed: 1.2 to 2.1 ms for 245 parameters."""
    per_kernel: int = 36
    """Tensors a multi-tensor kernel takes at a time, in the middle (ATen: 110 for one list down to
    36 for four)."""
    bandwidth_share: float = 0.72
    """Share of the memory's specified rate that such a kernel reaches: lab/optim_loop.fixed, 7
    passes over 1.47 GB in 2.98 ms."""


POLICY = Policy()


class _Loop(Struct, frozen=True, kw_only=True):
    """The looped part of the optimizer's steps."""

    ranges: Intervals
    """Ranges from the first looped operator of each Optimizer.step to its end."""
    tasks: Bool
    num_parameters: float
    """Parameters per step."""
    left_ns: float
    """Device time of the loop, per step, when it is done at once."""


def propose(case: Case) -> Proposal | Abstention | None:
    """One multi-tensor kernel after another in place of the loop."""
    loop = _loop(case, case.graph)
    if loop is None:
        return None
    steps = case.graph.num_steps
    now_ns = float(case.graph.task_ns[loop.tasks].sum()) / steps
    num = int(loop.tasks.sum()) / steps
    return Proposal(
        summary=f"The optimizer launches {num:.0f} kernels a step for {loop.num_parameters:.0f} "
        "parameters, one at a time.",
        action=_action(case.metadata),
        evidence=(
            f"{num:.0f} kernels a step inside Optimizer.step, {now_ns / 1e6:.2f} ms on the device",
            f"done at once their traffic needs {loop.left_ns / 1e6:.2f} ms",
        ),
        events=case.graph.task_event[loop.tasks],
        change=lambda graph: _at_once(case, graph, loop, POLICY.parameter_ns, 1.0),
        cautious=lambda graph: _at_once(
            case, graph, loop, 2 * POLICY.parameter_ns, 1.5, _unfitted_ns(case)
        ),
        hopeful=lambda graph: _at_once(case, graph, loop, 0.0, 1.0),
        may_slow=True,
    )


def _action(metadata: RankMetadata | None) -> str:
    """The call that makes the job's optimizer, where the run says which one it is."""
    made = () if metadata is None else metadata.optimizers
    kinds = {words.partition(" ")[0] for words in made} & FUSED
    if len(kinds) == 1 == len(made):
        return f"torch.optim.{kinds.pop()}(..., fused=True), or foreach=True where that cannot be"
    return "fused=True for torch.optim's Adam, AdamW and SGD; else foreach=True"


def _at_once(
    case: Case,
    graph: Graph,
    loop: _Loop,
    parameter_ns: float,
    stretch: float,
    unfitted_ns: float = 0.0,
) -> Graph:
    """The loop's host time but for gathering the lists, and its kernels but for as many as carry
    them all at once."""
    inside = calls_inside(graph, loop.ranges)
    spent = graph.call_parts["work"] * share_inside(case, loop.ranges)
    work = graph.call_parts["work"] - np.maximum(
        spent - unfitted_ns * graph.call_events["work"] * inside, 0.0
    )
    task_ns, gone = graph.task_ns.copy(), loop.tasks.copy()
    kept = max(1, int(np.ceil(loop.num_parameters / POLICY.per_kernel)))
    for step in distinct(graph.call_step[inside]).tolist():
        calls = np.flatnonzero(inside & (graph.call_step == step))
        work[calls[0]] += parameter_ns * loop.num_parameters
        tasks = np.flatnonzero(loop.tasks & (graph.task_step == step))[:kept]
        gone[tasks] = False
        task_ns[tasks] = stretch * loop.left_ns / max(len(tasks), 1)
    left = replace(
        graph,
        call_parts=graph.call_parts | {"work": work},
        task_ns=np.where(loop.tasks, task_ns, graph.task_ns),
    )
    return without_tasks(left, gone)


def _unfitted_ns(case: Case) -> float:
    """What the profiler may have cost per event of the loop beyond what was fitted to the step as a
    whole: its cost is not spread evenly, and time it took in the loop was never the loop's to give
    back."""
    fitted = USUAL_COST_NS if case.facts.replayed is None else case.facts.replayed.cost_ns
    return max(HIGH_COST_NS - fitted, 0.0)


def _loop(case: Case, graph: Graph) -> _Loop | None:
    context = case.context
    trace, parent = case.replayed, context.links.parent
    marks = np.flatnonzero(trace.is_kind(Kind.MARK) & matching(trace, STEP))
    if len(marks) == 0:
        return None
    op = ancestor_with(parent, graph.call_event, trace.is_kind(Kind.OP))
    inside = contains(union(trace.start_ns[marks], trace.end_ns[marks]), graph.call_start_ns)
    multi_tensor = matching(trace, MULTI_TENSOR)
    looped = inside & ~multi_tensor[np.maximum(op, 0)] & (op != NONE)
    tasks = (
        tasks_of(graph, looped)
        & (trace.kind[graph.task_event] == Kind.KERNEL)
        & ~multi_tensor[graph.task_event]
    )
    if tasks.sum() < POLICY.least_kernels * graph.num_steps:
        return None
    names = trace.name[op[looped]]
    most = np.bincount(names).max() / graph.num_steps
    # How many parameters the loop visits: the middle of how often each operator occurs.
    counts = np.bincount(names)
    repeats = median(counts[counts > 0]) / graph.num_steps
    return _Loop(
        ranges=_looping(case, marks, op[looped]),
        tasks=tasks,
        num_parameters=min(repeats, float(most)),
        left_ns=_floor_ns(case, graph, tasks, op),
    )


def _looping(case: Case, marks: Int64, ops: Int64) -> Intervals:
    """Ranges in each mark from its first looped operator to its end: what comes before is
    gathering, and stays."""
    trace = case.context.trace
    first = np.sort(trace.start_ns[ops])
    position = np.searchsorted(first, trace.start_ns[marks])
    has_one = position < len(first)
    begin = first[np.minimum(position, len(first) - 1)]
    return union(begin[has_one], trace.end_ns[marks][has_one])


def _floor_ns(case: Case, graph: Graph, tasks: Bool, op: Int64) -> float:
    """The device's time per step for the update at once: each tensor read and written once, at
    memory's rate."""
    context = case.context
    trace = context.trace
    now_ns = float(graph.task_ns[tasks].sum()) / graph.num_steps
    names, named = np.unique(trace.name[op[call_of_task(graph)[tasks]]], return_inverse=True)
    by_op = np.bincount(named, np.nan_to_num(case.table.bytes[tasks]))
    # The operator that moves least reads each parameter-sized tensor once and writes it once.
    least = float(by_op[by_op > 0].min(initial=np.inf)) / 2 / graph.num_steps
    probed = probed_time(context.roofs, _update(case), "fp32+fused", now_ns)
    if probed is not None:
        return probed.ns
    if context.roofs is None or not (by_op > 0).any():
        return now_ns
    # Calibrated or not, such a kernel is as far below other streams as it is in the lab.
    share = POLICY.bandwidth_share * (context.roofs.stream_share(STREAM_SHARE) / STREAM_SHARE)
    rate = context.roofs.spec.bandwidth_bytes_per_s.value * share
    return min(now_ns, _passes([trace.names[name] for name in names.tolist()]) * least / rate * 1e9)


def _update(case: Case) -> OperatorCall | None:
    """The optimizer's class over tensors of its parameters' sizes; None where torch has no such
    class with kernels for many tensors, or the sizes are not known."""
    trace = case.context.trace
    marks = distinct(trace.name[matching(trace, STEP)]).tolist()
    kinds = {trace.names[code].partition("#")[2].partition(".")[0] for code in marks}
    of_model = case.table.backward[~case.table.optimizer & (case.graph.task_step == 0)]
    passes = int(numbered_micro_batches(of_model).max(initial=0)) + 1
    times = passes * max(case.graph.num_steps, 1)
    shapes = sorted(trained_weights(case).items())
    sizes = tuple(shape for shape, count in shapes for _ in range(round(count / times)))
    if len(kinds) != 1 or not sizes or not kinds <= FUSED:
        return None
    return OperatorCall(
        op="optimizer", dims=(sizes, ()), types=("", ""), strides=(), concrete=(*kinds, "")
    )


def _passes(names: list[str]) -> int:
    """Reads and writes of a tensor as large as the parameters: parameter, gradient and what state
    the update keeps."""
    if any(ROOT.search(name) for name in names):
        return 7
    return 5 if any(MOMENTUM.search(name) for name in names) else 3


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
