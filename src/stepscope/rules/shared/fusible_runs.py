"""Runs of operators that a compiler makes one kernel of, and how long that takes.

Operators join the run that has written something they read, as far as sizes tell: a trace has
sizes, not addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, is_among
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind
from stepscope.replay.changes import Change
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.operator_traffic import Traffic, bytes_of, traffic_of
from stepscope.rules.shared.rates import STREAM_FIXED_NS, STREAM_SHARE, fixed_ns
from stepscope.rules.task_table import TaskTable


class Policy(Struct, frozen=True, kw_only=True):
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
JOINED = re.compile(r"::(cat|split|stack)$")
"""Operators with kernels of their own that a compiler writes into their neighbours."""
PICKING = re.compile(r"::(index|index_select|gather|embedding)$")
"""Operators that pick rows: a compiled operator that reads them picks them itself."""
ADDING = re.compile(r"index_put")
"""Sorts its numbers first; compiled it adds where each belongs."""
SINGLE = re.compile(r"embedding_dense_backward|index_put|scatter|gather|sort|cumsum")
"""Operators of several kernels that are one when compiled."""
COPY, SUM, COUNTING = "aten::copy_", "aten::sum", "aten::nonzero"


class FusibleRuns(Struct, frozen=True, kw_only=True):
    """Runs of operators that could be one kernel each; an entry for each run. Bytes."""

    task: Int64
    """All their tasks; those of one run in the order they execute."""
    run: Int64
    """Of each of these tasks."""
    begins_op: Bool
    """Of each of these tasks: the first of its operator."""
    lead: Int64
    """The first task."""
    num_ops: Int64
    backward: Bool
    comes_in: Float64
    """Read, and of a size not seen before in the run: surely from outside."""
    may_come_in: Float64
    """Read, and of a size seen before: the same tensor again, or another."""
    goes_out: Float64
    """Written, and not taken up in the run."""
    traffic: Float64
    """Of all the operators as they are."""
    now_ns: Float64
    instructions: Float64
    grad_in: Float64
    """The largest tensor that the first operator reads."""
    over_batches: Bool
    """It has a batch norm, whose library kernels are slow for reasons of their own."""
    num_norms_backward: Int64
    copies: Bool
    sums: Bool
    child: Int64
    """A run of backward operators, and beside it in `home` a run it is the backward of."""
    home: Int64

    @property
    def several(self) -> Bool:
        """Those with something to fuse: more than one operator."""
        return self.num_ops > 1

    def tasks_of(self, chosen: Bool) -> Int64:
        """All tasks of these runs."""
        return self.task[chosen[self.run]]


@once_a_case
def runs_of(case: Case) -> FusibleRuns | None:
    """The runs of the replayed steps; None without shapes."""
    assert case.graph is not None
    if not case.context.trace.meta.has_shapes:
        return None
    return find_runs(case.graph, case.table)


def find_runs(graph: Graph, table: TaskTable) -> FusibleRuns:
    """Runs on each stream, in the order they execute; a product, a copy from the host or a step's
    end ends all that are open."""
    fusible, kind = table.of_category(*FUSIBLE), table.trace.kind[graph.task_event]
    joining = _joining(graph, table)
    numbers = distinct(table.alike[joining])
    traffics = [traffic_of(table, op) for op in table.example[numbers].tolist()]
    finder = RunFinder(traffics)
    traffic_number = np.where(joining, np.searchsorted(numbers, table.alike), NONE).tolist()
    ending = (~joining & ~_picking(table) & (table.is_matrix | ~fusible)).tolist()
    is_set, steps = (kind == Kind.MEMSET).tolist(), graph.task_step.tolist()
    ops, backward = table.op.tolist(), table.backward.tolist()
    sequence = np.where(table.home == NONE, NONE, table.trace.sequence[table.home]).tolist()
    away = (table.home != table.op).tolist()
    for stream in range(graph.num_streams):
        finder.end_all()
        last_op, last_run, last_step = NONE, NONE, NONE
        for task in np.flatnonzero(graph.task_stream == stream).tolist():
            op, step = ops[task], steps[task]
            if op == last_op and op != NONE:
                if last_run != NONE:
                    finder.extend(last_run, task)
                continue
            if is_set[task]:
                continue
            if step != last_step or ending[task]:
                finder.end_all()
            last_op, last_run, last_step = op, NONE, step
            if traffic_number[task] == NONE:
                continue
            last_run = finder.join(task, traffic_number[task], is_backward=backward[task])
            finder.link(last_run, sequence[task], is_away=away[task])
    return finder.found(graph)


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


class RunFinder:
    """Puts operators into runs, one after the other. Tensors are numbers here: each number of
    elements and type its own."""

    def __init__(self, traffics: Sequence[Traffic]) -> None:
        self._traffics = traffics
        written = [each.writes for each in traffics if each.writes is not None]
        tensors = dict.fromkeys(chain(written, *(each.reads for each in traffics)))
        numbers = {tensor: number for number, tensor in enumerate(tensors)}
        self._bytes = [bytes_of(tensor) for tensor in tensors]
        self._reads = [tuple(numbers[tensor] for tensor in each.reads) for each in traffics]
        self._large = [frozenset(numbers[tensor] for tensor in each.large) for each in traffics]
        self._writes = [NONE if each.writes is None else numbers[each.writes] for each in traffics]
        self._opened: tuple[list[int], list[int]] = ([], [])
        """Forward runs and backward ones that may go on."""
        self._live: list[dict[int, int]] = []
        """By run: what was written in it and is not taken up yet, how often."""
        self._seen: list[set[int]] = []
        self._backward: list[bool] = []
        self._comes_in: list[float] = []
        self._may_come_in: list[float] = []
        self._tasks: list[int] = []
        self._runs: list[int] = []
        self._joined: list[int] = []
        """By task: the traffic it brought; NONE for another kernel of the operator before."""
        self._by_sequence: dict[int, int] = {}
        self._homes: set[tuple[int, int]] = set()

    def end_all(self) -> None:
        self._opened = ([], [])

    def extend(self, run: int, task: int) -> None:
        """Another task of the operator that joined last."""
        self._tasks.append(task)
        self._runs.append(run)
        self._joined.append(NONE)

    def join(self, task: int, number: int, *, is_backward: bool) -> int:
        """The run that the operator joins, with its traffic added."""
        run = self._run_for(number, is_backward=is_backward)
        live, seen, reads = self._live[run], self._seen[run], self._reads[number]
        traffic = self._traffics[number]
        for tensor, size in zip(reads, traffic.read_bytes, strict=True):
            left = live.get(tensor)
            if left:
                live[tensor] = left - 1
            elif tensor in seen:
                self._may_come_in[run] += size
            else:
                self._comes_in[run] += size
        seen.update(reads)
        written = self._writes[number]
        if written != NONE:
            live[written] = live.get(written, 0) + 1
            if traffic.writes_alike:
                seen.add(written)
        self._comes_in[run] += traffic.again
        self._tasks.append(task)
        self._runs.append(run)
        self._joined.append(number)
        return run

    def _run_for(self, number: int, *, is_backward: bool) -> int:
        """The latest open run that has written something the operator reads, or a new one."""
        opened, reads, large = self._opened[is_backward], self._reads[number], self._large[number]
        for run in reversed(opened):
            live = self._live[run]
            for tensor in reads:
                if live.get(tensor):
                    return run
        # A compiler also fuses operators that read the same tensors, which tensors of one size in
        # one run may be.
        for run in reversed(opened) if large else ():
            if not large.isdisjoint(self._seen[run]):
                return run
        opened.append(len(self._live))
        self._live.append({})
        self._seen.append(set())
        self._backward.append(is_backward)
        self._comes_in.append(0.0)
        self._may_come_in.append(0.0)
        return opened[-1]

    def link(self, run: int, sequence: int, *, is_away: bool) -> None:
        """Tie a backward run to the forward runs it belongs to, by autograd's sequence numbers."""
        if sequence == NONE:
            return
        if not self._backward[run]:
            self._by_sequence[sequence] = run
        elif is_away and sequence in self._by_sequence:
            self._homes.add((run, self._by_sequence[sequence]))

    def found(self, graph: Graph) -> FusibleRuns:
        num = len(self._live)
        task, run = np.array(self._tasks, np.int64), np.array(self._runs, np.int64)
        joined = np.array(self._joined, np.int64)
        begins_op = joined != NONE
        run_of_op, traffic_of_op = run[begins_op], joined[begins_op]

        def summed(per_traffic: Iterable[float]) -> Float64:
            values = np.array(list(per_traffic), np.float64)
            return _sums(run_of_op, values[traffic_of_op], num)

        first = np.unique(run, return_index=True)[1]
        largest = np.array([max(each.read_bytes, default=0.0) for each in self._traffics])
        homes = np.array(sorted(self._homes), np.int64).reshape(-1, 2)
        return FusibleRuns(
            task=task,
            run=run,
            begins_op=begins_op,
            lead=task[first],
            num_ops=np.bincount(run_of_op, minlength=num),
            backward=np.array(self._backward, np.bool_),
            comes_in=np.array(self._comes_in),
            may_come_in=np.array(self._may_come_in),
            goes_out=np.array([self._left_over(live) for live in self._live]),
            traffic=summed(each.moved for each in self._traffics),
            now_ns=_sums(run, graph.task_ns[task], num),
            instructions=summed(each.instructions for each in self._traffics),
            grad_in=largest[joined[first]],
            over_batches=summed(each.over_batches for each in self._traffics) > 0,
            num_norms_backward=summed(each.is_norm_backward for each in self._traffics).astype(
                np.int64
            ),
            copies=summed(each.name == COPY for each in self._traffics) > 0,
            sums=summed(each.name == SUM for each in self._traffics) > 0,
            child=homes[:, 0],
            home=homes[:, 1],
        )

    def _left_over(self, live: dict[int, int]) -> float:
        return sum((count * self._bytes[tensor] for tensor, count in live.items()), 0.0)


