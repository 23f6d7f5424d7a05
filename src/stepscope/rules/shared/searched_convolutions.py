"""A trace's convolutions in MIOpen's find-db: which problem each is, and which solver ran.

Nothing is guessed: a convolution whose layout or kernels fit several entries stays unsure. The
kernels' names are those of MIOpen's sources (solver/conv) and of Composable Kernel's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from stepscope.core.recordings.find_db import (
    DATA,
    DEFAULT_LAYOUTS,
    FORWARD,
    WEIGHTS,
    ConvProblem,
    Searched,
    SearchedConvolutions,
    Solver,
)
from stepscope.core.trace import NONE, Bool
from stepscope.replay.graph import Graph
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.conv import per_dim, window_dims
from stepscope.workload.inputs import (
    ParsedInputs,
    Shape,
    flag_at,
    flags_at,
    integer_at,
    integers_at,
)
from stepscope.workload.operands import is_shape, operand

FORWARD_OPS = ("aten::miopen_convolution", "aten::miopen_depthwise_convolution")
"""(input, weight, bias, padding, stride, dilation, groups, benchmark, deterministic)."""
BACKWARD_OP = "aten::convolution_backward"
"""(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
groups, output_mask)."""
DETERMINISTIC_AT = 8
DTYPES = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16"}
CHANNELS_LAST = {2: "NHWC", 3: "NDHWC"}
WAYS = (("fwd", "Fwd"), ("bwd", "Bwd"), ("wrw", "Wrw"))
SOLVERS_OF: tuple[tuple[str, str], ...] = (
    *((rf"naive_conv_\w*_?{way}_", f"ConvDirectNaiveConv{name}") for way, name in WAYS),
    *(
        (rf"igemm_{way}_gtcx\w*_nhwc_", f"ConvAsmImplicitGemmGTCDynamic{name}XdlopsNHWC")
        for way, name in WAYS
    ),
    *((rf"igemm_{way}_gtcx", f"ConvAsmImplicitGemmGTCDynamic{name}Xdlops") for way, name in WAYS),
    (r"grouped_conv_fwd", r"ConvHipImplicitGemm(?:3D)?(?:Group)?FwdXdlops"),
    (r"grouped_conv_bwd_data", r"ConvHipImplicitGemm(?:3D)?(?:Group)?BwdXdlops"),
    (
        r"grouped_conv_bwd_weight|xdlops_bwd_weight",
        r"ConvHipImplicitGemm(?:3D)?(?:Group)?WrwXdlops",
    ),
    (r"miopenSp3AsmConvFury", r"ConvWinoFuryRxS.*"),
    (r"miopenSp3AsmConvRage", r"ConvWinoRageRxS.*"),
    (r"miopenSp3AsmConv\w*f3x2", r"ConvBinWinogradRxSf3x2"),
    (r"miopenSp3AsmConv\w*f2x3", r"ConvBinWinogradRxSf2x3(?:g1)?"),
    (r"miopenGcnAsmConv1x1U_stride2", r"ConvAsm1x1UV2"),
    (r"miopenGcnAsmConv1x1U", r"ConvAsm1x1U"),
    (r"miopenGcnAsmConv3x3U", r"ConvAsm3x3U"),
    (r"miopenGcnAsmConv1x1WrW", r"ConvAsmBwdWrW1x1"),
    (r"miopenGcnAsmConv3x3WrW", r"ConvAsmBwdWrW3x3"),
    (r"MIOpenConvUni", r"ConvOclDirectFwd"),
    (r"MIOpenCDFGen", r"ConvOclDirectFwdGen"),
    (r"MIOpenConv1x1", r"ConvOclDirectFwd1x1"),
    (r"MIOpenCvBwdWrW", r"ConvOclBwdWrW.*"),
    (
        r"Cijk_|Im[23]d2Col|Col2Im",
        r"Gemm\w+|ConvMPBidirectWinograd.*|ConvWinograd3x3MultipassWrW.*",
    ),
)
"""By a kernel's name, the solvers that launch it; the first that fits. Multi-pass Winograd
multiplies by rocBLAS, like GEMM."""


class UsedSolver(Struct, frozen=True, kw_only=True):
    """A problem of the trace with the one solver that its kernels are of."""

    searched: Searched
    solver: Solver
    tasks: Bool
    """Its kernels, among all tasks of the graph."""
    num_calls: int
    """Over all steps."""
    step_ms: float

    @property
    def slower(self) -> float:
        """How much longer the solver took than the fastest, by the find-db."""
        return self.solver.time_ms / self.searched.best.time_ms

    def per_call_ms(self, steps: int) -> float:
        return self.step_ms * max(steps, 1) / self.num_calls


class ConvolutionLookup(Struct, frozen=True, kw_only=True):
    """All of a trace's convolutions by MIOpen."""

    used: tuple[UsedSolver, ...]
    missing: tuple[ConvProblem, ...]
    """Not in the find-db; their layout is not known."""
    unsure: tuple[ConvProblem, ...]
    """In it, but in several layouts that may be meant, or with kernels that fit none or several of
    the solvers."""
    lost: Bool
    """Tasks of `missing` and `unsure`."""
    is_deterministic: bool
    """Asked for: it leaves solvers out."""

    @property
    def num_problems(self) -> int:
        return len(self.used) + len(self.missing) + len(self.unsure)


