"""Runs of operators that a compiler makes one kernel of, and how long that takes.

Operators join the run that has written something they read, as far as sizes tell: a trace has
sizes, not addresses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np
from msgspec import Struct

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.replay.changes import Change
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.rates import STREAM_FIXED_NS, STREAM_SHARE, fixed_ns
from stepscope.rules.task_table import TaskTable
from stepscope.workload.inputs import integer_at
from stepscope.workload.operands import Operand, operands, read_bytes, size_bytes


class Policy(Struct, frozen=True, kw_only=True):
    large_bytes: float = 1e6
    """Of one tensor: less stays in the cache."""
    call_instructions: int = 20
    """Per element of a transcendental function or a division, as the CUDA math library expands them
    (expf 8, tanhf and sinf about 25); 2 for anything else."""
    plain_instructions: int = 2
    batch_norm_kernels: int = 3
    """Of a compiled run with a batch norm, besides its own: statistics in two stages, the
    convolution's layout."""
    batch_norm_share: float = 0.7
    """Of a stream's rate, reached by compiled batch norms, which sum over all dimensions but the
    innermost (resnet50 in channels_last on an H200: 1.44 times as fast compiled)."""


POLICY = Policy()

FUSIBLE = (
    "pointwise",
    "norm",
    "softmax",
    "reduction",
    "copy",
    "dropout",
    "loss",
    "index",
    "random",
)
OPAQUE = re.compile(
    r"triton|_foreach|_fused_|embedding|scatter|gather|index_put|nll_loss|cat$|sort|topk|cumsum|_amp_"
)
"""Operators that are compiled already, need passes of their own, or that a compiler leaves
alone."""
FILLING = re.compile(r"::(copy_|fill_|zero_|uniform_|normal_|bernoulli_|random_|exponential_)$")
"""Operators that write their first argument without reading it."""
JOINED = re.compile(r"::(cat|split|stack)$")
"""Operators with kernels of their own that a compiler writes into their neighbours."""
PICKING = re.compile(r"::(index|index_select|gather|embedding)$")
"""Operators that pick rows: a compiled operator that reads them picks them itself."""
ADDING = re.compile(r"index_put")
"""Sorts its numbers first; compiled it adds where each belongs."""
SINGLE = re.compile(r"embedding_dense_backward|index_put|scatter|gather|sort|cumsum")
"""Operators of several kernels that are one when compiled."""
COPY, SUM, COUNTING = "aten::copy_", "aten::sum", "aten::nonzero"
CALLS = re.compile(
    r"exp|tanh|sin|cos|sigmoid|silu|gelu|softmax|erf|log|pow|div|rsqrt|sqrt|reciprocal|mish|softplus"
)


Tensor = tuple[int, str]
"""A number of elements and their type."""


class Traffic(Struct, frozen=True, kw_only=True):
    """What an operator of one name and inputs moves and computes. Bytes."""

    reads: tuple[Tensor, ...]
    read_bytes: tuple[float, ...]
    """Of each of them."""
    large: frozenset[Tensor]
    """Those of them that do not stay in the cache."""
    writes: Tensor | None
    writes_alike: bool
    """As many elements as its largest input has."""
    again: float
    """Of statistics, or gradients of weight and bias, over the other dimensions: a second pass,
    fused or not."""
    moved: float
    instructions: float
    over_batches: bool
    is_norm_backward: bool
    name: str


@dataclass(slots=True, kw_only=True)
class FusibleRun:
    """Operators that could be one kernel. Bytes."""

    backward: bool
    ops: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    live: dict[Tensor, int] = field(default_factory=dict)
    """Written in the run and not taken up yet."""
    seen: set[Tensor] = field(default_factory=set)
    comes_in: float = 0.0
    """Read, and of a size not seen before in the run: surely from outside."""
    may_come_in: float = 0.0
    """Read, and of a size seen before: the same tensor again, or another."""
    goes_out: float = 0.0
    """Of a run of several operators."""
    traffic: float = 0.0
    """Of all the operators as they are."""
    now_ns: float = 0.0
    """Of a run of several operators."""
    instructions: float = 0.0
    grad_in: float = 0.0
    """The largest tensor that the first operator reads."""
    over_batches: bool = False
    """It has a batch norm, whose library kernels are slow for reasons of their own."""
    num_norms_backward: int = 0
    copies: bool = False
    sums: bool = False
    homes: set[int] = field(default_factory=set)
    """Places of the forward runs it is the backward of."""


