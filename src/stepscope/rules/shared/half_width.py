"""What autocast to bf16 does to the kernels beside the products: half the traffic, batch norms over
images that leave cuDNN, depthwise convolutions.

PyTorch normalises bf16 images in NCHW with kernels of its own, one block per channel (cuDNN takes
fp32): with few channels most of the device is idle. Over 125 shapes of 7 recorded runs on an H200
(torch 2.11) they took about 1.85 ns for each number of a channel going back and 0.85 for the
statistics with up to 112 channels, and reached 0.7 and 0.45 TB/s with many: off by 15 % on average,
and by 8 to 31 % in runs that are left out.

Depthwise convolutions in NCHW take PyTorch's own kernels and as long as before (mobilenet_v3: 13.2
ms of them in bf16, 13.0 in fp32). In NHWC cuDNN has better ones for 16 bits than for fp32: with a
kernel of 7, over four shapes, 0.15 to 0.26 ps for each number and weight going forward, 0.34 to
0.44 for the images' gradient, 0.12 to 0.2 for the weights'.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import Bool, Float64
from stepscope.replay.graph import Graph
from stepscope.rules.shared.convolutions import image_and_weight, is_nchw, is_thin
from stepscope.rules.shared.host_ranges import INNER_LAUNCH
from stepscope.rules.shared.measured import first_tasks, ratio_of, timed, with_precision
from stepscope.rules.shared.rates import STREAM_FIXED_NS, fixed_ns, half_precision
from stepscope.rules.task_table import TaskTable
from stepscope.workload.operands import operand

STATISTICS_NS, BACKWARD_NS = 0.85, 1.85
"""Nanoseconds for each number of a channel."""
STATISTICS_RATE, BACKWARD_RATE = 450.0, 700.0
"""Bytes a nanosecond."""
NORM_FIXED_NS, NORM_BACKWARD_FIXED_NS = 10_000, 3_000
"""Forward it is three kernels."""
THIN_NS = 0.0004
"""Nanoseconds for each number and weight of a depthwise convolution in NHWC."""
NORM_KERNELS = 3
"""Kernels of a batch norm going forward, where cuDNN has one."""
NORMS = ("aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward")


def times_in_half(graph: Graph, table: TaskTable, roofs: DevicePeaks, narrow: Bool) -> Float64:
    """Time of each task under autocast to bf16, NaN where it stays as it is; `narrow` are those
    that stream over 16 bits then."""
    times = np.full(len(graph), np.nan)
    shortest = fixed_ns(roofs, STREAM_FIXED_NS)
    halved = np.maximum(graph.task_ns / 2, np.minimum(graph.task_ns, shortest))
    times[narrow] = halved[narrow]
    thin = table.of_category("convolution") & table.where(partial(_is_thin_nhwc, table))
    for task in np.flatnonzero(thin).tolist():
        times[task] = min(graph.task_ns[task], _thin_ns(table, int(table.op[task])))
    norms = table.where(lambda op: table.op_name(op) in NORMS and is_nchw(table, op))
    for task in np.flatnonzero(norms).tolist():
        times[task] = _norm_ns(table, roofs, int(table.op[task]))
    # An operator of several kernels: all its time on the first.
    repeated = norms & (np.diff(table.op, prepend=-2) == 0)
    times[repeated] = 0.0
    half = half_precision(roofs) or "bf16"
    leads = first_tasks(table, narrow | norms)
    probed = timed(graph, table, roofs, leads, lambda _, now: with_precision(now, half))
    ratio = ratio_of(graph, table, probed)
    return np.where(np.isnan(ratio) | ~(narrow | norms), times, ratio * graph.task_ns)


def more_norm_launches(table: TaskTable) -> Float64:
    """Launches of a batch norm in bf16 more than in fp32, by task, in operators."""
    forward = table.where(lambda op: table.op_name(op) == NORMS[0] and is_nchw(table, op))
    leads = forward & (np.diff(table.op, prepend=-2) != 0)
    return np.where(leads, INNER_LAUNCH * (NORM_KERNELS - 1), 0.0)


def _is_thin_nhwc(table: TaskTable, op: int) -> bool:
    pair = image_and_weight(table, op)
    return (
        pair is not None
        and pair[0].dtype == "fp32"
        and is_thin(table, op)
        and not is_nchw(table, op)
    )


def _thin_ns(table: TaskTable, op: int) -> float:
    pair = image_and_weight(table, op)
    assert pair is not None
    image, weight = pair
    return THIN_NS * image.numel * float(np.prod(weight.dims[2:]))


def _norm_ns(table: TaskTable, roofs: DevicePeaks, op: int) -> float:
    inputs = table.inputs(op)
    image = None if inputs is None else operand(inputs, 0)
    if image is None or len(image.dims) < 2 or image.dtype != "fp32":
        return float("nan")
    each, size = image.numel / max(image.dims[1], 1), 2.0 * image.numel
    if "backward" in table.op_name(op):
        moving = max(BACKWARD_NS * each, 3 * size / BACKWARD_RATE)
        return fixed_ns(roofs, NORM_BACKWARD_FIXED_NS) + moving
    statistics = max(STATISTICS_NS * each, size / STATISTICS_RATE)
    return fixed_ns(roofs, NORM_FIXED_NS) + statistics + roofs.traffic_ns(2 * size) / 0.5