def look_up(
    graph: Graph, table: TaskTable, searched: SearchedConvolutions
) -> ConvolutionLookup | None:
    """None where the trace has no convolution by MIOpen with its shapes."""
    calls = _calls(table)
    if not any(table.op_name(op) in FORWARD_OPS for op in calls):
        return None
    lookup = _Lookup(graph, table, searched)
    for op, tasks in calls.items():
        lookup.take(op, tasks)
    return lookup.finished() if lookup.num_known else None


def _calls(table: TaskTable) -> dict[int, list[int]]:
    """Tasks by the call of a convolution that launched them."""
    names = (*FORWARD_OPS, BACKWARD_OP)
    wanted = [
        op for op in np.unique(table.op).tolist() if op != NONE and table.op_name(op) in names
    ]
    calls: dict[int, list[int]] = {op: [] for op in wanted}
    for task in np.flatnonzero(np.isin(table.op, wanted)).tolist():
        calls[int(table.op[task])].append(task)
    return calls


class _LookedUpProblem(Struct, frozen=True, kw_only=True):
    """A problem of a call, and the one entry that the find-db has of it."""

    problem: ConvProblem
    entry: Searched | None
    is_missing: bool
    """No entry fits; where several do, there is none either."""


class _SolverCalls(Struct, kw_only=True):
    searched: Searched
    solver: Solver
    tasks: list[int] = field(default_factory=list)
    ops: set[int] = field(default_factory=set)


class _Lookup:
    def __init__(self, graph: Graph, table: TaskTable, searched: SearchedConvolutions) -> None:
        self._graph, self._table, self._searched = graph, table, searched
        self._asked: dict[tuple[int, int], tuple[_LookedUpProblem, ...]] = {}
        self._used: dict[tuple[ConvProblem, str], _SolverCalls] = {}
        self._missing: dict[tuple[object, ...], ConvProblem] = {}
        self._unsure: dict[tuple[object, ...], ConvProblem] = {}
        self._lost: list[int] = []
        self._is_deterministic = False
        self.num_known = 0

    def take(self, op: int, tasks: Sequence[int]) -> None:
        key = self._table.key(op)
        if key not in self._asked:
            self._asked[key] = tuple(self._looked_up(op))
        asked = self._asked[key]
        self.num_known += bool(asked)
        inputs = self._table.inputs(op)
        is_forward = self._table.op_name(op) in FORWARD_OPS
        self._is_deterministic |= (
            is_forward and inputs is not None and flag_at(inputs, DETERMINISTIC_AT) is True
        )
        made = {task: _made_by(self._name(task), asked) for task in tasks}
        sure: set[int] = set()
        for looked_up in asked:
            sure |= self._take_one(op, looked_up, made)
        sizes = [looked_up.problem.sizes for looked_up in asked]
        if any(size in self._missing or size in self._unsure for size in sizes):
            self._lost += [task for task in tasks if task not in sure]

    def _take_one(
        self,
        op: int,
        looked_up: _LookedUpProblem,
        made: Mapping[int, Sequence[tuple[Searched, Solver]]],
    ) -> set[int]:
        """The kernels of a call that are surely of this problem: all that fit it fit one solver of
        it, and no other problem."""
        problem, entry = looked_up.problem, looked_up.entry
        tasks = {
            task: fitting
            for task, fitting in made.items()
            if any(fitting_entry is entry for fitting_entry, _ in fitting)
        }
        pairs = [pair for fitting in tasks.values() for pair in fitting]
        solvers = {solver.name: solver for fitting_entry, solver in pairs if fitting_entry is entry}
        if entry is None or len(solvers) != 1 or len(pairs) != len(tasks):
            unused = self._missing if looked_up.is_missing else self._unsure
            unused[problem.sizes] = problem
            return set()
        (solver,) = solvers.values()
        new = _SolverCalls(searched=entry, solver=solver)
        calls = self._used.setdefault((entry.problem, solver.name), new)
        calls.tasks.extend(tasks)
        calls.ops.add(op)
        return set(tasks)

    def _looked_up(self, op: int) -> Iterator[_LookedUpProblem]:
        for problem, layouts in _problems(self._table, op):
            entries = self._searched.by_sizes.get(problem.sizes, ())
            fitting = [entry for entry in entries if entry.problem.layout in layouts]
            entry = fitting[0] if len(fitting) == 1 else None
            yield _LookedUpProblem(problem=problem, entry=entry, is_missing=not fitting)

    def _name(self, task: int) -> str:
        trace = self._table.trace
        return str(trace.names[int(trace.name[self._graph.task_event[task]])])

    def finished(self) -> ConvolutionLookup:
        """What is sure in one call and not in another is not sure."""
        used, lost = [], list(self._lost)
        for calls in self._used.values():
            if calls.searched.problem.sizes in self._unsure:
                lost += calls.tasks
                continue
            mask = self._mask(calls.tasks)
            used.append(
                UsedSolver(
                    searched=calls.searched,
                    solver=calls.solver,
                    tasks=mask,
                    num_calls=len(calls.ops),
                    step_ms=per_step_ms(self._graph, mask),
                )
            )
        return ConvolutionLookup(
            used=tuple(sorted(used, key=lambda solver: -solver.step_ms)),
            missing=tuple(self._missing.values()),
            unsure=tuple(self._unsure.values()),
            lost=self._mask(lost),
            is_deterministic=self._is_deterministic,
        )

    def _mask(self, tasks: Sequence[int]) -> Bool:
        mask = np.zeros(len(self._graph.task_ns), np.bool_)
        mask[list(tasks)] = True
        return mask


