"""A rank's steps by operator, kernel, module and allocation: what the views of a profiler show."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepscope.analyses.grouping import coded_pairs, distinct, is_among, sums
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.projection import is_inside_namesake, module_ranges
from stepscope.core.trace import (
    NONE,
    Bool,
    Int32,
    Int64,
    Kind,
    Launch,
    MemoryEvents,
    OpInputs,
    Trace,
)
from stepscope.core.views import (
    KernelView,
    MemoryView,
    ModuleView,
    OperatorView,
    ProfilerViews,
    ShapeView,
)

MAX_ROWS = 300
MAX_MODULE_CALLS = 200_000
MODULE_PREFIX = "nn.Module: "
ON_HOST, ON_CUDA = 0, 1
"""The allocator's numbers for kinds of device."""


def profiler_views(context: RankContext) -> ProfilerViews:
    """Views of the measured steps; nothing in them where the trace has no whole step."""
    memory, where = memory_views(context)
    calls = calls_of(context)
    return ProfilerViews(
        num_steps=len(context.cut.steps.windows),
        operators=operator_views(context, calls)[:MAX_ROWS],
        shapes=shape_views(context, calls),
        kernels=kernel_views(context),
        modules=module_views(context),
        memory=memory,
        memory_device=where,
    )


def _in_window(trace: Trace, events: Int64, window: tuple[int, int]) -> Int64:
    start = trace.start_ns[events]
    chosen: Int64 = events[(start >= window[0]) & (start < window[1])]
    return chosen


def _inside(context: RankContext) -> Bool:
    """Mask of the charged work that begins in the measured windows."""
    low, high = context.window
    start = context.trace.start_ns[context.charges.work]
    chosen: Bool = (start >= low) & (start < high)
    return chosen


class Calls(Struct, frozen=True):
    """The operators of the measured steps, and the work that each launched itself."""

    ops: Int64
    above: Int64
    """Caller of every event of the trace that is an operator: the operator above it."""
    own_ns: Int64
    """Time of each operator without those that it called."""
    launcher: Int64
    """Operator that launched each piece of work that an operator launched."""
    work_ns: Int64


def calls_of(context: RankContext) -> Calls:
    trace, parent = context.trace, context.links.parent
    is_op = trace.is_kind(Kind.OP)
    every = np.flatnonzero(is_op)
    caller = np.full(len(trace), NONE, np.int64)
    caller[every] = ancestor_with(parent, parent[every], is_op)
    ops = _in_window(trace, every, context.cut.host_window)
    above = caller[ops]
    has_above = above != NONE
    inner = sums(above[has_above], trace.dur_ns[ops[has_above]], len(trace))
    inside = _inside(context) & (context.origins.op != NONE)
    return Calls(
        ops,
        caller,
        np.maximum(trace.dur_ns[ops] - inner[ops], 0),
        context.origins.op[inside],
        trace.dur_ns[context.origins.work[inside]],
    )


def operator_views(context: RankContext, calls: Calls) -> tuple[OperatorView, ...]:
    """Operators by what they take on the device, then on the host; both without the operators they
    call."""
    trace, num = context.trace, len(context.trace.names)
    is_op = trace.is_kind(Kind.OP)
    recurring = np.flatnonzero(_may_recur(trace, calls.above, is_op)[trace.name[calls.ops]])
    is_outer = np.ones(len(calls.ops), np.bool_)
    is_outer[recurring] = ~is_inside_namesake(trace, calls.above, calls.ops[recurring], is_op)
    outer = calls.ops[is_outer]
    counts = np.bincount(trace.name[calls.ops], minlength=num)
    host = sums(trace.name[outer], trace.dur_ns[outer], num)
    own_host = sums(trace.name[calls.ops], calls.own_ns, num)
    device = sums(trace.name[calls.launcher], calls.work_ns, num)
    # Work of the first step may have been launched before the host's window.
    codes = np.flatnonzero((counts > 0) | (device > 0))
    codes = codes[np.lexsort((-own_host[codes], -device[codes]))]
    return tuple(
        OperatorView(
            name=trace.names[code],
            count=int(counts[code]),
            host_ns=int(host[code]),
            own_host_ns=int(own_host[code]),
            own_device_ns=int(device[code]),
        )
        for code in codes.tolist()
    )


