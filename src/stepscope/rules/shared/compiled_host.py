"""What the host does in a compiled model: it enters it, hands its parameters over, and launches
fewer kernels.

A compiled model is entered through guards and wrappers, each parameter is checked, passed on and
given its gradient one by one, and kernels are launched from generated Python or as CUDA graphs. All
of it is told in launches of an operator before compiling: what that takes says how fast this host
is. An operator of several kernels (a batch norm, the gradient of an embedding, which sorts) is
entered once, its further kernels take little more; each kernel that a compiler writes is a launch.

Python of the model's own, from one module to the next, is traced once and gone: in eager models of
transformers 50 to 200 us at a time, a tenth of the host's work. What takes the host longer than a
module's bookkeeping (a sleep, a file, numpy) is not traced, and stays. So does the training loop:
what it launches and reads between a backward and the next forward is not compiled.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.analyses.host.activity import SHORT_GAP_NS
from stepscope.analyses.intervals import contains, join
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind
from stepscope.replay.changes import Change, without_waits
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared import between_operators
from stepscope.rules.shared.fusible_runs import num_compiled_kernels
from stepscope.rules.shared.host_costs import host_costs
from stepscope.rules.shared.host_ranges import (
    INNER_LAUNCH,
    call_of_task,
    calls_inside,
    named_events,
    ranges_of,
    tasks_of,
)
from stepscope.rules.task_table import TaskTable
from stepscope.workload.operands import operand

OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
"""What compiling the model leaves alone: the optimizer runs as before."""
RECURRENT = re.compile(r"^aten::(_cudnn|miopen)_rnn(_backward)?$")
"""Layers of nn.RNN, GRU and LSTM, which torch.compile leaves as they are (torch 2.11:
`torch._dynamo.config.allow_rnn` is False)."""
BETWEEN_PIECES = re.compile(r"^aten::(_cudnn|miopen)_rnn$")
"""Forward ends one compiled piece of the model there and enters the next."""
CHECK = re.compile(r"^aten::is_nonzero$")
REGION = re.compile(r"^Torch-Compiled Region|^CompiledFunction|^## Call CompiledFxGraph")
GRADIENT = re.compile(r"^torch::autograd::AccumulateGrad$")
BATCH_NORM = re.compile(r"^aten::batch_norm$")
NORM_BUFFERS = 3
"""Running mean and variance, and the number of batches."""


class Policy(Struct, frozen=True, kw_only=True):
    """Costs in launches of an operator before compiling; of 26 host-bound models before and after
    `torch.compile`, 18 of them in `reduce-overhead` too (H200 hosts, torch 2.11)."""

    per_parameter: float = 0.4
    """Checked by a guard, handed to two graphs, and its gradient accumulated."""
    per_buffer: float = 0.2
    """Cost of each of a batch norm's three buffers: checked and handed to one graph, and it has no
    gradient."""
    per_saved_captured: float = 0.1
    """A tensor that the forward leaves for the backward is an output of one CUDA graph and an input
    of the other, which Python wraps and checks; there are about as many as kernels of the compiled
    forward. Of one recording: 3.2 of 9.2 ms around the graphs, for 350 kernels and 202
    parameters."""


POLICY = Policy()
OPEN_SHARE = 0.3
"""How much more or less all of it may be."""


def is_compiled(case: Case) -> bool:
    """Whether some of the model is compiled already."""
    return bool(matching(case.replayed, REGION).any())


@once_a_case
def model_launches(case: Case) -> Bool:
    """Calls that compiling reaches: launches of kernels outside the optimizer, the loop around the
    model, recurrent layers, the loader, saving and compiling; not copies from the host, not what is
    a CUDA graph already."""
    mask: Bool = launches_of_kernels(case) & ~_in_optimizer(case) & ~_in_loop(case)
    return mask & ~_in_recurrent(case)


@once_a_case
def _in_recurrent(case: Case) -> Bool:
    return calls_inside(case.graph, ranges_of(case, named_events(case, RECURRENT, Kind.OP)))


@once_a_case
def _in_optimizer(case: Case) -> Bool:
    marks = named_events(case, OPTIMIZER, Kind.MARK, Kind.OP)
    return calls_inside(case.graph, ranges_of(case, marks))


@once_a_case
def _in_loop(case: Case) -> Bool:
    """Calls of the training loop, which is not compiled: those after a backward and before the next
    forward, up to the last of them that is the optimizer's or waits. Gradients are clipped there,
    numbers are read and logged. A product is a model's, trained or not."""
    graph, table = case.graph, case.table
    num = len(graph.call_event)
    if not table.backward.any():
        return np.zeros(num, np.bool_)
    call_of, launched = call_of_task(graph), np.arange(num)
    backward, forward = np.zeros(num, np.bool_), np.zeros(num, np.bool_)
    backward[call_of[table.backward]] = True
    homes = table.home[table.backward & (table.home != table.op)]
    of_model = table.is_matrix | np.isin(table.op, homes[homes != NONE])
    forward[call_of[of_model & ~table.backward & ~table.optimizer]] = True
    checks = calls_inside(graph, ranges_of(case, named_events(case, CHECK, Kind.OP)))
    marker = _in_optimizer(case) | ((graph.call_wait != NONE) & ~checks)
    between = _last(forward, launched) <= _last(backward, launched)
    in_model = np.minimum(_next(forward, launched), _next(backward, launched))
    mask: Bool = between & ~backward & (_next(marker, launched) < in_model)
    return mask


