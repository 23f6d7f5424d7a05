"""What autocast to 16 bits does to the tensors between the products of a model.

Products and attention give 16 bits. Layer and group norms, powers, exponentials, sums, softmaxes
and losses give fp32, whatever they get (PyTorch's list of autocast's operators). Most others give
what they get, and fp32 where they get both. An operator that wants another type has its input cast
by a kernel of its own, and the gradient cast back by another; sums cast as they read.
A parameter is cast once in each pass, however many products share it, and its gradient once.
A trace has sizes, not addresses: a tensor is taken for the last one written of its size, and what
is added to it for the sum before, as residuals are.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from stepscope.analyses.grouping import is_among, matching
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind
from stepscope.rules.case import Case
from stepscope.rules.shared.compiled_host import GRADIENT
from stepscope.rules.shared.convolutions import is_convolution
from stepscope.rules.shared.rates import STREAM_SHARE, fixed_ns
from stepscope.rules.task_table import TaskTable
from stepscope.workload.operands import Operand, operand, operands, read_bytes

FULL = re.compile(
    r"layer_norm|group_norm|vector_norm|pow|exp$|expm1|log$|log1p|log2|log10|rsqrt|reciprocal|"
    r"softplus|softmax|cumprod|prod$|cosine|loss|dist$|sinh|cosh|erfinv"
)
"""Operators whose inputs are cast to fp32 by a kernel of their own (softmaxes: those in bf16)."""
FULL_WHILE_READING = re.compile(r"::sum$|cumsum")
OF_FIRST = re.compile(r"batch_norm|::index|embedding|gather|scatter|_$")
"""Operators that give the type of their first input, whatever the others are."""
PICKS = re.compile(r"::index$|index_select|::gather|embedding|::cat$")
"""Operators that give other sizes than they get."""
FILLS = re.compile(r"::(fill_|zero_|uniform_|normal_|bernoulli_|random_|exponential_)$")
CAST_BYTES = 6
"""Bytes moved for each number that is cast, read in one type and written in the other."""
NARROWING_SHARE, WIDENING_SHARE = 0.91, 0.43
"""Shares of the bandwidth reached by the kernels that cast fp32 to 16 bits and those that cast back
(195 tensors of 10 million numbers and more in 60 runs: 0.87 to 0.95, 0.42 to 0.45)."""
NARROWING_FIXED_NS, WIDENING_FIXED_NS = 1_500, 2_600
CAST_OPERATORS = 0.68
"""Fraction of the host's time for the model's middle operator that a cast takes: no Python of a
module's comes with it (51 runs under autocast: 0.49 to 0.69 going forward, 0.62 to 0.88 back)."""
LINEAR = re.compile(r"::(mul|div|neg|copy_|add_)$")
Places = tuple[tuple[int, ...], int | None, int | None]
PRODUCTS: dict[str, Places] = {
    "aten::mm": ((0,), 1, None),
    "aten::addmm": ((1,), 2, 0),
    "aten::linear": ((0,), 1, 2),
    "aten::bmm": ((0, 1), None, None),
    "aten::baddbmm": ((1, 2), None, None),
}
"""Where they have their activations, their weight and their bias."""
ATTENTION: Places = ((0, 1, 2), None, None)
CONVOLUTION: Places = ((0,), 1, None)
STREAMING = ("pointwise", "pooling", "dropout", "copy")


class Autocast(Struct, frozen=True, kw_only=True):
    """One entry per task of the graph."""

    narrow: Bool
    """Streams over tensors that are 16 bits wide then."""
    launches: Float64
    """Kernels that cast something for it, and back for its gradient."""
    cast_ns: Float64
    """Time of these kernels."""


class _Tensor(Struct, frozen=True, kw_only=True):
    """Tensor that was written last of some size."""

    narrow: bool
    numel: int = 0
    """0 where it is not known."""
    order: int = 0
    beside: bool | None = None
    """Whether the input of the linear layer that made it was narrow, while no function was applied
    to its output yet. Another layer that seems to read it stands beside that layer and reads its
    input, as the keys' and values' layers do after the queries'."""


WIDE = _Tensor(narrow=False)