def _may_recur(trace: Trace, above: Int64, is_op: Bool) -> Bool:
    """Mask of the names of which an operator may be inside another: not where no chain of calls
    leads from the name back to it."""
    called = np.flatnonzero(is_op & (above != NONE))
    num = len(trace.names)
    names = (trace.name[above[called]], trace.name[called])
    _, outer, inner = coded_pairs(names[0], num, names[1], num)
    while True:
        is_outer, is_inner = np.zeros(num, np.bool_), np.zeros(num, np.bool_)
        is_outer[outer], is_inner[inner] = True, True
        may_recur: Bool = is_outer & is_inner
        stays = may_recur[outer] & may_recur[inner]
        if stays.all():
            return may_recur
        outer, inner = outer[stays], inner[stays]


def shape_views(context: RankContext, calls: Calls) -> tuple[ShapeView, ...] | None:
    """The same by the shapes of the operators' inputs; None where no shape was recorded."""
    trace = context.trace
    if not trace.meta.has_shapes:
        return None
    codes: dict[str, int] = {}
    shape_of = np.zeros(len(trace.details) + 1, np.int64)
    for detail, value in enumerate(trace.details):
        dims = value.dims if isinstance(value, OpInputs) else None
        shape_of[detail] = codes.setdefault(dims or "", len(codes))
    shape_of[NONE] = codes.setdefault("", len(codes))

    events = np.concatenate([calls.ops, calls.launcher])
    rows, names, shape = coded_pairs(
        trace.name[events], len(trace.names), shape_of[trace.detail[events]], len(codes)
    )
    of_ops, of_work = rows[: len(calls.ops)], rows[len(calls.ops) :]
    counts = np.bincount(of_ops, minlength=len(names))
    own_host = sums(of_ops, calls.own_ns, len(names))
    device = sums(of_work, calls.work_ns, len(names))
    order = np.lexsort((-own_host, -device))[:MAX_ROWS]
    shapes = list(codes)
    return tuple(
        ShapeView(
            name=trace.names[names[row]],
            dims=shapes[shape[row]] or None,
            count=int(counts[row]),
            own_host_ns=int(own_host[row]),
            own_device_ns=int(device[row]),
        )
        for row in order.tolist()
    )


def kernel_views(context: RankContext) -> tuple[KernelView, ...]:
    """Kernels by name and launching operator, as the table of kernels has them."""
    trace = context.trace
    inside = _inside(context) & (trace.kind[context.charges.work] == Kind.KERNEL)
    kernels, op = context.origins.work[inside], context.origins.op[inside]
    if not len(kernels):
        return ()
    op_name = np.where(op == NONE, NONE, trace.name[np.maximum(op, 0)]).astype(np.int64)
    num = len(trace.names)
    rows, name, launcher = coded_pairs(trace.name[kernels], num, op_name + 1, num + 1)
    dur = trace.dur_ns[kernels]
    low = np.full(len(name), np.iinfo(np.int64).max)
    high = np.zeros(len(name), np.int64)
    np.minimum.at(low, rows, dur)
    np.maximum.at(high, rows, dur)
    num_sms = None if context.device is None else context.device.num_sms
    occupancy, blocks = _launch_figures(trace, kernels, num_sms)
    means = [_weighted(rows, figure, dur, len(name)) for figure in (occupancy, blocks)]
    return tuple(
        KernelView(
            name=trace.names[name[row]],
            op=trace.names[launcher[row] - 1] if launcher[row] else None,
            min_ns=int(low[row]),
            max_ns=int(high[row]),
            occupancy_pct=means[0][row],
            blocks_per_sm=means[1][row],
        )
        for row in range(len(name))
    )


