"""Products on the vector units, and how long they take at another precision."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, is_among
from stepscope.analyses.intervals import union
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool, Float64, Int64
from stepscope.replay.changes import Change, without_host_ranges, without_tasks
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.shared.autocast import CAST_OPERATORS, under_autocast
from stepscope.rules.shared.casts import cast_of, spared
from stepscope.rules.shared.convolutions import is_grouped, is_thin, layout_of, least_channels
from stepscope.rules.shared.half_width import more_norm_launches, times_in_half
from stepscope.rules.shared.host_ranges import call_of_task, with_operators
from stepscope.rules.shared.measured import spent_ns, timed, with_precision
from stepscope.rules.shared.products import BATCHED, PRODUCTS, ROW_OF, is_aligned, num_across
from stepscope.rules.shared.rates import (
    BATCHED_MISALIGNED_FACTOR,
    MISALIGNED_FACTOR,
    STREAM_FIXED_NS,
    attention_ns,
    convolution_ns,
    fixed_ns,
    half_precision,
    matrix_ns,
    recurrent_ns,
)
from stepscope.rules.shared.unrecorded import ask_for_shapes
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.operands import operand


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Share of the step in such kernels below which nothing is reported."""
    unknown_share: float = 0.05
    """Share of the step in kernels that look so by name from which shapes are asked for."""


POLICY = Policy()
HALF_PRECISIONS = ("bf16", "fp16")
HALF_CHANNELS = 8
"""Channels of a group that fill a row of a tensor core's tile in 16 bits."""


class VectorProducts(Struct, frozen=True, kw_only=True):
    """The products that use no tensor cores."""

    slow: Bool
    """Their tasks, helpers among them."""
    sized: Bool
    """Tasks of products whose work is known."""
    evidence: str
    summary: str


def find_products(case: Case) -> VectorProducts | None:
    """Products of fp32 numbers. None where there are none of known size, or too few to matter."""
    return _found(case, _vector_matrix_tasks(case.table), "fp32 matrix products")


def find_half_convolutions(case: Case) -> VectorProducts | None:
    """Convolutions over 16-bit numbers in a kernel that multiplies in fp32, as cuDNN takes where it
    has, or guesses, nothing better; with channels enough for the tensor cores."""
    table = case.table
    known = table.of_category("convolution") & _is_half(table) & (table.op != NONE)
    vector = known & (table.tensor_core == 0) & table.is_matrix
    wide = vector & table.where(lambda op: least_channels(table, op) >= HALF_CHANNELS)
    return _found(case, known & is_among(table.op, table.op[wide]), "16-bit convolutions")


def _found(case: Case, slow: Bool, what: str) -> VectorProducts | None:
    graph, table = case.graph, case.table
    sized = slow & _is_sized(table)
    spent_ms = per_step_ms(graph, slow)
    if not sized.any() or spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    at_once = ", several at a time," if spent_ms * 1e6 > case.step_interval_ns else ""
    rate = float(table.flops[sized].sum() / graph.task_ns[sized].sum() / 1e3)
    return VectorProducts(
        slow=slow,
        sized=sized,
        summary=f"{spent_ms:.1f} ms of {what} a step{at_once} run without tensor cores.",
        evidence=f"{int(sized.sum()) // max(graph.num_steps, 1)} products a step reach "
        f"{rate:.0f} TFLOP/s",
    )


def _vector_matrix_tasks(table: TaskTable) -> Bool:
    """fp32 matrix kernels that surely use no tensor cores, and the helpers launched with them."""
    fp32 = np.array([precision == "fp32" for precision in table.precision], np.bool_)
    matrix = table.of_category("gemm", "convolution", "attention") & fp32
    sure = (
        matrix
        & table.is_matrix
        & ((table.tensor_core == 0) | table.of_category("attention") | (table.tensor_core == NONE))
    )
    thick = sure & (table.op != NONE) & ~table.where(partial(is_thin, table))
    chosen: Bool = matrix & is_among(table.op, table.op[thick])
    return chosen


def tf32_tasks(table: TaskTable) -> Bool:
    """Kernels that round fp32 numbers to TF32, and the helpers launched with them."""
    in_tf32 = np.array([precision == "tf32" for precision in table.precision], np.bool_)
    matrix = table.of_category("gemm", "convolution", "attention")
    known = in_tf32 & matrix & table.is_matrix & (table.op != NONE)
    chosen: Bool = matrix & is_among(table.op, table.op[known])
    return chosen


def _is_sized(table: TaskTable) -> Bool:
    known: Bool = table.is_matrix & ~np.isnan(table.flops)
    return known


def ask_for_products(case: Case, code: str) -> Abstention | None:
    if case.context.trace.meta.has_shapes and case.context.roofs is not None:
        return None
    table = case.table
    by_name = table.of_category("gemm", "convolution") & (table.tensor_core == 0)
    reason = "kernels without tensor cores, whose type and size are not known"
    return ask_for_shapes(case, code, by_name, POLICY.unknown_share, reason)


