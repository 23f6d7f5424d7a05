"""The host stops in mid-step to read something off the device, and the device then runs dry.

What it sees: calls that hold the host until the device is done, made to read a number (`.item()`,
`float(t)`, `if t`, printing), to learn a size (`nonzero`, `unique`, boolean indexing), to fetch a
small tensor (`.cpu()`, `.tolist()`), or for their own sake (`torch.cuda.synchronize()`).

Why it costs: a host that runs ahead keeps the device's queue full. One that waits starts again from
an empty queue, and the device idles until the next launches reach it. What was computed only to be
read costs time too. Where the host is busy all the time anyway the wait itself costs nothing: the
replay says which.

Evidence it needs: the runtime calls of the host (`ProfilerActivity.CPU` and `CUDA`); operators name
the culprit, stacks the line.

What to do: read numbers every n-th step or keep them on the device (`total += loss.detach()`),
fetch them with `.to("cpu", non_blocking=True)` and look one step later; use `torch.where` or a sort
in place of boolean indexing.

Example: `x.abs().max().item()` after each block and `p.abs().mean().item()` for each parameter took
a step of 21.5 ms to 29.5 ms.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import Intervals, contains, join, union
from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.kernels import WAITS_FOR_DEVICE
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.replay.changes import without_waits
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import without_ranges
from stepscope.rules.shared.host_read_inputs import feeding_ranges

CODE = "device-sync"
BOUND = "host"

SCALAR_READ = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|equal|allclose)$")
SIZE_READ = re.compile(
    r"^aten::(nonzero|nonzero_numpy|masked_select|_?unique\w*|repeat_interleave|bincount"
    r"|index|index_put_?|_index_put_impl_)$"
)
FETCH = re.compile(r"^aten::(to|_to_copy|copy_|cpu)$")
NOT_OURS = re.compile(r"^cu(da)?(Event|Malloc|Free|Mem(Alloc|Free|Map|Unmap|Create|Release))")
"""Waits for one event are how overlap is written; the allocator's are another fault."""
MAX_FETCH_BYTES = 65_536
"""A larger copy to the host is data it goes on to work with, not a number somebody looks at."""


class _Waits(Struct, frozen=True, kw_only=True):
    """Masks over the graph's calls."""

    scalar: Bool
    size: Bool
    fetch: Bool
    explicit: Bool
    reader: Int64
    """Outermost reading operator that each call is in; NONE when there is none."""

    @property
    def all(self) -> Bool:
        return self.scalar | self.size | self.fetch | self.explicit


def propose(case: Case) -> Proposal | Abstention | None:
    """Drop the waits, and what was computed for them alone."""
    waits = _waits(case, case.graph)
    if not waits.all.any():
        return None
    read = distinct(waits.reader[waits.scalar | waits.fetch])
    trace = case.replayed
    reading = union(trace.start_ns[read], trace.end_ns[read])
    whole = join(reading, feeding_ranges(case, read))
    num = float(waits.all.sum()) / case.graph.num_steps
    return Proposal(
        summary=f"The host stops {num:.3g} times a step to read from the device, and launches "
        "nothing meanwhile.",
        action="Read numbers every 50th step (.item(), float(), print); sum them on the device "
        "between (total += loss.detach()),"
        ' or fetch with .to("cpu", non_blocking=True) and look a step later',
        evidence=_evidence(case, case.graph, waits),
        events=case.graph.call_event[waits.all],
        change=lambda graph: _dropped(case, graph, waits.all, whole),
        cautious=lambda graph: without_waits(graph, waits.scalar | waits.explicit),
        hopeful=lambda graph: _dropped(case, graph, waits.all, whole),
    )


def _dropped(case: Case, graph: Graph, waits: Bool, ranges: Intervals) -> Graph:
    return without_ranges(case, without_waits(graph, waits), ranges)


def _waits(case: Case, graph: Graph) -> _Waits:
    """The waiting calls that a reader could do without, by why they wait."""
    context = case.context
    trace, host, parent = case.replayed, context.host, context.links.parent
    call = graph.call_event
    elsewhere = join(host.input, host.io, host.compile, host.allocator)
    candidate = (
        (graph.call_wait != NONE)
        & ~contains(elsewhere, graph.call_start_ns)
        & ~matching(trace, NOT_OURS)[call]
    )
    is_op = trace.is_kind(Kind.OP)

    def inside(pattern: re.Pattern[str]) -> Int64:
        return ancestor_with(parent, call, is_op & matching(trace, pattern), outermost=True)

    scalar_op, fetch_op = inside(SCALAR_READ), inside(FETCH)
    scalar = candidate & (scalar_op != NONE)
    size = candidate & ~scalar & (inside(SIZE_READ) != NONE)
    fetch = candidate & ~scalar & ~size & (fetch_op != NONE) & _fetches_little(case, graph)
    bare = (ancestor_with(parent, call, is_op) == NONE) & matching(trace, WAITS_FOR_DEVICE)[call]
    reader = np.where(scalar, scalar_op, np.where(fetch, fetch_op, NONE))
    return _Waits(scalar=scalar, size=size, fetch=fetch, explicit=candidate & bare, reader=reader)


def _fetches_little(case: Case, graph: Graph) -> Bool:
    """Whether each call waits for a small copy to the host."""
    trace = case.replayed
    target = graph.task_event[np.maximum(graph.call_wait, 0)]
    to_host = trace.is_kind(Kind.MEMCPY) & matching(
        trace, re.compile(r"DtoH|Device -> (Pageable|Pinned|Host)")
    )
    little = (trace.size_bytes >= 0) & (trace.size_bytes <= MAX_FETCH_BYTES)
    mask: Bool = (graph.call_wait != NONE) & (to_host & little)[target]
    return mask


def _evidence(case: Case, graph: Graph, waits: _Waits) -> tuple[str, ...]:
    """How often by what, and for how long."""
    trace, parent = case.replayed, case.context.links.parent
    calls = np.flatnonzero(waits.all)
    op = ancestor_with(parent, graph.call_event[calls], trace.is_kind(Kind.OP), outermost=True)
    names = Counter(
        "an explicit synchronize" if event == NONE else trace.names[trace.name[event]]
        for event in op.tolist()
    )
    waited_ms = float(trace.dur_ns[graph.call_event[calls]].sum()) / graph.num_steps / 1e6
    counted = [
        f"{count / graph.num_steps:.3g} waits a step in {name}"
        for name, count in names.most_common(3)
    ]
    return (*counted, f"the host stood in them for {waited_ms:.2f} ms a step")


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
