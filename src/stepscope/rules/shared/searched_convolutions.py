"""A trace's convolutions, looked up in MIOpen's find-db: which problem each is, and which of its solvers the kernels are of.

Nothing is guessed: a convolution whose layout or kernels fit several entries stays unsure. The kernels' names are those of
MIOpen's sources (solver/conv) and of Composable Kernel's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.core.find_db import DATA, DEFAULT_LAYOUTS, FORWARD, WEIGHTS, ConvProblem, Searched, SearchedConvolutions, Solver
from stepscope.core.trace import NONE, Bool
from stepscope.replay.graph import Graph
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.conv import window_dims
from stepscope.workload.inputs import ParsedInputs, Shape, flag_at, flags_at, integer_at, integers_at
from stepscope.workload.operands import is_shape, operand

FORWARD_OPS = ("aten::miopen_convolution", "aten::miopen_depthwise_convolution")
"""(input, weight, bias, padding, stride, dilation, groups, benchmark, deterministic)."""
BACKWARD_OP = "aten::convolution_backward"
"""(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)."""
DETERMINISTIC_AT = 8
DTYPES = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16"}
CHANNELS_LAST = {2: "NHWC", 3: "NDHWC"}
WAYS = (("fwd", "Fwd"), ("bwd", "Bwd"), ("wrw", "Wrw"))
SOLVERS_OF: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(kernel), re.compile(solver))
    for kernel, solver in (
        *((rf"naive_conv_\w*_?{way}_", f"ConvDirectNaiveConv{name}") for way, name in WAYS),
        *((rf"igemm_{way}_gtcx\w*_nhwc_", f"ConvAsmImplicitGemmGTCDynamic{name}XdlopsNHWC") for way, name in WAYS),
        *((rf"igemm_{way}_gtcx", f"ConvAsmImplicitGemmGTCDynamic{name}Xdlops") for way, name in WAYS),
        (r"grouped_conv_fwd", r"ConvHipImplicitGemm(?:3D)?(?:Group)?FwdXdlops"),
        (r"grouped_conv_bwd_data", r"ConvHipImplicitGemm(?:3D)?(?:Group)?BwdXdlops"),
        (r"grouped_conv_bwd_weight|xdlops_bwd_weight", r"ConvHipImplicitGemm(?:3D)?(?:Group)?WrwXdlops"),
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
        (r"Cijk_|Im[23]d2Col|Col2Im", r"Gemm\w+|ConvMPBidirectWinograd.*|ConvWinograd3x3MultipassWrW.*"),
    )
)
"""By a kernel's name, the solvers that launch it; the first that fits. Multi-pass Winograd multiplies by rocBLAS, like GEMM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """All of a trace's convolutions by MIOpen."""

    used: tuple[Used, ...]
    missing: tuple[ConvProblem, ...]
    """Not in the find-db; their layout is not told."""
    unsure: tuple[ConvProblem, ...]
    """In it, but in several layouts that may be meant, or with kernels that fit none or several of the solvers."""
    lost: Bool
    """Tasks of `missing` and `unsure`."""
    is_deterministic: bool
    """Asked for: it leaves solvers out."""

    @property
    def num_problems(self) -> int:
        return len(self.used) + len(self.missing) + len(self.unsure)


def look_up(graph: Graph, table: TaskTable, searched: SearchedConvolutions) -> LookedUp | None:
    """None where the trace has no convolution by MIOpen with its shapes."""
    calls = _calls(table)
    if not any(table.op_name(op) in FORWARD_OPS for op in calls):
        return None
    draft = _Draft(graph, table, searched)
    for op, tasks in calls.items():
        draft.take(op, tasks)
    return draft.finished() if draft.num_known else None


def _calls(table: TaskTable) -> dict[int, list[int]]:
    """Tasks by the call of a convolution that launched them."""
    names = (*FORWARD_OPS, BACKWARD_OP)
    wanted = [op for op in np.unique(table.op).tolist() if op != NONE and table.op_name(op) in names]
    calls: dict[int, list[int]] = {op: [] for op in wanted}
    for task in np.flatnonzero(np.isin(table.op, wanted)).tolist():
        calls[int(table.op[task])].append(task)
    return calls


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A problem of a call, and the one entry that the find-db has of it."""

    problem: ConvProblem
    found: Searched | None
    is_missing: bool
    """No entry fits; where several do, there is none either."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    searched: Searched
    solver: Solver
    tasks: list[int] = field(default_factory=list)
    ops: set[int] = field(default_factory=set)


class _Draft:
    def __init__(self, graph: Graph, table: TaskTable, searched: SearchedConvolutions) -> None:
        self._graph, self._table, self._searched = graph, table, searched
        self._asked: dict[tuple[int, int], tuple[_Asked, ...]] = {}
        self._used: dict[tuple[ConvProblem, str], _Entry] = {}
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
        self._is_deterministic |= is_forward and inputs is not None and flag_at(inputs, DETERMINISTIC_AT) is True
        made = {task: _made_by(self._name(task), asked) for task in tasks}
        sure: set[int] = set()
        for one in asked:
            sure |= self._take_one(op, one, made)
        if any(one.problem.sizes in self._missing or one.problem.sizes in self._unsure for one in asked):
            self._lost += [task for task in tasks if task not in sure]

    def _take_one(self, op: int, one: _Asked, made: Mapping[int, Sequence[tuple[Searched, Solver]]]) -> set[int]:
        """The kernels of a call that are of this problem for sure: all that fit it fit one solver of it, and no other problem."""
        mine = {task: fitting for task, fitting in made.items() if any(found is one.found for found, _ in fitting)}
        solvers = {solver.name: solver for fitting in mine.values() for found, solver in fitting if found is one.found}
        if one.found is None or len(solvers) != 1 or any(len(fitting) != 1 for fitting in mine.values()):
            (self._missing if one.is_missing else self._unsure)[one.problem.sizes] = one.problem
            return set()
        (solver,) = solvers.values()
        entry = self._used.setdefault((one.found.problem, solver.name), _Entry(searched=one.found, solver=solver))
        entry.tasks.extend(mine)
        entry.ops.add(op)
        return set(mine)

    def _looked_up(self, op: int) -> Iterator[_Asked]:
        for problem, layouts in _problems(self._table, op):
            fitting = [one for one in self._searched.by_sizes.get(problem.sizes, ()) if one.problem.layout in layouts]
            yield _Asked(problem=problem, found=fitting[0] if len(fitting) == 1 else None, is_missing=not fitting)

    def _name(self, task: int) -> str:
        trace = self._table.trace
        return str(trace.names[int(trace.name[self._graph.task_event[task]])])

    def finished(self) -> LookedUp:
        """What is sure in one call and not in another is not sure."""
        used, lost = [], list(self._lost)
        for entry in self._used.values():
            if entry.searched.problem.sizes in self._unsure:
                lost += entry.tasks
                continue
            mask = self._mask(entry.tasks)
            step_ms = per_step_ms(self._graph, mask)
            num = len(entry.ops)
            used.append(Used(searched=entry.searched, solver=entry.solver, tasks=mask, num_calls=num, step_ms=step_ms))
        return LookedUp(
            used=tuple(sorted(used, key=lambda one: -one.step_ms)),
            missing=tuple(self._missing.values()),
            unsure=tuple(self._unsure.values()),
            lost=self._mask(lost),
            is_deterministic=self._is_deterministic,
        )

    def _mask(self, tasks: Sequence[int]) -> Bool:
        mask = np.zeros(len(self._graph.task_ns), np.bool_)
        mask[list(tasks)] = True
        return mask


def _made_by(kernel: str, asked: Sequence[_Asked]) -> tuple[tuple[Searched, Solver], ...]:
    """The listed solvers that launch a kernel of this name; none for a helper's, or one that is not known."""
    pattern = next((solver for made, solver in SOLVERS_OF if made.search(kernel)), None)
    if pattern is None:
        return ()
    listed = [one.found for one in asked if one.found is not None]
    return tuple((found, solver) for found in listed for solver in found.solvers if pattern.fullmatch(solver.name))