def _last(mask: Bool, index: Int64) -> Int64:
    """Last masked entry up to each; NONE before the first."""
    last: Int64 = np.maximum.accumulate(np.where(mask, index, NONE))
    return last


def _next(mask: Bool, index: Int64) -> Int64:
    """Next masked entry from each on; past the end after the last."""
    following: Int64 = np.minimum.accumulate(np.where(mask, index, len(index))[::-1])[::-1]
    return following


@once_a_case
def launches_of_kernels(case: Case) -> Bool:
    """The same, the optimizer's among them."""
    context, graph = case.context, case.graph
    trace, host = context.trace, context.host
    count = np.diff(graph.call_first)
    outside = ~contains(join(host.input, host.io, host.compile), graph.call_start_ns)
    from_host = np.zeros(len(graph.call_event), np.bool_)
    copies = (trace.kind[graph.task_event] == Kind.MEMCPY) & (graph.task_ns > 0)
    from_host[np.repeat(np.arange(len(count)), count)[copies]] = True
    mask: Bool = outside & ~from_host & (count == 1) & (graph.call_wait == NONE)
    return mask


@once_a_case
def model_kernels(case: Case) -> Bool:
    """The kernels of the model's launches."""
    kernels = case.context.trace.kind[case.graph.task_event] == Kind.KERNEL
    mask: Bool = kernels & tasks_of(case.graph, model_launches(case))
    return mask


@once_a_case
def launch_weight(case: Case) -> Float64:
    """Weight of each task in launches: the first kernel of an operator is one, each further one
    little more. An operator is entered once, and so is the kernel that a compiler writes."""
    op = case.table.op
    is_first = np.diff(op, prepend=NONE) != 0
    return np.where(is_first | (op == NONE), 1.0, INNER_LAUNCH)


@once_a_case
def num_left(case: Case, *, launches: bool = False) -> float:
    """Number that is left of them when compiled, a step: kernels, or launches of them."""
    counters = model_kernels(case) & case.table.where(partial(_is_counter, case.table))
    weight = launch_weight(case) if launches else None
    left = num_compiled_kernels(case, model_kernels(case), weight)
    return left + int(counters.sum()) / max(case.graph.num_steps, 1)