def _sums(groups: Int64, values: Float64, num: int) -> Float64:
    return np.bincount(groups, values, num).astype(np.float64)


def _fits(table: TaskTable, op: int) -> bool:
    work = table.work(op)
    if work is None or work.bytes is None:
        return False
    return OPAQUE.search(table.op_name(op)) is None


def fused_ns(runs: FusibleRuns, roofs: DevicePeaks, share: float) -> Float64:
    """One kernel for each run, with this share of what may come in coming in. It moves bytes no
    faster than its parts do now."""
    vector = roofs.peak_flops("fp32", matrix=False) or float("inf")
    rate = roofs.spec.bandwidth_bytes_per_s.value * 1e-9 * roofs.stream_share(STREAM_SHARE)
    rates = np.where(
        runs.over_batches,
        rate * POLICY.batch_norm_share,
        np.minimum(rate, np.maximum(runs.traffic, 1.0) / np.maximum(runs.now_ns, 1.0)),
    )

    def time(size: Float64, instructions: Float64) -> Float64:
        return fixed_ns(roofs, STREAM_FIXED_NS) + np.maximum(
            size / rates, instructions / (vector / 2) * 1e9
        )

    def of_homes(values: Float64) -> Float64:
        return _sums(runs.child, values[runs.home], len(runs.lead))

    reads = runs.comes_in + share * runs.may_come_in
    alone = time(reads + runs.goes_out, runs.instructions)
    # Or the forward runs are done again, from what they read.
    again = time(
        runs.grad_in + of_homes(reads) + runs.goes_out,
        runs.instructions + of_homes(runs.instructions),
    )
    has_home = np.bincount(runs.child, minlength=len(runs.lead)) > 0
    return np.where(has_home, np.minimum(alone, again), alone)


