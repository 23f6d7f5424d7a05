"""Times of a step's operators that were measured on its device, in place of a model's.

An operator is asked for as it ran and as a fix would have it. What the fix makes of it is its
recorded time by the two measured ones' ratio: what both have in common (a cache that is warm in a
step, clocks) is as it was in the run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.hardware import MeasuredTime, OperatorCall, ProbeCase
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.graph import Graph
from stepscope.rules.shared.convolutions import image_and_weight, is_convolution
from stepscope.rules.task_table import TaskTable
from stepscope.workload.attention import sizes_of
from stepscope.workload.inputs import DTYPES, ParsedInputs, Shape, flag_at
from stepscope.workload.operands import is_shape

FLOATS = ("fp32", "bf16", "fp16")
"""Types of tensors that a precision stands for."""
ANY = (*FLOATS, "bool")
NORMS = (
    "aten::cudnn_batch_norm",
    "aten::cudnn_batch_norm_backward",
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
)
CONVOLUTION = "aten::convolution"
DEPTHWISE = "aten::_conv_depthwise2d"
AS_IS, BENCHMARK, NHWC, COMPILED = "asis", "benchmark", "nhwc", "compiled"
SAME_KERNEL = 1.25
"""Ratio between the recorded time of an operator and the measured one, at most: of 632 operators of
102 recordings of an H200, nine in ten lie within it, the median within 2 %."""
BENCHMARK_AT = {"aten::cudnn_convolution": 6, "aten::cudnn_convolution_transpose": 7}


def call_of(table: TaskTable, op: int) -> OperatorCall | None:
    """The operator as it would be called again; None where the record does not tell, or what it
    takes depends on the numbers in it."""
    return None if op == NONE else table.once(_call, op)


def _call(table: TaskTable, op: int) -> OperatorCall | None:
    inputs, name = table.inputs(op), table.op_name(op)
    if inputs is None or not name.startswith("aten::") or not inputs.strides:
        return None
    if name in NORMS:
        return _norm(name, inputs)
    attention = sizes_of(name, inputs)
    if attention is not None:
        sizes, causal = attention
        assert sizes.sequences is not None
        query = (sizes.sequences, sizes.heads, sizes.length_q, sizes.head_dim)
        key = (sizes.sequences, sizes.heads, sizes.length_k, sizes.head_dim)
        value = (*key[:3], sizes.head_dim_v)
        return attention_call(
            query,
            key,
            value,
            _mask(name, inputs),
            causal=causal,
            backward=name.endswith("_backward"),
            dtype=next(
                (DTYPES[each] for each in inputs.types if DTYPES.get(each) in FLOATS), "fp32"
            ),
        )
    types = tuple(DTYPES.get(each, each) for each in inputs.types)
    if any(each in DTYPES.values() and each not in ANY for each in types):
        return None
    if any(not is_shape(dims) for dims in inputs.dims) or not any(t in FLOATS for t in types):
        return None
    call = OperatorCall(
        op=name, dims=inputs.dims, types=types, strides=inputs.strides, concrete=inputs.concrete
    )
    return _convolution(call, table, op) if is_convolution(table, op) else call


def _norm(name: str, inputs: ParsedInputs) -> OperatorCall | None:
    dims, strides = inputs.dims[0], inputs.strides[0]
    dtype = DTYPES.get(inputs.types[0], "")
    if not is_shape(dims) or not is_shape(strides) or dtype not in FLOATS:
        return None
    backward = "_backward" if name.endswith("_backward") else ""
    return OperatorCall(
        op=f"batch_norm{backward}", dims=(dims,), types=(dtype,), strides=(strides,), concrete=("",)
    )


def _mask(name: str, inputs: ParsedInputs) -> Shape:
    position = 4 if "_backward" in name and "_efficient_attention" in name else 3
    dims = inputs.dims[position] if "efficient" in name and position < len(inputs.dims) else ()
    return dims if is_shape(dims) and len(dims) == 4 else ()


def attention_call(
    query: Shape,
    key: Shape,
    value: Shape,
    mask: Shape,
    *,
    causal: bool,
    backward: bool,
    dtype: str = "fp32",
) -> OperatorCall:
    """Attention over these (batch, heads, length, size), through the function that chooses its
    kernel."""
    return OperatorCall(
        op="attention_backward" if backward else "attention",
        dims=(query, key, value, mask, ()),
        types=(dtype, dtype, dtype, dtype if mask else "", ""),
        strides=(),
        concrete=("", "", "", "", "causal" if causal else ""),
    )


def _convolution(call: OperatorCall, table: TaskTable, op: int) -> OperatorCall | None:
    """The operator that chooses a convolution's kernel, whichever it chose."""
    pair, name, concrete = image_and_weight(table, op), call.op, call.concrete
    if pair is None or not any(concrete):
        return None
    image, _ = pair
    zeros = str([0] * (len(image.dims) - 2))
    if name == CONVOLUTION or name == f"{CONVOLUTION}_backward":
        return call
    if name == "aten::cudnn_convolution":
        padding, stride, dilation, groups = concrete[2:6]
        words = (stride, padding, dilation, "False", zeros, groups)
    elif name == "aten::cudnn_convolution_transpose":
        padding, extra, stride, dilation, groups = concrete[2:7]
        words = (stride, padding, dilation, "True", extra, groups)
    elif name == DEPTHWISE:
        stride, padding, dilation = concrete[4:7]
        words = (stride, padding, dilation, "False", zeros, str(image.dims[1]))
    else:
        return None
    kinds = ("ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar")
    return OperatorCall(
        op=CONVOLUTION,
        dims=(*call.dims[:2], *((),) * 7),
        types=(*call.types[:2], "", *kinds),
        strides=(*call.strides[:2], *((),) * 7),
        concrete=("", "", "", *words),
    )