def at_precision(
    case: Case, roofs: DevicePeaks, products: VectorProducts, precision: str
) -> Change:
    """Products at that precision's rate; in 16 bits those that are in TF32 as well, with half the
    traffic and the casts."""
    graph, table, slow, sized = case.graph, case.table, products.slow, products.sized
    whole = _groups_at_once(case, graph, sized)
    if precision != "tf32":
        in_tf32 = tf32_tasks(table)
        slow, sized = slow | in_tf32, sized | (in_tf32 & _is_sized(table))
    times = _times(graph, table, roofs, slow, sized, precision)
    if precision == "tf32":
        return lambda before: whole(_with_products(graph, before, slow, times))
    cast = under_autocast(case, roofs)
    others_ns = times_in_half(graph, table, roofs, cast.narrow)
    operators = CAST_OPERATORS * cast.launches + more_norm_launches(table)

    def change(before: Graph) -> Graph:
        faster = _with_products(graph, before, slow, times)
        # What another fix has changed, as by fusing it, is not what it was.
        others = ~np.isnan(others_ns) & (before.task_ns == graph.task_ns)
        task_ns = np.where(others, others_ns, faster.task_ns) + cast.cast_ns
        narrower = replace(faster, task_ns=task_ns)
        return with_operators(whole(narrower), table, operators)

    return change


def timed_share(case: Case, products: VectorProducts, precision: str) -> float:
    """Share of the products' time that was timed on the device in that precision."""
    graph, table = case.graph, case.table
    leads = products.sized
    known = timed(graph, table, case.context.roofs, leads, partial(_way, table, precision))
    spent = spent_ns(graph, table)
    return float(spent[~np.isnan(known)].sum() / max(spent[leads].sum(), 1.0))


def without_autocast(case: Case, roofs: DevicePeaks, convolutions: VectorProducts) -> Change:
    """All in fp32 and TF32: no casts, these convolutions on the tensor cores, what is 16 bits wide
    twice as wide, and other products at TF32's rate."""
    graph, table = case.graph, case.table
    faster = at_precision(case, roofs, convolutions, "tf32")
    casts = table.where(lambda op: table.once(cast_of, op) is not None) & ~table.optimizer
    gone = spared(case, table, casts, np.zeros_like(casts), with_host=True)
    half = half_precision(roofs)
    ratio = 1.0 if half is None else _peak(roofs, half) / _peak(roofs, "tf32")
    narrow = _is_half(table) & ~casts & ~convolutions.slow
    longer = np.where(table.is_matrix, ratio, 2.0)
    start = fixed_ns(roofs, STREAM_FIXED_NS)
    times = graph.task_ns + (longer - 1) * np.maximum(graph.task_ns - start, 0.0)

    def change(before: Graph) -> Graph:
        after = faster(before)
        return gone(replace(after, task_ns=np.where(narrow, times, after.task_ns)))

    return change


def _peak(roofs: DevicePeaks, precision: str) -> float:
    return roofs.spec.peak_flops[precision].value


def _is_half(table: TaskTable) -> Bool:
    return np.array([precision in HALF_PRECISIONS for precision in table.precision], np.bool_)


def _with_products(graph: Graph, before: Graph, slow: Bool, times: Float64) -> Graph:
    """The slow tasks take these times. What another fix has shortened already becomes no longer by
    this one; helpers that are not needed any more leave no gap."""
    is_as_recorded = before.task_ns == graph.task_ns
    shorter = np.where(
        is_as_recorded & np.isfinite(times), times, np.minimum(before.task_ns, times)
    )
    faster = replace(before, task_ns=np.where(slow, shorter, before.task_ns))
    return without_tasks(faster, slow & (times == 0.0))


def _groups_at_once(case: Case, graph: Graph, sized: Bool) -> Change:
    """Grouped convolutions launched once. Without tensor cores cuDNN takes each group by itself,
    spread over streams of its own (ResNeXt-50: 32 kernels going forward, 96 and 32 memsets going
    back); its kernels for tensor cores mostly take all groups (RegNet in bf16)."""
    table, trace = case.table, case.replayed
    grouped = table.where(partial(is_grouped, table)) & is_among(table.op, table.op[sized])
    tasks = np.flatnonzero(grouped)
    ops, first, of_op = np.unique(table.op[tasks], return_index=True, return_inverse=True)
    elsewhere = graph.task_stream[tasks] != graph.task_stream[tasks[first]][of_op]
    by_group = np.bincount(of_op, elsewhere, minlength=len(ops)) > 0
    if not by_group.any():
        return lambda before: before
    call = graph.call_event[call_of_task(graph)[tasks]]
    last = np.zeros(len(ops), np.int64)
    np.maximum.at(last, of_op, trace.end_ns[call])
    gone = union(trace.end_ns[call[first]][by_group], last[by_group])
    single = is_among(table.op, ops[by_group]) & ~sized
    return lambda before: without_host_ranges(without_tasks(before, single), gone)