class _Types(Struct, kw_only=True):
    """Types of a step's tensors, by their number of elements: which are 16 bits wide."""

    tensors: dict[int, _Tensor] = field(default_factory=dict)
    last: _Tensor = WIDE
    layer: _Tensor = WIDE
    """The last linear layer's output."""
    sums: dict[int, _Tensor] = field(default_factory=dict)
    """What a residual of a size is: the last sum or norm, or the first tensor written of it."""

    def of(self, tensor: Operand) -> _Tensor:
        """An unknown tensor may be a part of what was written last; else it is a parameter, or came
        from outside."""
        known = self.tensors.get(tensor.numel)
        if known is not None:
            return known
        return self.last if _may_be_part(tensor, self.last) else WIDE

    def is_narrow_part(self, tensor: Operand) -> bool:
        """The same of what attention reads: it may be a part of the last layer's output."""
        found = self.of(tensor)
        is_later = self.layer.order > found.order and self.layer.numel > tensor.numel
        return (self.layer if is_later and _may_be_part(tensor, self.layer) else found).narrow

    def write(self, numel: int, *, narrow: bool, beside: bool | None = None) -> None:
        order = self.last.order + 1
        self.last = _Tensor(narrow=narrow, numel=numel, order=order, beside=beside)
        if numel:
            self.tensors[numel] = self.last
            self.sums.setdefault(numel, self.last)

    def write_sum(self, numel: int, *, narrow: bool) -> None:
        self.write(numel, narrow=narrow)
        self.sums[numel] = self.last


def _may_be_part(tensor: Operand, whole: _Tensor) -> bool:
    return not _is_vector(tensor) and whole.numel % max(tensor.numel, 1) == 0


def _is_vector(tensor: Operand) -> bool:
    """Whether it is a vector, as biases and scales are, whatever they are spread over."""
    return sum(size > 1 for size in tensor.dims) < 2


class _Casts(Struct, frozen=True, kw_only=True):
    """Casts of one operator."""

    activations: tuple[int, ...] = ()
    """Elements of each."""
    parameters: tuple[int, ...] = ()
    narrow: bool = False
    is_done_again: bool = False
    """Whether a pass recomputes it for its gradient, so that this one has none."""


def under_autocast(case: Case, roofs: DevicePeaks) -> Autocast:
    """The casts that autocast adds to the recorded step, and what it makes narrower."""
    table = case.table
    casts = _casts_by_op(case)
    ops = np.fromiter(casts, np.int64, len(casts))
    is_narrow = _with_parents(case, ops, [of_op.narrow for of_op in casts.values()])
    once = _share_cast_once(case, casts)
    costs = {of_op: _cost(roofs, of_op, once) for of_op in set(casts.values())}
    launches_of, cast_ns_of = np.zeros(len(ops) + 1), np.zeros(len(ops) + 1)
    for index, of_op in enumerate(casts.values()):
        launches_of[index], cast_ns_of[index] = costs[of_op]
    # The last entry is that of no operator.
    of_task = np.searchsorted(ops, table.op)
    of_task[~is_among(table.op, ops)] = NONE
    leading = np.where(np.diff(table.op, prepend=-2) != 0, of_task, NONE)
    narrow = is_narrow[np.where(of_task == NONE, table.home, table.op)]
    streams = table.of_category(*STREAMING) & ~table.optimizer
    return Autocast(
        narrow=streams & narrow, launches=launches_of[leading], cast_ns=cast_ns_of[leading]
    )


def _cost(roofs: DevicePeaks, casts: _Casts, once: float) -> tuple[float, float]:
    """Launches and time of an operator's casts, there and, where it has a gradient, back; `once` of
    the parameters' are not done before."""
    back = not casts.is_done_again
    launches = (1 + back) * (len(casts.activations) + once * len(casts.parameters))
    spent_ns = sum(cast_ns(roofs, numel, back=back) for numel in casts.activations)
    spent_ns += once * sum(cast_ns(roofs, numel, back=back) for numel in casts.parameters)
    return launches, spent_ns