@once_a_case
def runs_of(case: Case) -> list[FusibleRun]:
    """The runs of the replayed steps; none without shapes."""
    assert case.graph is not None
    if not case.context.trace.meta.has_shapes:
        return []
    return find_runs(case.graph, case.table)


def find_runs(graph: Graph, table: TaskTable) -> list[FusibleRun]:
    """Runs on each stream, in the order they execute; a product, a copy from the host or a step's
    end ends all that are open."""
    fusible, kind = table.of_category(*FUSIBLE), table.trace.kind[graph.task_event]
    joining = _joining(graph, table)
    traffics = _traffics(table, joining)
    ending = (~joining & ~_picking(table) & (table.is_matrix | ~fusible)).tolist()
    is_set, steps = (kind == Kind.MEMSET).tolist(), graph.task_step.tolist()
    ops, backward = table.op.tolist(), table.backward.tolist()
    sequence = np.where(table.home == NONE, NONE, table.trace.sequence[table.home]).tolist()
    away = (table.home != table.op).tolist()
    runs: list[FusibleRun] = []
    by_sequence: dict[int, int] = {}
    for stream in range(graph.num_streams):
        opened: list[int] = []
        last_op, last_run, last_step = NONE, NONE, NONE
        for task in np.flatnonzero(graph.task_stream == stream).tolist():
            op, step = ops[task], steps[task]
            if op == last_op and op != NONE:
                if last_run != NONE:
                    runs[last_run].tasks.append(task)
                continue
            if is_set[task]:
                continue
            if step != last_step or ending[task]:
                opened = []
            last_op, last_run, last_step = op, NONE, step
            traffic = traffics[task]
            if traffic is None:
                continue
            last_run = _run_for(runs, opened, traffic, backward[task])
            run = runs[last_run]
            _join(run, traffic)
            run.ops.append(op)
            run.tasks.append(task)
            _link(run, by_sequence, last_run, sequence[task], is_away=away[task])
    for run in of_several(runs):
        run.now_ns = float(graph.task_ns[run.tasks].sum())
        run.goes_out = sum(count * _bytes_of(tensor) for tensor, count in run.live.items())
    return runs


def _joining(graph: Graph, table: TaskTable) -> Bool:
    kind = table.trace.kind[graph.task_event]
    is_copy = (kind == Kind.MEMCPY) & table.where(lambda op: table.op_name(op) == COPY)
    fusible = table.of_category(*FUSIBLE) | is_copy
    joining: Bool = fusible & table.where(partial(_fits, table)) & ~table.optimizer
    return joining


def _picking(table: TaskTable) -> Bool:
    return table.where(lambda op: PICKING.search(table.op_name(op)) is not None)


@once_a_case
def picked_in_place(case: Case) -> Int64:
    """Tasks that pick rows for an operator that a compiler generates. None where the host counts
    the rows (`nonzero`): the compiler's graphs end there, by default."""
    graph, table = case.graph, case.table
    assert graph is not None
    if any(table.op_name(op) == COUNTING for op in table.example.tolist()):
        return np.empty(0, np.int64)
    picking, joined = _picking(table), table.where(partial(_is_joined, table))
    reading = _joining(graph, table) | joined
    picked = []
    for stream in range(graph.num_streams):
        tasks = np.flatnonzero(graph.task_stream == stream)
        is_read = False
        for task in tasks[::-1].tolist():
            if not picking[task]:
                is_read = bool(reading[task])
            elif is_read:
                picked.append(task)
    return np.array(sorted(picked), np.int64)


def _is_joined(table: TaskTable, op: int) -> bool:
    return JOINED.search(table.op_name(op)) is not None


def of_several(runs: list[FusibleRun]) -> list[FusibleRun]:
    """Those with something to fuse: more than one operator."""
    return [run for run in runs if len(run.ops) > 1]


def tasks_in(runs: list[FusibleRun]) -> Int64:
    """All their tasks."""
    return np.fromiter(chain.from_iterable(run.tasks for run in runs), np.int64)


def _fits(table: TaskTable, op: int) -> bool:
    work = table.work(op)
    if work is None or work.bytes is None:
        return False
    return OPAQUE.search(table.op_name(op)) is None


def _bytes_of(tensor: Tensor) -> float:
    return size_bytes(*tensor) or 0.0


