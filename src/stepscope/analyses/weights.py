"""The weights that are trained, from the gradients that autograd accumulates; their optimizer."""

from __future__ import annotations

import re
from math import prod

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import Kind, Trace
from stepscope.workload.inputs import inputs_of
from stepscope.workload.operands import operand, read_bytes

ACCUMULATE = re.compile(r"^torch::autograd::AccumulateGrad$")
CASTS = re.compile(r"^aten::(_to_copy|to|copy_|clone)$")
STEP_OF = re.compile(r"^Optimizer\.step#(\w+)\.step")
BLOCK = 512
"""Bytes that the allocator rounds sizes up to (c10/cuda/CUDACachingAllocator.cpp)."""


class Trained(Struct, frozen=True, kw_only=True):
    """The weights that a backward pass makes gradients of."""

    shapes: frozenset[tuple[int, ...]]
    size_bytes: int
    num_elements: int
    sizes: tuple[int, ...] = ()
    """Bytes of each, in the order that gradients come in, the last first."""


def trained_weights(context: RankContext) -> Trained | None:
    """Weights from the gradients that autograd accumulates, in the step with most; None where
    shapes do not tell."""
    trace = context.trace
    nodes = np.flatnonzero(matching(trace, ACCUMULATE) & trace.is_kind(Kind.OP))
    if not trace.meta.has_shapes or len(nodes) == 0:
        return None
    step = np.searchsorted(context.cut.host_start, trace.start_ns[nodes], side="right")
    sizes: dict[int, list[int]] = {}
    elements: dict[int, int] = {}
    shapes: set[tuple[int, ...]] = set()
    parsed: dict[int, tuple[tuple[int, ...], int] | None] = {}
    for node, number in zip(nodes.tolist(), step.tolist(), strict=True):
        detail = int(trace.detail[node])
        if detail not in parsed:
            parsed[detail] = first_tensor(trace, node)
        gradient = parsed[detail]
        if gradient is not None:
            shapes.add(gradient[0])
            sizes.setdefault(number, []).append(gradient[1])
            elements[number] = elements.get(number, 0) + prod(gradient[0])
    if not sizes:
        return None
    largest = max(sizes.values(), key=sum)
    return Trained(
        shapes=frozenset(shapes),
        size_bytes=sum(largest),
        sizes=tuple(reversed(largest)),
        num_elements=max(elements.values()),
    )


def optimizer_of(trace: Trace) -> str | None:
    """The class of the optimizer, where there is one."""
    names = {match[1] for name in trace.names if (match := STEP_OF.match(name))}
    return names.pop() if len(names) == 1 else None


def first_tensor(trace: Trace, op: int) -> tuple[tuple[int, ...], int] | None:
    """Shape and bytes, in the allocator's blocks, of an operator's first input."""
    inputs = inputs_of(trace, op)
    tensor = None if inputs is None else operand(inputs, 0)
    if tensor is None:
        return None
    size = read_bytes(tensor)
    return None if size is None else (tuple(tensor.dims), -(-int(size) // BLOCK) * BLOCK)
