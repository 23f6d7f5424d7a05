"""What a collective is, from the ranges around it and their inputs:
for recorders that write nothing to the kernel.

An all-to-all's kernel is called SendRecv, as any group of sends and receives is. The range
`nccl:all_to_all` around its launch says what it is, and the operator `c10d::alltoall_base_` around
that how large.
"""

from __future__ import annotations

import math
import re
from itertools import zip_longest

from msgspec import Struct

from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import NONE, OpInputs
from stepscope.protocol.untrusted import parse_json
from stepscope.workload.inputs import DTYPES, ITEM_BYTES

RANGE = re.compile(r"^(?:nccl|rccl|gloo):(\w+)")
OUT_AND_IN = re.compile(r"^c10d::(_allgather_base_|_reduce_scatter_base_|alltoall_base_)$")
"""Operators whose first two inputs are what comes out and what goes in."""
MAX_LEVELS = 64
MAX_ELEMENTS = 1 << 50
"""More is no tensor of any device."""


class CollectiveInputs(Struct, frozen=True, kw_only=True):
    """What the ranges around a launch say; None where they do not."""

    name: str
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None

    @property
    def group_size(self) -> int | None:
        """Group size of gathers and scatters: how many times the smaller side goes into the
        larger."""
        if (
            not self.in_elements
            or not self.out_elements
            or "to_all" in self.name
            or self.in_elements == self.out_elements
        ):
            return None
        low, high = sorted((self.in_elements, self.out_elements))
        return high // low if high % low == 0 else None

    def bytes(self, elements: int | None) -> int | None:
        if elements is None or self.dtype not in ITEM_BYTES:
            return None
        return int(elements * ITEM_BYTES[self.dtype])


def inputs_around(context: RankContext, start: int) -> CollectiveInputs | None:
    """The innermost range of a communication library at or around an event,
    with the sizes it or the operator around it has."""
    trace, parent, inputs = context.trace, context.links.parent, None
    event = start
    for _ in range(MAX_LEVELS):
        if event == NONE:
            break
        name: str = trace.names[trace.name[event]]
        if inputs is None and (match := RANGE.match(name)):
            dims, dtype = _tensors(context, event)
            inputs = CollectiveInputs(
                name=match[1], dtype=dtype, in_elements=sum(dims) if dims else None
            )
        elif inputs is not None and OUT_AND_IN.match(name):
            dims, dtype = _tensors(context, event)
            if len(dims) >= 2:
                return CollectiveInputs(
                    name=inputs.name,
                    dtype=dtype or inputs.dtype,
                    out_elements=dims[0],
                    in_elements=dims[1],
                )
        event = int(parent[event])
    return inputs


def _tensors(context: RankContext, event: int) -> tuple[list[int], str | None]:
    """How many elements each recorded tensor has, and the type of the first."""
    trace = context.trace
    inputs = trace.details[trace.detail[event]] if trace.detail[event] != NONE else None
    if not isinstance(inputs, OpInputs) or inputs.dims is None or inputs.types is None:
        return [], None
    try:
        dims, types = parse_json(inputs.dims), parse_json(inputs.types)
    except ValueError:
        return [], None
    if not isinstance(dims, list) or not isinstance(types, list):
        return [], None
    # A tensor of one number has no dimensions; nor has an argument that is no tensor.
    shapes = [
        d
        for d, t in zip_longest(dims, types)
        if isinstance(d, list)
        and all(isinstance(n, int) and n >= 0 for n in d)
        and (d or (isinstance(t, str) and t in DTYPES))
    ]
    dtypes = [DTYPES[t] for t in types if isinstance(t, str) and t in DTYPES]
    sizes = [math.prod(shape) for shape in shapes]
    return [size for size in sizes if size <= MAX_ELEMENTS], dtypes[0] if dtypes else None
