"""What a recorded convolution is, for the rules that judge one."""

from __future__ import annotations

import math

from stepscope.rules.shared.rates import Layout
from stepscope.rules.task_table import TaskTable
from stepscope.workload.inputs import flag_at
from stepscope.workload.operands import Operand, is_shape, operand

TENSOR_CORE_CHANNELS = 4
"""Channels of a group that a tensor core's tile needs in TF32; for the 8 of 16 bits cuDNN pads them
(release notes of 7.3). Kernels for fewer use none."""
BACKWARD_TRANSPOSED = 7
"""Where `aten::convolution_backward` says that it is of a transposed one."""
NARROW_CHANNELS = 64
"""Channels in and out up to which the compiler takes a convolution for a narrow one (torch 2.11 and
2.13)."""


def is_convolution(table: TaskTable, op: int) -> bool:
    return "conv" in table.op_name(op)


def image_and_weight(table: TaskTable, op: int) -> tuple[Operand, Operand] | None:
    """The image that goes in and the weight; None when they are not recorded."""
    inputs = table.inputs(op)
    if inputs is None or not is_convolution(table, op):
        return None
    position = 1 if "backward" in table.op_name(op) else 0
    image, weight = operand(inputs, position), operand(inputs, position + 1)
    if (
        image is None
        or weight is None
        or len(image.dims) != len(weight.dims)
        or len(image.dims) < 3
    ):
        return None
    return image, weight


def is_thin(table: TaskTable, op: int) -> bool:
    """A depthwise convolution, or one whose groups have too few channels for tensor cores: it moves
    bytes and little else."""
    pair = image_and_weight(table, op)
    if pair is None:
        return "depthwise" in table.op_name(op)
    image, weight = pair
    return weight.dims[1] < min(image.dims[1], TENSOR_CORE_CHANNELS)


def is_grouped(table: TaskTable, op: int) -> bool:
    """Whether a filter sees some of the channels alone. The weight of a transposed convolution has
    its channels the other way round, and says nothing of groups."""
    pair = image_and_weight(table, op)
    return pair is not None and pair[1].dims[1] < pair[0].dims[1] and not _is_transposed(table, op)


def _is_transposed(table: TaskTable, op: int) -> bool:
    inputs = table.inputs(op)
    if "backward" not in table.op_name(op) or inputs is None:
        return "transpose" in table.op_name(op)
    return flag_at(inputs, BACKWARD_TRANSPOSED) is True


def num_groups(table: TaskTable, op: int) -> int:
    """1 where the channels are not split, or that is not known."""
    pair = image_and_weight(table, op)
    if pair is None or not is_grouped(table, op):
        return 1
    image, weight = pair
    return max(image.dims[1] // max(weight.dims[1], 1), 1)


def least_channels(table: TaskTable, op: int) -> int:
    """Smaller number of channels of a group, in or out; 0 when not known."""
    pair = image_and_weight(table, op)
    if pair is None:
        return 0
    _, weight = pair
    return min(weight.dims[1], weight.dims[0] // num_groups(table, op))


def layout_of(table: TaskTable, op: int, row: int) -> Layout:
    """How a convolution on the matrix units would find its tensors, `row` numbers in 16 bytes. A
    pointwise one over NCHW is a product whose rows are images, and is not turned."""
    pair = image_and_weight(table, op)
    if pair is None or not is_nchw(table, op):
        return "nhwc"
    image, weight = pair
    if max(weight.dims[2:]) > 1:
        return "turned"
    return "odd" if math.prod(image.dims[2:]) % row else "nhwc"


def is_picture(image: Operand) -> bool:
    """Two dimensions beside the channels. A signal has one, which is recorded as a picture of one
    line."""
    return len(image.dims) == 4 and image.dims[2] > 1


def is_turned_by_compiler(table: TaskTable) -> bool:
    """Whether torch.compile lays this model's images out with their channels innermost by itself,
    as its compiler for GPUs does in training, unless one of the convolutions is grouped with
    several channels each, or has half as many channels out as in (pointwise ones aside), or all of
    them are narrow. On ROCm it leaves them as they are."""
    ops = table.example.tolist()
    if any("miopen" in table.op_name(op) for op in ops):
        return False
    convolutions = [pair for op in ops if (pair := image_and_weight(table, op)) is not None]
    if not convolutions or all(
        max(weight.dims[:2]) <= NARROW_CHANNELS for _, weight in convolutions
    ):
        return False
    for image, weight in convolutions:
        is_grouped = image.dims[1] > weight.dims[1] > 1
        if is_grouped or (weight.dims[0] * 2 <= weight.dims[1] and weight.dims[2] > 1):
            return False
    return True


def is_nchw(table: TaskTable, op: int) -> bool:
    """Whether the first image among the inputs has its channels outside; not so when strides do not
    tell."""
    inputs = table.inputs(op)
    if inputs is None or not inputs.strides:
        return False
    for dims, strides in zip(inputs.dims, inputs.strides, strict=True):
        if (
            is_shape(dims)
            and is_shape(strides)
            and len(dims) in (4, 5)
            and len(strides) == len(dims)
        ):
            return dims[1] > 1 and strides[1] != 1
    return False
