"""What autocast to bf16 does to the rest of a network over images: half the traffic, and batch
norms that leave cuDNN.

PyTorch normalises bf16 images in NCHW with kernels of its own, one block per channel (cuDNN takes
fp32): with few channels most of the device is idle. Over 19 shapes on an H200 (torch 2.11) they
took 1.7 to 2.0 ns for each number of a channel going back and 0.6 to 0.95 for the statistics with
up to 112 channels, and reached 0.6 to 0.84 TB/s with 480 and more.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import Float64
from stepscope.replay.graph import Graph
from stepscope.rules.shared.convolutions import is_nchw, is_picture
from stepscope.rules.task_table import TaskTable
from stepscope.workload.operands import operand

STATISTICS_NS, BACKWARD_NS = 0.8, 1.85
"""For each number of a channel."""
STATISTICS_RATE, BACKWARD_RATE = 700.0, 800.0
"""Bytes a nanosecond."""
NORMS = ("aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward")
STREAMING = ("pointwise", "pooling")


def image_times_in_half(graph: Graph, table: TaskTable, roofs: DevicePeaks) -> Float64:
    """Per task its time under autocast to bf16, NaN where it stays as it is."""
    times = np.full(len(graph), np.nan)
    streaming = table.of_category(*STREAMING) & ~table.optimizer
    streaming &= table.where(partial(_is_over_images, table))
    times[streaming] = graph.task_ns[streaming] / 2
    norms = table.where(lambda op: table.op_name(op) in NORMS and is_nchw(table, op))
    for task in np.flatnonzero(norms).tolist():
        times[task] = _norm_ns(table, roofs, int(table.op[task]))
    # An operator of several kernels: all its time on the first.
    repeated = norms & (np.diff(table.op, prepend=-2) == 0)
    times[repeated] = 0.0
    return times


def _is_over_images(table: TaskTable, op: int) -> bool:
    inputs = table.inputs(op)
    image = None if inputs is None else operand(inputs, 0)
    return image is not None and is_picture(image) and image.dtype == "fp32"


def _norm_ns(table: TaskTable, roofs: DevicePeaks, op: int) -> float:
    inputs = table.inputs(op)
    image = None if inputs is None else operand(inputs, 0)
    if image is None or len(image.dims) < 2 or image.dtype != "fp32":
        return float("nan")
    each, size = image.numel / max(image.dims[1], 1), 2.0 * image.numel
    if "backward" in table.op_name(op):
        return max(BACKWARD_NS * each, 3 * size / BACKWARD_RATE)
    return max(STATISTICS_NS * each, size / STATISTICS_RATE) + roofs.traffic_ns(2 * size) / 0.5