def _run_for(runs: list[FusibleRun], opened: list[int], traffic: Traffic, is_backward: bool) -> int:
    """The latest open run that has written something the operator reads, or a new one."""
    for index in reversed(opened):
        run = runs[index]
        if run.backward == is_backward:
            live = run.live
            for tensor in traffic.reads:
                if live.get(tensor):
                    return index
    # A compiler also fuses operators that read the same tensors, which tensors of one size in
    # one run may be.
    for index in reversed(opened) if traffic.large else ():
        if runs[index].backward == is_backward and not traffic.large.isdisjoint(runs[index].seen):
            return index
    runs.append(FusibleRun(backward=is_backward))
    opened.append(len(runs) - 1)
    return len(runs) - 1


def _join(run: FusibleRun, traffic: Traffic) -> None:
    """Add the operator's traffic to the run's."""
    live, seen = run.live, run.seen
    for tensor, size in zip(traffic.reads, traffic.read_bytes, strict=True):
        if live.get(tensor):
            live[tensor] -= 1
        elif tensor in seen:
            run.may_come_in += size
        else:
            run.comes_in += size
    if not run.ops:
        run.grad_in = max(traffic.read_bytes, default=0.0)
    seen.update(traffic.reads)
    run.over_batches |= traffic.over_batches
    run.num_norms_backward += traffic.is_norm_backward
    run.copies |= traffic.name == COPY
    run.sums |= traffic.name == SUM
    run.instructions += traffic.instructions
    if traffic.writes is not None:
        run.live[traffic.writes] = run.live.get(traffic.writes, 0) + 1
        if traffic.writes_alike:
            run.seen.add(traffic.writes)
    run.comes_in += traffic.again
    run.traffic += traffic.moved


def _link(
    run: FusibleRun, by_sequence: dict[int, int], index: int, sequence: int, *, is_away: bool
) -> None:
    """Tie a backward run to the forward runs it belongs to, by autograd's sequence numbers."""
    if sequence == NONE:
        return
    if not run.backward:
        by_sequence[sequence] = index
    elif is_away and sequence in by_sequence:
        run.homes.add(by_sequence[sequence])


def _traffics(table: TaskTable, joining: Bool) -> list[Traffic | None]:
    """What the operator of each of the masked tasks moves and computes."""
    traffics: list[Traffic | None] = [None] * len(table.example)
    for number in np.unique(table.alike[joining]).tolist():
        traffics[number] = _traffic(table, int(table.example[number]))
    masked = zip(table.alike.tolist(), joining.tolist(), strict=True)
    return [traffics[number] if joins else None for number, joins in masked]


def _traffic(table: TaskTable, op: int) -> Traffic:
    tensors, written = _read_and_written(table, op)
    reads = tuple((tensor.numel, tensor.dtype) for tensor in tensors)
    sizes = tuple(_bytes_of((tensor.stored, tensor.dtype)) for tensor in tensors)
    name, num = table.op_name(op), max((numel for numel, _ in reads), default=0)
    is_norm_backward = name.endswith("norm_backward")
    again = (read_bytes(*tensors[:2]) or 0.0) if is_norm_backward else 0.0
    if "batch_norm" in name:
        again = again or (read_bytes(*tensors[:1]) or 0.0)
    calls = _calls_a_function(table, op, len(reads))
    each = POLICY.call_instructions if calls else POLICY.plain_instructions
    alike = _written_alike(num, reads, written)
    other = (int(written / 4), "fp32") if num and written > 0 else None
    return Traffic(
        reads=reads,
        read_bytes=sizes,
        large=frozenset(
            tensor for tensor, size in zip(reads, sizes, strict=True) if size >= POLICY.large_bytes
        ),
        writes=alike or other,
        writes_alike=alike is not None,
        again=again,
        moved=(read_bytes(*tensors) or 0.0) + written + again,
        instructions=each * num,
        over_batches="batch_norm" in name,
        is_norm_backward=is_norm_backward,
        name=name,
    )


def _read_and_written(table: TaskTable, op: int) -> tuple[list[Operand], float]:
    inputs, work = table.inputs(op), table.work(op)
    assert inputs is not None
    assert work is not None
    tensors = [
        tensor
        for tensor in operands(inputs, range(len(inputs.dims)))
        if tensor.numel > 1 and tensor.dtype
    ]
    if FILLING.search(table.op_name(op)):
        tensors = tensors[1:]
    elif len(tensors) > 1 and (read_bytes(*tensors) or 0.0) >= (work.bytes or 0.0):
        tensors = tensors[:-1]
    return tensors, max((work.bytes or 0.0) - (read_bytes(*tensors) or 0.0), 0.0)