def _with_parents(case: Case, ops: Int64, of_ops: list[bool]) -> Bool:
    """Mask over the trace's events: of these operators, and of those that they are parts of, which
    are the ones that autograd knows. The last entry is for none."""
    parent, kind = case.context.links.parent, case.context.trace.kind
    narrow, places, outer = np.array(of_ops, np.bool_), np.arange(len(ops)), parent[ops]
    result = np.zeros(len(kind) + 1, np.bool_)
    result[ops] = narrow
    levels: list[tuple[Int64, Int64]] = []
    while True:
        is_op = (outer != NONE) & (kind[outer] == Kind.OP)
        places, outer = places[is_op], outer[is_op]
        if not len(outer):
            break
        levels.append((places, outer))
        outer = parent[outer]
    if levels:
        of_which, outers = (np.concatenate(column) for column in zip(*levels, strict=True))
        # What has several parts is what the last of them is.
        order = np.argsort(of_which, kind="stable")
        result[outers[order]] = narrow[of_which[order]]
    return result


def cast_ns(roofs: DevicePeaks, numel: int, *, back: bool) -> float:
    """A tensor going forward, and its gradient going back."""
    moving = roofs.traffic_ns(float(CAST_BYTES * numel))
    measured = roofs.stream_share(STREAM_SHARE) / STREAM_SHARE
    fixed = fixed_ns(roofs, NARROWING_FIXED_NS + back * WIDENING_FIXED_NS)
    return fixed + moving / measured * (1 / NARROWING_SHARE + back / WIDENING_SHARE)


def _share_cast_once(case: Case, casts: dict[int, _Casts]) -> float:
    """Share of the parameters that products read which are others than before in the pass: no more
    than have a gradient."""
    used = sum(len(of_op.parameters) for of_op in casts.values() if not of_op.is_done_again)
    gradients = int(matching(case.replayed, GRADIENT).sum())
    return min(1.0, gradients / used) if gradients and used else 1.0


def _casts_by_op(case: Case) -> dict[int, _Casts]:
    """Casts by operator: of the forward pass, where it has a kernel of its own, and of what
    backward runs again, in order."""
    graph, table = case.graph, case.table
    is_pass = ~table.backward | table.recomputed
    forward = is_pass & ~table.optimizer & (table.op != NONE)
    ops, first = np.unique(table.op[forward], return_index=True)
    # What comes after backward work begins anew, with what was there before the step or was kept.
    passes = graph.task_step + np.cumsum(table.backward & ~table.recomputed)
    passes_of = passes[forward][first].tolist()
    alike = table.alike[forward][first].tolist()
    again = table.recomputed[forward][first].tolist()
    of_again = set(table.alike[table.recomputed].tolist())
    kinds: dict[int, _Kind] = {}
    result: dict[int, _Casts] = {}
    types, last_pass = _Types(), NONE
    for op, of_pass, number, is_again in zip(ops.tolist(), passes_of, alike, again, strict=True):
        if of_pass != last_pass:
            types, last_pass = _Types(), of_pass
        if number not in kinds:
            kinds[number] = _kind(table, op)
        casts = _casts(kinds[number], types)
        is_done_again = not is_again and number in of_again
        result[op] = replace(casts, is_done_again=True) if is_done_again else casts
    return result


class _Kind(Struct, frozen=True, kw_only=True):
    """What an operator's name and inputs say of the type that it gives."""

    has_inputs: bool = True
    is_product: bool = False
    is_layer: bool = False
    """A product with a weight."""
    tensors: tuple[Operand, ...] = ()
    """Tensors that decide about the type; of a product, what it reads in fp32."""
    parameters: tuple[int, ...] = ()
    """Elements of each that a product has."""
    written: int = 0
    fills: bool = False
    is_full: bool = False
    is_full_while_reading: bool = False
    is_linear: bool = False
    adds: bool = False
    """Two tensors of one size."""
    bias: int = 0
    """Elements of a vector that is added in place; 0 where none is."""


def _kind(table: TaskTable, op: int) -> _Kind:
    name, inputs = table.op_name(op), table.inputs(op)
    if inputs is None:
        return _Kind(has_inputs=False)
    places, written = _places(table, op), _written(table, op)
    if places is not None:
        activations, *parameters = places
        read = [place for place in parameters if place is not None]
        return _Kind(
            is_product=True,
            is_layer=places[1] is not None,
            tensors=tuple(t for t in operands(inputs, activations) if t.dtype == "fp32"),
            parameters=tuple(tensor.numel for tensor in operands(inputs, read) if tensor.dims),
            written=written,
        )
    tensors = _activations(table, op)
    added = operand(inputs, 1) if name == "aten::add_" else None
    is_bias = added is not None and added.numel > 1 and _is_vector(added)
    return _Kind(
        tensors=tuple(tensors),
        written=written,
        fills=FILLS.search(name) is not None,
        is_full=FULL.search(name) is not None,
        is_full_while_reading=FULL_WHILE_READING.search(name) is not None,
        is_linear=LINEAR.search(name) is not None,
        adds=name == "aten::add" and len(tensors) == 2 and tensors[0].numel == tensors[1].numel,
        bias=added.numel if added is not None and is_bias else 0,
    )


