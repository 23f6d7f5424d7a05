"""Runs of operators that a compiler makes one kernel of, and how long that takes.

Operators join the run that has written something they read, as far as sizes tell: a trace has
sizes, not addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, pairwise

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.operator_traffic import Traffic, bytes_of, traffic_of
from stepscope.rules.shared.pcie_copies import TO_DEVICE, TO_HOST
from stepscope.rules.task_table import TaskTable

BATCH_NORM_KERNELS = 3
"""Kernels of a compiled run with a batch norm, besides its own: statistics in two stages, the
convolution's layout."""

FUSIBLE = (
    "pointwise", "norm", "softmax", "reduction", "copy", "dropout", "loss", "index", "random",
)  # fmt: skip
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
"""Lays out what it adds and sorts the numbers first; compiled it adds each row where it belongs."""
SINGLE = re.compile(r"embedding_dense_backward|index_put|scatter|gather|sort|cumsum")
"""Operators of several kernels that are one when compiled."""
COPY, SUM, COUNTING = "aten::copy_", "aten::sum", "aten::nonzero"


class FusibleRuns(Struct, frozen=True, kw_only=True):
    """Runs of operators that could be one kernel each; an entry for each run. Bytes."""

    task: Int64
    """All their tasks; those of one run in the order they execute."""
    run: Int64
    """Run of each of these tasks."""
    begins_op: Bool
    """Mask of these tasks: the first of its operator."""
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
    """Bytes that all the operators move as they are."""
    now_ns: Float64
    instructions: Float64
    grad_in: Float64
    """The largest tensor that the first operator reads."""
    over_batches: Bool
    """Mask of the runs with a batch norm, whose library kernels are slow for reasons of their
    own."""
    num_norms_backward: Int64
    copies: Bool
    sums: Bool
    child: Int64
    """A run of backward operators, and beside it in `home` a run it is the backward of."""
    home: Int64

    @property
    def several(self) -> Bool:
        """Mask of the runs with something to fuse: more than one operator."""
        return self.num_ops > 1

    def tasks_of(self, chosen: Bool) -> Int64:
        """All tasks of these runs."""
        return self.task[chosen[self.run]]


@once_a_case
def runs_of(case: Case) -> FusibleRuns | None:
    """The runs of the replayed steps; None without shapes."""
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
    traffic_number = np.where(joining, np.searchsorted(numbers, table.alike), NONE)
    ending = ~joining & ~_picking(table) & (table.is_matrix | ~fusible)
    # The first task of each operator, and which of them each task goes on with.
    order = np.argsort(graph.task_stream, kind="stable")
    begins, goes_on = _first_tasks(graph.task_stream[order], table.op[order], kind[order])
    begun, which = order[begins], np.cumsum(begins) - 1
    is_break = ending[begun].copy()
    is_break[1:] |= np.diff(graph.task_stream[begun]) != 0
    is_break[1:] |= np.diff(graph.task_step[begun]) != 0
    joins = traffic_number[begun] != NONE
    joined = begun[joins]
    runs = RunFinder(traffics).find(
        traffic_number[joined], table.backward[joined], np.cumsum(is_break)[joins]
    )
    homes = _homes(table, joined, runs.run)
    run_of = np.full(len(begun), NONE, np.int64)
    run_of[joins] = runs.run
    is_in = (begins | goes_on) & (run_of[which] != NONE) if len(begun) else begins
    task, run, begins_op = order[is_in], run_of[which[is_in]], begins[is_in]
    return _totals(graph, traffics, runs, homes, (task, run, begins_op), traffic_number)


def _first_tasks(stream: Int64, op: Int64, kind: NDArray[np.uint8]) -> tuple[Bool, Bool]:
    """Masks of tasks by stream: which are the first of their operator, and which go on with the one
    before. Memory that is set belongs to nothing by itself."""
    is_set = kind == Kind.MEMSET
    last = np.maximum.accumulate(np.where(is_set, NONE, np.arange(len(op))))
    last = np.concatenate(([NONE], last))[: len(op)]
    goes_on = (last != NONE) & (stream[last] == stream) & (op[last] == op) & (op != NONE)
    return ~goes_on & ~is_set, goes_on