def way_now(table: TaskTable, task: int) -> str:
    """How the task's operator ran: with its tensors as they are (`asis`), or as fp32 with or
    without tensor cores; and whether kernels were chosen by trial."""
    op, precision = int(table.op[task]), table.precision[task]
    way = precision if precision in ("fp32", "tf32") else AS_IS
    inputs = table.inputs(op)
    position = BENCHMARK_AT.get(table.op_name(op))
    if inputs is not None and position is not None and flag_at(inputs, position):
        return f"{way}+{BENCHMARK}"
    return way


def with_precision(now: str, precision: str) -> str:
    """The same way in another precision."""
    return "+".join((precision, *now.split("+")[1:]))


def with_also(now: str, *words: str) -> str:
    """The same way with something changed beside its precision."""
    return "+".join(dict.fromkeys((*now.split("+"), *words)))


def probed_time(
    roofs: DevicePeaks | None, call: OperatorCall | None, way: str, weight_ns: float
) -> MeasuredTime | None:
    """What the operator was measured to take that way; `weight_ns` is how much device time hangs
    on it."""
    if roofs is None or roofs.probed is None or call is None:
        return None
    return roofs.probed.time(ProbeCase(call=call, way=way), weight_ns)


def timed(
    graph: Graph,
    table: TaskTable,
    roofs: DevicePeaks | None,
    leads: Bool,
    way: Callable[[int, str], str | None],
    changed: Callable[[OperatorCall], OperatorCall | None] = lambda call: call,
) -> Float64:
    """Time of each task's operator call run another way, NaN where that was not measured: the
    recorded one by the ratio of the two measured ones. `leads` are one task of each call; `way`
    gives the new way of a task and its present one, None where it stays; `changed` is the call as
    it is then, None where that is not known."""
    ns = np.full(len(graph), np.nan)
    if roofs is None or roofs.probed is None or not leads.any():
        return ns
    spent = spent_ns(graph, table)
    kinds: dict[tuple[int, str], list[int]] = {}
    for task in np.flatnonzero(leads & (table.op != NONE)).tolist():
        kinds.setdefault((int(table.alike[task]), way_now(table, task)), []).append(task)
    for (_, now), tasks in kinds.items():
        after, call = way(tasks[0], now), call_of(table, int(table.op[tasks[0]]))
        other = None if call is None else changed(call)
        if after is None or call is None or other is None:
            continue
        weight = float(spent[tasks].sum()) / max(graph.num_steps, 1)
        old = roofs.probed.time(ProbeCase(call=call, way=now), weight)
        new = roofs.probed.time(ProbeCase(call=other, way=after), weight)
        if old is None or new is None or not is_reproduced(old, spent[tasks]):
            continue
        ns[tasks] = spent[tasks] * new.ns / old.ns
    return ns


def is_reproduced(now: MeasuredTime, recorded_ns: Float64, within: float = SAME_KERNEL) -> bool:
    """Whether an operator that was timed as it ran takes what was recorded. Where it does not,
    another kernel was chosen for it, and nothing that was timed is of this run."""
    recorded = float(np.median(recorded_ns))
    return recorded > 0 and 1 / within < now.ns / recorded < within


def spent_ns(graph: Graph, table: TaskTable) -> Float64:
    """Time of all tasks of each task's operator call."""
    ops, of_op = np.unique(table.op, return_inverse=True)
    total = np.bincount(of_op, graph.task_ns, len(ops))[of_op].astype(np.float64)
    return np.where(table.op == NONE, graph.task_ns, total)


def first_tasks(table: TaskTable, mask: Bool) -> Bool:
    """The first of the masked tasks of each operator's call."""
    tasks = np.flatnonzero(mask & (table.op != NONE))
    first = np.zeros(len(mask), np.bool_)
    first[tasks[np.unique(table.op[tasks], return_index=True)[1]]] = True
    return first


def ratio_of(graph: Graph, table: TaskTable, ns: Float64) -> Float64:
    """Ratio of the new time of each task's call to the recorded one; NaN where it was not
    measured."""
    spent, known = spent_ns(graph, table), np.flatnonzero(~np.isnan(ns))
    by_op = dict(zip(table.op[known].tolist(), (ns[known] / spent[known]).tolist(), strict=True))
    ratios: Float64 = np.array([by_op.get(op, np.nan) for op in table.op.tolist()])
    return ratios


def timed_line(share: float, changed: str) -> tuple[str, ...]:
    """Line of evidence; nothing where none was timed."""
    if share == 0.0:
        return ()
    return (f"timed on this device, as they ran and {changed}: {share:.0%} of their time",)