def _casts(kind: _Kind, types: _Types) -> _Casts:
    """Casts for the operator; `types` is what is written after it."""
    if not kind.has_inputs:
        return _Casts()
    if kind.is_product:
        return _product_casts(kind, types)
    tensors, numel, before = kind.tensors, kind.written, types.last
    if kind.fills or not tensors:
        types.write(numel, narrow=before.narrow)
        return _Casts(narrow=before.narrow)
    narrow = all(types.of(tensor).narrow for tensor in tensors)
    if kind.is_full or kind.is_full_while_reading:
        types.write_sum(numel, narrow=False)
        is_cast = narrow and kind.is_full
        return _Casts(activations=(tensors[0].numel,) if is_cast else ())
    if kind.adds:
        narrow = narrow and types.sums.get(numel, WIDE).narrow
        types.write_sum(numel, narrow=narrow)
        return _Casts(narrow=narrow)
    is_linear = len(tensors) == 1 and kind.is_linear
    beside = types.of(tensors[0]).beside if is_linear else None
    types.write(numel, narrow=narrow, beside=beside)
    is_bias = kind.bias and before.beside is not None
    return _Casts(narrow=narrow, parameters=(kind.bias,) if is_bias else ())


def _activations(table: TaskTable, op: int) -> list[Operand]:
    """The inputs that decide about the type of what the operator gives."""
    name, inputs = table.op_name(op), table.inputs(op)
    assert inputs is not None
    tensors = [
        tensor
        for tensor in operands(inputs, range(len(inputs.dims)))
        if tensor.numel > 1 and tensor.dtype == "fp32"
    ]
    if name == "aten::copy_":
        return tensors[1:]
    return tensors[:1] if OF_FIRST.search(name) or FULL.search(name) else tensors


def _product_casts(kind: _Kind, types: _Types) -> _Casts:
    if kind.is_layer:
        narrow = [_layer_reads(types.of(tensor)) for tensor in kind.tensors]
    else:
        narrow = [types.is_narrow_part(tensor) for tensor in kind.tensors]
    types.write(kind.written, narrow=True, beside=all(narrow) if kind.is_layer else None)
    if kind.is_layer:
        types.layer = types.last
    return _Casts(
        activations=tuple(
            tensor.numel for tensor, fits in zip(kind.tensors, narrow, strict=True) if not fits
        ),
        parameters=kind.parameters,
        narrow=True,
    )


def _layer_reads(found: _Tensor) -> bool:
    return found.narrow if found.beside is None else found.beside


def _places(table: TaskTable, op: int) -> Places | None:
    name, work = table.op_name(op), table.work(op)
    if name in PRODUCTS:
        return PRODUCTS[name]
    if is_convolution(table, op):
        return CONVOLUTION
    return ATTENTION if work is not None and work.kind == "attention" else None


def _written(table: TaskTable, op: int) -> int:
    """Elements of what the operator writes, by the bytes it moves; as many as its largest input has
    where they are not known, 0 where that says nothing."""
    inputs, work = table.inputs(op), table.work(op)
    tensors = [] if inputs is None else operands(inputs, range(len(inputs.dims)))
    largest = max((tensor.numel for tensor in tensors), default=0)
    if PICKS.search(table.op_name(op)):
        return 0
    if work is not None and work.kind == "attention":
        return tensors[0].numel
    read = read_bytes(*tensors)
    if work is None or work.bytes is None or read is None or work.bytes <= read:
        return largest
    written = int((work.bytes - read) / 4)
    # Norms write their statistics as well.
    is_as_large = not work.is_matrix and largest <= written <= 1.4 * largest
    return largest if is_as_large else written
