"""What an operator of one name and inputs moves and computes, as far as its recorded sizes tell."""

from __future__ import annotations

import re

from msgspec import Struct

from stepscope.rules.task_table import TaskTable
from stepscope.workload.inputs import integer_at
from stepscope.workload.operands import Operand, operands, read_bytes, size_bytes


class Policy(Struct, frozen=True, kw_only=True):
    large_bytes: float = 1e6
    """Bytes of one tensor from which it is large: less stays in the cache."""
    call_instructions: int = 20
    """Instructions per element of a transcendental function or a division, as the CUDA math library
    expands them (expf 8, tanhf and sinf about 25); 2 for anything else."""
    plain_instructions: int = 2


POLICY = Policy()

FILLING = re.compile(r"::(copy_|fill_|zero_|uniform_|normal_|bernoulli_|random_|exponential_)$")
"""Operators that write their first argument without reading it."""
CALLS = re.compile(
    r"exp|tanh|sin|cos|sigmoid|silu|gelu|softmax|erf|log|pow|div|rsqrt|sqrt|reciprocal|mish|softplus"
)


Tensor = tuple[int, str]
"""A number of elements and their type."""


class Traffic(Struct, frozen=True, kw_only=True):
    """What an operator of one name and inputs moves and computes. Bytes."""

    reads: tuple[Tensor, ...]
    read_bytes: tuple[float, ...]
    """Bytes of each of them."""
    large: frozenset[Tensor]
    """Tensors of `reads` that do not stay in the cache."""
    writes: Tensor | None
    writes_alike: bool
    """Whether it writes as many elements as its largest input has."""
    again: float
    """Bytes read in a second pass, fused or not: for statistics, or gradients of weight and bias,
    over the other dimensions."""
    moved: float
    instructions: float
    over_batches: bool
    is_norm_backward: bool
    name: str


def bytes_of(tensor: Tensor) -> float:
    return size_bytes(*tensor) or 0.0


def traffic_of(table: TaskTable, op: int) -> Traffic:
    tensors, written = _read_and_written(table, op)
    reads = tuple((tensor.numel, tensor.dtype) for tensor in tensors)
    sizes = tuple(bytes_of((tensor.stored, tensor.dtype)) for tensor in tensors)
    name, num = table.op_name(op), max((numel for numel, _ in reads), default=0)
    is_norm_backward = name.endswith("norm_backward")
    again = (read_bytes(*tensors[:2]) or 0.0) if is_norm_backward else 0.0
    if "batch_norm" in name:
        again = again or (read_bytes(*tensors[:1]) or 0.0)
    calls = _calls_a_function(table, op, len(reads))
    each = POLICY.call_instructions if calls else POLICY.plain_instructions
    alike = _written_alike(num, reads, written)
    other = (int(written / 4), "fp32") if num and written > 0 else None
    return Traffic(
        reads=reads,
        read_bytes=sizes,
        large=frozenset(
            tensor for tensor, size in zip(reads, sizes, strict=True) if size >= POLICY.large_bytes
        ),
        writes=alike or other,
        writes_alike=alike is not None,
        again=again,
        moved=(read_bytes(*tensors) or 0.0) + written + again,
        instructions=each * num,
        over_batches="batch_norm" in name,
        is_norm_backward=is_norm_backward,
        name=name,
    )


def _read_and_written(table: TaskTable, op: int) -> tuple[list[Operand], float]:
    inputs, work = table.inputs(op), table.work(op)
    assert inputs is not None
    assert work is not None
    tensors = [
        tensor
        for tensor in operands(inputs, range(len(inputs.dims)))
        if tensor.numel > 1 and tensor.dtype
    ]
    if FILLING.search(table.op_name(op)):
        tensors = tensors[1:]
    elif len(tensors) > 1 and (read_bytes(*tensors) or 0.0) >= (work.bytes or 0.0):
        tensors = tensors[:-1]
    return tensors, max((work.bytes or 0.0) - (read_bytes(*tensors) or 0.0), 0.0)


def _written_alike(numel: int, reads: tuple[Tensor, ...], written: float) -> Tensor | None:
    """Tensor that it writes if that is as many elements as its largest input has, as far as the
    bytes say so: of that type or a wider one."""
    own = next((dtype for count, dtype in reads if count == numel), "fp32")
    for dtype in (own, "bf16", "fp16", "fp32", "bool"):
        size = size_bytes(numel, dtype) or 0.0
        if numel and 0.95 * size <= written <= 1.4 * size:
            return numel, dtype
    return None


def _calls_a_function(table: TaskTable, op: int, num_reads: int) -> bool:
    """Whether each element costs a call: division by a number is a product, and so is a power of 2
    or 3."""
    name, inputs = table.op_name(op), table.inputs(op)
    if "div" in name:
        return num_reads > 1
    if "pow" in name and inputs is not None:
        return integer_at(inputs, 1) is None
    return CALLS.search(name) is not None