def _homes(table: TaskTable, tasks: Int64, run: Int64) -> Int64:
    """Pairs of a backward run and a forward run it belongs to, by autograd's sequence numbers."""
    home, op = table.home[tasks], table.op[tasks]
    sequence = np.where(home == NONE, NONE, table.trace.sequence[home])
    known = sequence != NONE
    columns = (run, sequence, table.backward[tasks], home != op)
    by_sequence: dict[int, int] = {}
    homes: set[tuple[int, int]] = set()
    for number, numbered, is_backward, is_away in zip(
        *(column[known].tolist() for column in columns), strict=True
    ):
        if not is_backward:
            by_sequence[numbered] = number
        elif is_away and numbered in by_sequence:
            homes.add((number, by_sequence[numbered]))
    return np.array(sorted(homes), np.int64).reshape(-1, 2)


def _totals(
    graph: Graph,
    traffics: Sequence[Traffic],
    runs: _Runs,
    homes: Int64,
    tasks: tuple[Int64, Int64, Bool],
    traffic_number: Int64,
) -> FusibleRuns:
    num = len(runs.backward)
    task, run, begins_op = tasks
    run_of_op, traffic_of_op = run[begins_op], traffic_number[task[begins_op]]

    def summed(per_traffic: Iterable[float]) -> Float64:
        values = np.array(list(per_traffic), np.float64)
        return sums_by(run_of_op, values[traffic_of_op], num)

    first = np.unique(run, return_index=True)[1]
    largest = np.array([max(each.read_bytes, default=0.0) for each in traffics])
    return FusibleRuns(
        task=task,
        run=run,
        begins_op=begins_op,
        lead=task[first],
        num_ops=np.bincount(run_of_op, minlength=num),
        backward=np.array(runs.backward, np.bool_),
        comes_in=np.array(runs.comes_in),
        may_come_in=np.array(runs.may_come_in),
        goes_out=np.array(runs.goes_out),
        traffic=summed(each.moved for each in traffics),
        now_ns=sums_by(run, graph.task_ns[task], num),
        instructions=summed(each.instructions for each in traffics),
        grad_in=largest[traffic_number[task[first]]],
        over_batches=summed(each.over_batches for each in traffics) > 0,
        num_norms_backward=summed(each.is_norm_backward for each in traffics).astype(np.int64),
        copies=summed(each.name == COPY for each in traffics) > 0,
        sums=summed(each.name == SUM for each in traffics) > 0,
        child=homes[:, 0],
        home=homes[:, 1],
    )


def _joining(graph: Graph, table: TaskTable) -> Bool:
    kind = table.trace.kind[graph.task_event]
    of_host = matching(table.trace, TO_DEVICE) | matching(table.trace, TO_HOST)
    is_copy = (kind == Kind.MEMCPY) & table.where(lambda op: table.op_name(op) == COPY)
    is_copy &= ~of_host[graph.task_event]
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


@once_a_case
def prepared_to_add(case: Case) -> Int64:
    """Tasks inside an operator that adds rows, but for those that add."""
    table = case.table
    adding = matching(table.trace, ADDING)
    within = ancestor_with(case.context.links.parent, np.maximum(table.op, 0), adding)
    is_own = table.op == within
    inside = (table.op != NONE) & (within != NONE)
    return np.flatnonzero(inside & (~is_own | table.of_category("sort")))


def _is_joined(table: TaskTable, op: int) -> bool:
    return JOINED.search(table.op_name(op)) is not None


class _Runs(Struct, kw_only=True):
    """Runs as they are found, an entry for each but where it says otherwise. Bytes."""

    run: Int64
    """Run of each operator."""
    backward: list[bool]
    comes_in: list[float]
    may_come_in: list[float]
    goes_out: list[float]


class _Run(Struct, kw_only=True):
    """A run that may go on."""

    place: int
    backward: bool
    live: dict[int, int] = field(default_factory=dict)
    """Tensors that were written in it and are not taken up yet, and how often."""
    seen: set[int] = field(default_factory=set)
    comes_in: float = 0.0
    may_come_in: float = 0.0


