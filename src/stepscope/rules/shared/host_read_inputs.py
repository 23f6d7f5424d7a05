"""Which operators were run only so that the host could read their result.

A trace does not say which tensor went where. It says enough: autograd numbers the operators it
records, and one whose number no backward node ever carries did not lead to the loss; and shapes
show whether an operator's result can be what the next one took.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.intervals import Intervals, union
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace
from stepscope.rules.case import Case
from stepscope.workload.inputs import inputs_of

TO_SCALAR = re.compile(
    r"^aten::(max|min|mean|sum|norm|linalg_vector_norm|std|var|any|all|prod|amax|amin|median"
    r"|logsumexp|count_nonzero|nansum|nanmean)$"
)
KEEPS_SHAPE = re.compile(
    r"^aten::(abs|isnan|isinf|isfinite|eq|ne|gt|lt|ge|le|square|pow|sqrt|neg|mul|add|sub|div|detach"
    r"|to|_to_copy|clone|float"
    r"|logical_\w+|bitwise_\w+|exp|log|sigmoid|softmax|clamp|nan_to_num)$"
)
LONGEST_CHAIN = 8


class _Siblings(Struct, frozen=True, kw_only=True):
    """Operators that stand inside no other operator, by thread and time."""

    events: Int64
    is_evaluated: Bool
    """Mask of the events whose backward came, by sequence number."""
    has_backward: bool


def feeding_ranges(case: Case, readers: Int64) -> Intervals:
    """Ranges for each reading operator, from the first operator that only fed it to its own
    start."""
    trace = case.replayed
    siblings = _siblings(case)
    starts, ends = [], []
    place = np.zeros(len(trace), np.int64)
    place[siblings.events] = np.arange(len(siblings.events))
    for reader in readers.tolist():
        first = _first_feeding(trace, siblings, reader, int(place[reader]))
        if first != reader:
            starts.append(int(trace.start_ns[first]))
            ends.append(int(trace.end_ns[reader]))
    return union(np.array(starts, np.int64), np.array(ends, np.int64))


def _siblings(case: Case) -> _Siblings:
    whole, trace, parent = case.context.trace, case.replayed, case.context.links.parent
    ops = np.flatnonzero(trace.is_kind(Kind.OP))
    above = parent[ops]
    outer = ops[(above == NONE) | (trace.kind[np.maximum(above, 0)] != Kind.OP)]
    outer = outer[np.argsort(trace.thread[outer], kind="stable")]
    backward = np.flatnonzero(whole.is_kind(Kind.OP) & (whole.fwd_thread > 0))
    numbers = whole.sequence[backward]
    numbers = numbers[numbers >= 0]
    return _Siblings(
        events=outer,
        is_evaluated=np.isin(trace.sequence[outer], numbers),
        has_backward=len(numbers) > 0,
    )


def _first_feeding(trace: Trace, siblings: _Siblings, reader: int, position: int) -> int:
    """Go back from the reader, operator by operator, as long as each one only fed the next."""
    first = reader
    for back in range(position - 1, max(position - 1 - LONGEST_CHAIN, -1), -1):
        before = int(siblings.events[back])
        if trace.thread[before] != trace.thread[first] or not _only_feeds(
            trace, siblings, back, first
        ):
            break
        first = before
    return first


def _only_feeds(trace: Trace, siblings: _Siblings, place: int, after: int) -> bool:
    """Whether the one operator was run for the other alone, as far as that can be told."""
    before = int(siblings.events[place])
    name = trace.names[trace.name[before]]
    if name.endswith("_") or not name.startswith("aten::") or not siblings.has_backward:
        return False
    number, next_number = int(trace.sequence[before]), int(trace.sequence[after])
    recorded = 0 <= number < next_number
    if recorded and siblings.is_evaluated[place]:
        return False
    if not _can_be_input(trace, before, after):
        return False
    # Recorded by autograd and never come by: a dead end. Not recorded: only shapes can speak for
    # it.
    return recorded or None not in (_shape(trace, before), _shape(trace, after))


def _can_be_input(trace: Trace, before: int, after: int) -> bool:
    """Whether the first operator's result has the shape of what the second took; True where shapes
    were not recorded."""
    wanted, given = _shape(trace, after), _shape(trace, before)
    if wanted is None or given is None:
        return True
    name = trace.names[trace.name[before]]
    if TO_SCALAR.search(name):
        return wanted == ()
    return bool(KEEPS_SHAPE.search(name)) and given == wanted


def _shape(trace: Trace, event: int) -> tuple[int, ...] | None:
    """Shape of the operator's first input."""
    parsed = inputs_of(trace, event)
    if parsed is None or not parsed.dims:
        return None
    shape = parsed.dims[0]
    if any(isinstance(size, tuple) for size in shape):
        return None
    return tuple(int(size) for size in shape if isinstance(size, int))