def _problems(table: TaskTable, op: int) -> Iterator[tuple[ConvProblem, frozenset[str]]]:
    """What a call asks MIOpen for, with the layouts it may do so in: nothing of a transposed one, or where it is not recorded."""
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


def _problem(inputs: ParsedInputs, x_at: int, weight_at: int, places: tuple[int, int, int, int]) -> ConvProblem | None:
    """The forward problem; `places` are those of padding, stride, dilation and groups."""
    x, weight, groups = operand(inputs, x_at), operand(inputs, weight_at), integer_at(inputs, places[3])
    if x is None or weight is None or groups is None or len(x.dims) != len(weight.dims) or len(x.dims) not in (4, 5):
        return None
    dtype = DTYPES.get(x.dtype)
    padding, stride, dilation = (_per_dim(integers_at(inputs, at), len(x.dims) - 2) for at in places[:3])
    if dtype is None or x.dtype != weight.dtype or padding is None or stride is None or dilation is None or min(stride) < 1:
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


def _per_dim(values: Shape | None, rank: int) -> Shape | None:
    if values is None or len(values) not in (1, rank):
        return None
    return values * rank if len(values) == 1 else values


def _layouts(inputs: ParsedInputs, places: Sequence[int], rank: int) -> frozenset[str]:
    """PyTorch hands channels_last over as it is or copies it, by its version and settings; what is laid out otherwise stays."""
    default, last = DEFAULT_LAYOUTS[rank], CHANNELS_LAST[rank]
    plain = bool(inputs.strides) and all(_is_plain(inputs, at) for at in places)
    return frozenset({default} if plain else {default, last})


def _is_plain(inputs: ParsedInputs, at: int) -> bool:
    """Whether a tensor is contiguous, and not channels_last at once (as one of a single channel or point is)."""
    dims, strides = inputs.dims[at], inputs.strides[at]
    if not is_shape(dims) or not is_shape(strides) or len(strides) != len(dims):
        return False
    order = tuple(range(len(dims)))
    last = (0, *order[2:], 1)
    return _lies(dims, strides, order) and not _lies(dims, strides, last)


def _lies(dims: Shape, strides: Shape, order: Sequence[int]) -> bool:
    expected = 1
    for place in reversed(order):
        if dims[place] != 1 and strides[place] != expected:
            return False
        expected *= dims[place]
    return True