def _launch_figures(
    trace: Trace, kernels: Int64, num_sms: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Occupancy, and blocks a multiprocessor, of each kernel; NaN where it is not known."""
    occupancy = np.full(len(trace.details) + 1, np.nan)
    blocks = np.full(len(trace.details) + 1, np.nan)
    for code in distinct(trace.detail[kernels]).tolist():
        launch = None if code == NONE else trace.details[code]
        if not isinstance(launch, Launch):
            continue
        if launch.occupancy_pct is not None:
            occupancy[code] = launch.occupancy_pct
        if launch.grid is not None and num_sms:
            blocks[code] = math.prod(map(float, launch.grid)) / num_sms
    codes = trace.detail[kernels]
    return occupancy[codes], blocks[codes]


def _weighted(
    rows: Int64, figure: NDArray[np.float64], dur: Int64, num_rows: int
) -> list[float | None]:
    """The mean of each row by time; None where no kernel of it has the figure."""
    known = ~np.isnan(figure)
    weights = np.maximum(dur[known], 1).astype(np.float64)
    total = np.bincount(rows[known], weights=weights * figure[known], minlength=num_rows)
    weight = np.bincount(rows[known], weights=weights, minlength=num_rows)
    return [float(total[row] / weight[row]) if weight[row] else None for row in range(num_rows)]


def module_views(context: RankContext) -> tuple[ModuleView, ...] | None:
    """The tree of modules, in the order in which they were first called."""
    trace, parent = context.trace, context.links.parent
    is_module = module_ranges(trace)
    if not is_module.any():
        return None
    measured = _in_window(trace, np.flatnonzero(is_module), context.cut.host_window)
    module_of = _modules_of(context, is_module)
    captured = _captured_modules(context, is_module, module_of)
    calls = distinct(np.concatenate([measured, captured]))[:MAX_MODULE_CALLS]
    if not len(calls):
        return None
    above = ancestor_with(parent, parent[calls], is_module)
    node_of: dict[int, int] = {}
    nodes: dict[tuple[int, int], int] = {}
    tree: list[tuple[int, int]] = []
    columns = (calls.tolist(), above.tolist(), trace.name[calls].tolist())
    for call, outer, name in zip(*columns, strict=True):
        place = (node_of.get(outer, NONE), name)
        node_of[call] = nodes.setdefault(place, len(nodes))
        if len(tree) < len(nodes):
            tree.append(place)
    rows = np.array([node_of[call] for call in calls.tolist()], np.int64)
    nodes_at = np.full(len(trace), NONE, np.int32)
    nodes_at[calls] = rows
    # Those of a captured run outside the steps lend their names, not their time.
    rows, calls = (column[is_among(calls, measured)] for column in (rows, calls))
    counts = np.bincount(rows, minlength=len(tree))
    host = sums(rows, trace.dur_ns[calls], len(tree))
    device = _device_by_node(context, module_of, nodes_at, len(tree))
    # A child's number is above its parent's: it was seen later.
    for node in range(len(tree) - 1, -1, -1):
        if tree[node][0] != NONE:
            device[tree[node][0]] += device[node]
    order = _tree_order([above for above, _ in tree])
    return tuple(
        ModuleView(
            name=trace.names[tree[node][1]].removeprefix(MODULE_PREFIX),
            depth=depth,
            count=int(counts[node]),
            host_ns=int(host[node]),
            device_ns=int(device[node]),
        )
        for node, depth in order[:MAX_ROWS]
    )


def _modules_of(context: RankContext, is_module: Bool) -> Int64:
    """Innermost module that each piece of charged work was launched in."""
    charges = context.origins
    start = np.where(charges.home == NONE, charges.launch, charges.home)
    return ancestor_with(context.links.parent, start, is_module)


def _captured_modules(context: RankContext, is_module: Bool, module_of: Int64) -> Int64:
    """The modules, and those around them, that the measured work of CUDA graphs was captured in."""
    work, links = context.origins.work, context.links
    inside = _inside(context) & (links.captured[work] != NONE)
    calls = distinct(module_of[inside])
    level = calls = calls[calls != NONE]
    while len(level):
        level = distinct(ancestor_with(links.parent, links.parent[level], is_module))
        level = level[level != NONE]
        calls = distinct(np.concatenate([calls, level]))
    return calls


def _device_by_node(context: RankContext, module_of: Int64, nodes_at: Int32, num: int) -> Int64:
    """The time of the work launched in each node, and in no node below it."""
    trace, inside = context.trace, _inside(context)
    work, module = context.origins.work[inside], module_of[inside]
    node = np.where(module == NONE, NONE, nodes_at[module])
    return sums(node[node != NONE], trace.dur_ns[work[node != NONE]], num)


def _tree_order(parents: list[int]) -> list[tuple[int, int]]:
    """Each node with its depth, children right below their parent."""
    children: dict[int, list[int]] = {}
    for node, above in enumerate(parents):
        children.setdefault(above, []).append(node)
    order: list[tuple[int, int]] = []
    pending = [(node, 0) for node in reversed(children.get(NONE, []))]
    while pending:
        node, depth = pending.pop()
        order.append((node, depth))
        pending += [(child, depth + 1) for child in reversed(children.get(node, []))]
    return order


def memory_views(
    context: RankContext,
) -> tuple[tuple[MemoryView, ...] | None, str | None]:
    """Allocations by the operator that ran, and where that memory is: the device with most of the
    events, else the host.

    The recorder does not tell the thread: of the operators that run at that moment, the one that
    began last is taken.
    """
    trace, (low, high) = context.trace, context.cut.host_window
    memory = trace.memory
    if memory is None or high <= low:
        return None, None
    inside = (memory.time_ns >= low) & (memory.time_ns < high)
    for kind, where in ((ON_CUDA, "device"), (ON_HOST, "host")):
        mine = np.flatnonzero(inside & (memory.device_type == kind))
        if len(mine):
            return _memory_rows(context, memory, mine), where
    return None, None


def _memory_rows(
    context: RankContext, memory: MemoryEvents, events: Int64
) -> tuple[MemoryView, ...]:
    trace = context.trace
    op = _running_op(context, memory.time_ns[events])
    name = np.where(op == NONE, len(trace.names), trace.name[np.maximum(op, 0)]).astype(np.int64)
    size = memory.size_bytes[events]
    num = len(trace.names) + 1
    counts = np.bincount(name[size > 0], minlength=num)
    allocated = sums(name[size > 0], size[size > 0], num)
    net = sums(name, size, num)
    codes = np.flatnonzero((counts > 0) | (net != 0))
    codes = codes[np.argsort(-allocated[codes], kind="stable")]
    return tuple(
        MemoryView(
            op=None if code == len(trace.names) else trace.names[code],
            count=int(counts[code]),
            allocated_bytes=int(allocated[code]),
            net_bytes=int(net[code]),
        )
        for code in codes.tolist()[:MAX_ROWS]
    )


def _running_op(context: RankContext, at_ns: Int64) -> Int64:
    """Operator that runs at each moment, the one that began last; NONE for none."""
    trace, parent = context.trace, context.links.parent
    is_op = trace.is_kind(Kind.OP)
    ops = np.flatnonzero(is_op)
    best = np.full(len(at_ns), NONE, np.int64)
    for thread in distinct(trace.thread[ops]).tolist():
        mine = ops[trace.thread[ops] == thread]
        index = np.searchsorted(trace.start_ns[mine], at_ns, side="right") - 1
        current = np.where(index >= 0, mine[np.maximum(index, 0)], NONE)
        pending = np.flatnonzero(current != NONE)
        while len(pending):
            event = current[pending]
            is_over = trace.start_ns[event] + trace.dur_ns[event] <= at_ns[pending]
            pending, event = pending[is_over], event[is_over]
            current[pending] = ancestor_with(parent, parent[event], is_op)
            pending = pending[current[pending] != NONE]
        later = (current != NONE) & (
            (best == NONE)
            | (trace.start_ns[np.maximum(current, 0)] > trace.start_ns[np.maximum(best, 0)])
        )
        best[later] = current[later]
    return best