@once_a_case
def fused_tasks(case: Case, share: float) -> Change:
    """Each run that gains by it is one kernel, with this share of what may come in coming in; none
    where the device's rates are not known."""
    runs, roofs = runs_of(case), case.context.roofs
    if runs is None or roofs is None:
        return lambda before: before
    new_ns = fused_ns(runs, roofs, share)
    gains = runs.several & (new_ns < runs.now_ns)
    leads, new_ns = runs.lead[gains], new_ns[gains]
    tasks = runs.tasks_of(gains)
    left = tasks[~is_among(tasks, leads)]
    if case.context.trace.meta.has_shapes:
        adding = case.table.where(lambda op: ADDING.search(case.table.op_name(op)) is not None)
        summed = np.flatnonzero(adding & case.table.of_category("sort"))
        left = np.concatenate((left, picked_in_place(case), summed))

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
    if runs is not None:
        left[runs.task] = False
    left[picked_in_place(case)] = False
    left &= ~table.where(partial(_is_joined, table))
    single = left & table.where(lambda op: SINGLE.search(table.op_name(op)) is not None)
    kept = int((left & ~single).sum()) + len(distinct(table.op[single]))
    in_runs = 0 if runs is None else int(_num_kernels(runs).sum())
    return (kept + in_runs) / max(graph.num_steps, 1)


def _num_kernels(runs: FusibleRuns) -> Int64:
    """Sums over rows take a pass of their own, in two stages; of operators that stand alone, as far
    as sizes tell, casts of weights and gradients do, the others mostly join a neighbour."""
    norms = runs.num_norms_backward
    joins = ~runs.several & (norms == 0) & ~runs.copies & ~runs.sums
    num = np.where(joins, 0, 1 + 2 * norms + (runs.backward & runs.sums))
    return np.where(runs.over_batches, 1 + POLICY.batch_norm_kernels, num)