def _made_by(kernel: str, asked: Sequence[_LookedUpProblem]) -> tuple[tuple[Searched, Solver], ...]:
    """The listed solvers that launch a kernel of this name; none for a helper's, or one that is not
    known."""
    pattern = next((solver for made, solver in SOLVERS_OF if re.search(made, kernel)), None)
    if pattern is None:
        return ()
    listed = [looked_up.entry for looked_up in asked if looked_up.entry is not None]
    return tuple(
        (entry, solver)
        for entry in listed
        for solver in entry.solvers
        if re.fullmatch(pattern, solver.name)
    )


def _problems(table: TaskTable, op: int) -> Iterator[tuple[ConvProblem, frozenset[str]]]:
    """What a call asks MIOpen for, with the layouts it may do so in: nothing of a transposed one,
    or where it is not recorded."""
    inputs = table.inputs(op)
    if inputs is None:
        return
    if table.op_name(op) in FORWARD_OPS:
        problem = _problem(inputs, 0, 1, (3, 4, 5, 6))
        if problem is not None:
            yield problem, _layouts(inputs, (0, 1), len(problem.window))
        return
    mask = flags_at(inputs, 10)
    if flag_at(inputs, 7) is not False or mask is None or len(mask) != 3:
        return
    problem = _problem(inputs, 1, 2, (5, 4, 6, 9))
    if problem is not None:
        layouts = _layouts(inputs, (0, 1, 2), len(problem.window))
        ways = [way for way, is_asked in zip((DATA, WEIGHTS), mask, strict=False) if is_asked]
        yield from ((replace(problem, direction=way), layouts) for way in ways)


def _problem(
    inputs: ParsedInputs, x_at: int, weight_at: int, positions: tuple[int, int, int, int]
) -> ConvProblem | None:
    """The forward problem; `places` are those of padding, stride, dilation and groups."""
    x = operand(inputs, x_at)
    weight = operand(inputs, weight_at)
    groups = integer_at(inputs, positions[3])
    if (
        x is None
        or weight is None
        or groups is None
        or len(x.dims) != len(weight.dims)
        or len(x.dims) not in (4, 5)
    ):
        return None
    dtype = DTYPES.get(x.dtype)
    padding, stride, dilation = (
        per_dim(integers_at(inputs, position), len(x.dims) - 2) for position in positions[:3]
    )
    if (
        dtype is None
        or x.dtype != weight.dtype
        or padding is None
        or stride is None
        or dilation is None
        or min(stride) < 1
    ):
        return None
    spread = tuple(step * (taps - 1) for step, taps in zip(dilation, weight.dims[2:], strict=True))
    return ConvProblem(
        direction=FORWARD,
        batch=x.dims[0],
        in_channels=x.dims[1],
        out_channels=weight.dims[0],
        in_size=x.dims[2:],
        out_size=window_dims(x.dims[2:], spread, stride, padding),
        window=weight.dims[2:],
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=groups,
        layout="",
        dtype=dtype,
    )


def _layouts(inputs: ParsedInputs, positions: Sequence[int], rank: int) -> frozenset[str]:
    """PyTorch hands channels_last over as it is or copies it, by its version and settings; what is
    laid out otherwise stays."""
    default, last = DEFAULT_LAYOUTS[rank], CHANNELS_LAST[rank]
    plain = bool(inputs.strides) and all(_is_plain(inputs, position) for position in positions)
    return frozenset({default} if plain else {default, last})


def _is_plain(inputs: ParsedInputs, position: int) -> bool:
    """Whether a tensor is contiguous, and not channels_last at once (as one of a single channel or
    point is)."""
    dims, strides = inputs.dims[position], inputs.strides[position]
    if not is_shape(dims) or not is_shape(strides) or len(strides) != len(dims):
        return False
    order = tuple(range(len(dims)))
    last = (0, *order[2:], 1)
    return _lies(dims, strides, order) and not _lies(dims, strides, last)


def _lies(dims: Shape, strides: Shape, order: Sequence[int]) -> bool:
    expected = 1
    for dim in reversed(order):
        if dims[dim] != 1 and strides[dim] != expected:
            return False
        expected *= dims[dim]
    return True