def _times(
    graph: Graph, table: TaskTable, roofs: DevicePeaks, slow: Bool, sized: Bool, precision: str
) -> Float64:
    """Time of each task at that precision; a helper of a product whose time is known takes none. A
    product takes no longer than it and its helpers do now."""
    helped = is_among(table.op, table.op[sized])
    times = np.where(slow & helped & ~sized, 0.0, np.inf)
    traffic = 1.0 if precision == "tf32" else 0.5
    known: dict[tuple[int, int, float, float], float] = {}
    for task in np.flatnonzero(sized).tolist():
        flops, size = float(table.flops[task]), float(table.bytes[task]) * traffic
        key = (int(table.alike[task]), int(table.category[task]), flops, size)
        if key not in known:
            known[key] = _time(table, roofs, task, flops, size, precision)
        times[task] = known[key]
    times = np.where(np.isnan(times), np.inf, times)
    probed = timed(graph, table, roofs, sized, partial(_way, table, precision))
    together = slow & helped
    ops, of_op = np.unique(table.op[together], return_inverse=True)
    now_ns = np.zeros(len(graph))
    now_ns[together] = np.bincount(of_op, graph.task_ns[together], len(ops))[of_op]
    times = np.where(sized, np.minimum(times, now_ns), times)
    recurrent = slow & table.where(partial(_is_recurrent, table))
    for op in distinct(table.op[recurrent & sized]).tolist():
        tasks = np.flatnonzero(recurrent & (table.op == op))
        times[tasks] = _recurrent_times(graph, table, roofs, tasks, precision)
    return np.where(np.isnan(probed), times, probed)


def _way(table: TaskTable, precision: str, task: int, now: str) -> str | None:
    """How an operator is to be timed; attention takes no TF32."""
    is_attention = table.categories[table.category[task]] == "attention"
    return None if is_attention and precision == "tf32" else with_precision(now, precision)


def _is_recurrent(table: TaskTable, op: int) -> bool:
    work = table.work(op)
    return work is not None and work.kind == "rnn"


def _recurrent_times(
    graph: Graph, table: TaskTable, roofs: DevicePeaks, tasks: Int64, precision: str
) -> Float64:
    """A recurrent layer's products are a kernel each, on streams of their own; each keeps its part
    of the whole."""
    now_ns = graph.task_ns[tasks]
    whole_ns = recurrent_ns(roofs, float(np.nansum(table.flops[tasks])), precision, len(tasks))
    part = whole_ns / max(float(now_ns.sum()), 1.0)
    times: Float64 = now_ns * min(np.nan_to_num(part, nan=1.0), 1.0)
    return times


def _time(
    table: TaskTable, roofs: DevicePeaks, task: int, flops: float, size: float, precision: str
) -> float:
    op, category = int(table.op[task]), table.categories[table.category[task]]
    if category == "attention":
        return _attention(table, roofs, op, flops, precision)
    if category == "convolution":
        return convolution_ns(
            roofs,
            flops,
            size,
            precision,
            backward="backward" in table.op_name(op),
            channels=least_channels(table, op),
            layout=layout_of(table, op, ROW_OF[precision]),
            grouped=is_grouped(table, op),
        )
    return _product_ns(table, roofs, op, flops, size, precision)


def _attention(
    table: TaskTable, roofs: DevicePeaks, op: int, flops: float, precision: str
) -> float:
    """Fused attention as it is, from its FLOPs: they are 4 (backward 10) x batch x queries x keys x
    head size."""
    inputs = table.inputs(op)
    backward = "backward" in table.op_name(op)
    if precision == "tf32" or inputs is None:
        return np.inf
    query = operand(inputs, 1 if backward else 0)
    if query is None or not query.dims:
        return np.inf
    dim = max(query.dims[-1], 1)
    scores = flops / (10 if backward else 4) / dim
    side = max(int(scores**0.5), 1)
    once = attention_ns(
        roofs, batch=1, queries=side, keys=side, dim=dim, precision=precision, causal=False
    )
    return once * 3.0 if backward else once


def _product_ns(
    table: TaskTable, roofs: DevicePeaks, op: int, flops: float, size: float, precision: str
) -> float:
    """Slower where its matrices lie as the matrix units do not take them."""
    inputs, name = table.inputs(op), table.op_name(op)
    positions = PRODUCTS.get(name) or BATCHED.get(name)
    if inputs is None or positions is None:
        return matrix_ns(roofs, flops, size, precision)
    slowdown = BATCHED_MISALIGNED_FACTOR if name in BATCHED else MISALIGNED_FACTOR
    if is_aligned(inputs, positions, ROW_OF[precision]):
        slowdown = 1.0
    across = num_across(inputs, positions)
    return matrix_ns(roofs, flops, size, precision, num_across=across, slowdown=slowdown)