def _is_counter(table: TaskTable, op: int) -> bool:
    """A batch norm counts its batches: no other operator reads that number, so that the compiler
    writes a kernel for each."""
    inputs = table.inputs(op)
    counted = None if inputs is None else operand(inputs, 0)
    is_one = counted is not None and counted.numel == 1 and counted.dtype == "int64"
    return is_one and table.op_name(op) == "aten::add_"


def compiled_work(case: Case, slowdown: float = 1.0) -> Change:
    """The host enters the compiled model and launches what is left of its kernels, `slowdown` times
    as slowly."""
    costs = host_costs(case)
    launched = costs.per_launch * num_left(case, launches=True)
    return with_launches(case, slowdown * (_entering(case, costs.entering) + launched))


@once_a_case
def without_checks(case: Case) -> Change:
    """A model that looks at its mask before it begins (`if mask.all()`) waits for the device at the
    start of every step; transformers skips that when it is compiled."""
    graph, table = case.graph, case.table
    checks = calls_inside(graph, ranges_of(case, named_events(case, CHECK, Kind.OP)))
    products = np.flatnonzero(table.is_matrix)
    first = np.full(graph.num_steps + 1, len(graph.call_event))
    np.minimum.at(first, graph.task_step[products], call_of_task(graph)[products])
    step = np.clip(graph.call_step, 0, graph.num_steps)
    mask = checks & (np.arange(len(graph.call_event)) < first[step])
    return lambda before: without_waits(before, mask)


def captured_work(case: Case, slowdown: float = 1.0) -> Change:
    """The host's time around the CUDA graphs of a compiled model, launching them left out."""
    saved = POLICY.per_saved_captured * _num_saved(case)
    entering = _entering(case, host_costs(case).entering_captured)
    return with_launches(case, slowdown * (entering + saved))


def _entering(case: Case, once: float) -> float:
    """Around all kernels of a compiled model, a step; `once` for each of its pieces."""
    pieces = 1 + _per_step(case, BETWEEN_PIECES)
    parameters, buffers = _per_step(case, GRADIENT), NORM_BUFFERS * _per_step(case, BATCH_NORM)
    return once * pieces + POLICY.per_parameter * parameters + POLICY.per_buffer * buffers


@once_a_case
def own_python(case: Case) -> Float64:
    """Host's work after each call in long stretches of Python, which no compiling takes away."""
    graph = case.graph
    gaps = between_operators.long_gaps(case)
    gaps = gaps.only(gaps.own_ns > SHORT_GAP_NS)
    excess = between_operators.ranges_of(case, gaps, whole=False)
    without = between_operators.without_work_in(case, graph, excess).call_parts["work"]
    own: Float64 = graph.call_parts["work"] - without
    return own


def with_launches(case: Case, num_launches: float) -> Change:
    """The host spends as much on the model as so many of its launches a step take now."""
    mask, own = model_launches(case), own_python(case)
    now = float(launch_weight(case)[model_kernels(case)].sum()) / max(case.graph.num_steps, 1)
    factor = num_launches / max(now, 1.0)

    def change(before: Graph) -> Graph:
        work = before.call_parts["work"]
        kept = np.minimum(own, work)
        changed = np.where(mask, kept + (work - kept) * factor, work)
        return replace(before, call_parts=before.call_parts | {"work": changed})

    return change


def _num_saved(case: Case) -> float:
    """Tensors that the compiled forward leaves for the backward, a step: one for each of its
    kernels but those that count batches, none where nothing goes backward."""
    kernels = model_kernels(case)
    backward = kernels & case.table.backward
    if not backward.any():
        return 0.0
    written = num_compiled_kernels(case, kernels)
    return written * (1.0 - int(backward.sum()) / int(kernels.sum()))


def _per_step(case: Case, name: re.Pattern[str]) -> float:
    """Events of this name, a step."""
    return int(matching(case.replayed, name).sum()) / max(case.graph.num_steps, 1)