def _written_alike(numel: int, reads: tuple[Tensor, ...], written: float) -> Tensor | None:
    """What it writes if that is as many elements as its largest input has, as far as the bytes say
    so: of that type or a wider one."""
    own = next((dtype for count, dtype in reads if count == numel), "fp32")
    for dtype in (own, "bf16", "fp16", "fp32", "bool"):
        size = size_bytes(numel, dtype) or 0.0
        if numel and 0.95 * size <= written <= 1.4 * size:
            return numel, dtype
    return None


def _calls_a_function(table: TaskTable, op: int, num_reads: int) -> bool:
    """Whether each element costs a call: division by a number is a product, and so is a power of 2
    or 3."""
    name, inputs = table.op_name(op), table.inputs(op)
    if "div" in name:
        return num_reads > 1
    if "pow" in name and inputs is not None:
        return integer_at(inputs, 1) is None
    return CALLS.search(name) is not None


def fused_ns(run: FusibleRun, runs: list[FusibleRun], roofs: DevicePeaks, share: float) -> float:
    """One kernel for the run, with this share of what may come in coming in. It moves bytes no
    faster than its parts do now."""
    vector = roofs.peak_flops("fp32", matrix=False) or float("inf")
    rate = roofs.spec.bandwidth_bytes_per_s.value * 1e-9 * roofs.stream_share(STREAM_SHARE)
    if run.over_batches:
        rate *= POLICY.batch_norm_share
    else:
        rate = min(rate, run.traffic / max(run.now_ns, 1.0))

    def time(size: float, instructions: float) -> float:
        return fixed_ns(roofs, STREAM_FIXED_NS) + max(
            size / rate, instructions / (vector / 2) * 1e9
        )

    best = time(run.comes_in + share * run.may_come_in + run.goes_out, run.instructions)
    if run.homes:
        again = [runs[index] for index in run.homes]
        reads = run.grad_in + sum(other.comes_in + share * other.may_come_in for other in again)
        best = min(
            best,
            time(
                reads + run.goes_out, run.instructions + sum(other.instructions for other in again)
            ),
        )
    return best


@once_a_case
def fused_tasks(case: Case, share: float) -> Change:
    """Each run that gains by it is one kernel, with this share of what may come in coming in; none
    where the device's rates are not known."""
    runs, roofs = runs_of(case), case.context.roofs
    lengths: dict[int, float] = {}
    gone: list[int] = []
    for run in of_several(runs) if roofs is not None else ():
        assert roofs is not None
        fused = fused_ns(run, runs, roofs, share)
        if fused >= run.now_ns:
            continue
        lengths[run.tasks[0]] = fused
        gone += run.tasks[1:]
    if roofs is not None and case.context.trace.meta.has_shapes:
        gone += picked_in_place(case).tolist()
        adding = case.table.where(lambda op: ADDING.search(case.table.op_name(op)) is not None)
        gone += np.flatnonzero(adding & case.table.of_category("sort")).tolist()
    leads = np.array(sorted(lengths), np.int64)
    new_ns = np.array([lengths[task] for task in sorted(lengths)])
    left = np.array(gone, np.int64)

    def change(before: Graph) -> Graph:
        task_ns, gaps = before.task_ns.copy(), before.task_gap_ns.copy()
        task_ns[leads], task_ns[left], gaps[left] = new_ns, 0.0, 0.0
        return replace(before, task_ns=task_ns, task_gap_ns=gaps)

    return change


def num_compiled_kernels(case: Case, of_model: Bool) -> float:
    """What is left of these kernels, a step: one for each run, more where it sums over rows, and
    what the compiler leaves alone."""
    graph, table, runs = case.graph, case.table, runs_of(case)
    assert graph is not None
    left = of_model.copy()
    left[tasks_in(runs)] = False
    left[picked_in_place(case)] = False
    left &= ~table.where(partial(_is_joined, table))
    single = left & table.where(lambda op: SINGLE.search(table.op_name(op)) is not None)
    kept = int((left & ~single).sum()) + len(np.unique(table.op[single]))
    return (kept + sum(map(_num_kernels, runs))) / max(graph.num_steps, 1)


def _num_kernels(run: FusibleRun) -> int:
    """Sums over rows take a pass of their own, in two stages; of operators that stand alone, as far
    as sizes tell, casts of weights and gradients do, the others mostly join a neighbour."""
    if run.over_batches:
        return 1 + POLICY.batch_norm_kernels
    norms = run.num_norms_backward
    if len(run.ops) == 1 and not (norms or run.copies or run.sums):
        return 0
    return 1 + 2 * norms + int(run.backward and run.sums)