class _Stretch(Struct, frozen=True):
    """The runs of operators between two that end all: which each operator is in, and of each run
    what `_Runs` has of it."""

    run: list[int]
    backward: list[bool]
    comes_in: list[float]
    may_come_in: list[float]
    goes_out: list[float]


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

    def find(self, number: Int64, backward: Bool, stretch: Int64) -> _Runs:
        """The runs of operators in the order they execute, by the traffic of each. No run goes on
        in another stretch. Layers and steps repeat: each sequence is looked at once."""
        runs = _Runs(
            run=np.empty(0, np.int64), backward=[], comes_in=[], may_come_in=[], goes_out=[]
        )
        starts = np.flatnonzero(np.diff(stretch, prepend=NONE)).tolist()
        keys = (2 * number + backward).tolist()
        known: dict[tuple[int, ...], _Stretch] = {}
        run_of: list[int] = []
        firsts: list[int] = []
        for start, end in pairwise((*starts, len(keys))):
            key = tuple(keys[start:end])
            if key not in known:
                known[key] = self._runs_in(key)
            found = known[key]
            firsts.append(len(runs.backward))
            run_of += found.run
            runs.backward += found.backward
            runs.comes_in += found.comes_in
            runs.may_come_in += found.may_come_in
            runs.goes_out += found.goes_out
        lengths = np.diff((*starts, len(keys)))
        runs.run = np.array(run_of, np.int64) + np.repeat(np.array(firsts, np.int64), lengths)
        return runs

    def _runs_in(self, keys: tuple[int, ...]) -> _Stretch:
        """Runs of operators that nothing ends between. A key is twice its traffic's number, and 1
        in backward."""
        opened: tuple[list[_Run], list[_Run]] = ([], [])
        found: list[_Run] = []
        run_of = []
        for key in keys:
            number, is_backward = key >> 1, key & 1
            run = self._run_for(number, opened[is_backward])
            if run is None:
                run = _Run(place=len(found), backward=bool(is_backward))
                found.append(run)
                opened[is_backward].append(run)
            self._join(run, number)
            run_of.append(run.place)
        return _Stretch(
            run_of,
            [run.backward for run in found],
            [run.comes_in for run in found],
            [run.may_come_in for run in found],
            [self._left_over(run.live) for run in found],
        )

    def _run_for(self, number: int, opened: list[_Run]) -> _Run | None:
        """The latest open run that has written something the operator reads."""
        reads, large = self._reads[number], self._large[number]
        for run in reversed(opened):
            for tensor in reads:
                if run.live.get(tensor):
                    return run
        # A compiler also fuses operators that read the same tensors, which tensors of one size in
        # one run may be.
        for run in reversed(opened) if large else ():
            if not large.isdisjoint(run.seen):
                return run
        return None

    def _join(self, run: _Run, number: int) -> None:
        """Add the operator's traffic to the run."""
        traffic, reads = self._traffics[number], self._reads[number]
        for tensor, size in zip(reads, traffic.read_bytes, strict=True):
            left = run.live.get(tensor)
            if left:
                run.live[tensor] = left - 1
            elif tensor in run.seen:
                run.may_come_in += size
            else:
                run.comes_in += size
        run.seen.update(reads)
        written = self._writes[number]
        if written != NONE:
            run.live[written] = run.live.get(written, 0) + 1
            if traffic.writes_alike:
                run.seen.add(written)
        run.comes_in += traffic.again

    def _left_over(self, live: dict[int, int]) -> float:
        return sum((count * self._bytes[tensor] for tensor, count in live.items()), 0.0)


def sums_by(groups: Int64, values: Float64, num: int) -> Float64:
    return np.bincount(groups, values, num).astype(np.float64)


def _fits(table: TaskTable, op: int) -> bool:
    work = table.work(op)
    if work is None or work.bytes is None:
        return False
    return OPAQUE.search(table.op_name(op)) is None


def num_compiled_kernels(case: Case, of_model: Bool, weight: Float64 | None = None) -> float:
    """Number that is left of these kernels, a step: one for each run, more where it sums over rows,
    and what the compiler leaves alone. With `weight`, a kernel that is left counts so much."""
    graph, table, runs = case.graph, case.table, runs_of(case)
    left = of_model.copy()
    if runs is not None:
        left[runs.task] = False
    left[picked_in_place(case)] = False
    left[prepared_to_add(case)] = False
    left &= ~table.where(partial(_is_joined, table))
    single = left & table.where(lambda op: SINGLE.search(table.op_name(op)) is not None)
    counted = np.ones(len(left)) if weight is None else weight
    kept = float(counted[left & ~single].sum()) + len(distinct(table.op[single]))
    in_runs = 0 if runs is None else int(_num_kernels(runs).sum())
    return (kept + in_runs) / max(graph.num_steps, 1)


def _num_kernels(runs: FusibleRuns) -> Int64:
    """Sums over rows take a pass of their own, in two stages; of operators that stand alone, as far
    as sizes tell, casts of weights and gradients do, the others mostly join a neighbour."""
    norms = runs.num_norms_backward
    joins = ~runs.several & (norms == 0) & ~runs.copies & ~runs.sums
    num = np.where(joins, 0, 1 + 2 * norms + (runs.backward & runs.sums))
    return np.where(runs.over_batches, 1 + BATCH_NORM_KERNELS, num)
