"""The compiled model falls apart into pieces with eager operators between them.

What it sees: compiled regions entered from inside another one. Where torch.compile cannot go on (a
graph break), it runs the rest of the frame as a region of its own, and what lies between as plain
Python.

Why it costs: each piece checks its guards and wraps its inputs and outputs again, operators between
the pieces are launched one by one from Python, nothing is fused across a break, and autograd runs
one node per piece.

Evidence it needs: the "Torch-Compiled Region" marks, which the profiler records by itself. Models
compiled piece by piece on purpose (each block by itself) show regions in a row, none inside
another, and are only remarked on. `TORCH_LOGS=graph_breaks`, `TORCH_TRACE` or TorchDynamo's
counters, given beside the trace or alone, name the lines and the reasons.

What to do: `TORCH_LOGS=graph_breaks` or `torch._dynamo.explain(model)(x)` names each break:
`.item()` and branches on a tensor's value, print and logging, calls into C or numpy. Remove it, or
find all with `torch.compile(fullgraph=True)`.

Example: a forward with four breaks runs as five regions: five rounds of guards and wrappers of some
100 us each in place of one.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import (
    Intervals,
    contains,
    empty,
    join,
    lengths_in,
    subtract,
    union,
)
from stepscope.analyses.steps.projection import BACKWARD_RANGE, OPTIMIZER_RANGE
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Int64, Kind
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.evidence import COMPILED_REGION as REGION
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import ranges_of, share_inside

CODE = "graph-breaks"
BOUND = "host"

COMPILED = re.compile(r"^CompiledFunction(Backward)?$|^## Call CompiledFxGraph")
NODE = re.compile(r"^autograd::engine::evaluate_function")


class Policy(Struct, frozen=True, kw_only=True):
    cautious_share: float = 0.5
    """Share of the time between the pieces that goes when some breaks have to stay."""
    least_in_a_row: int = 3
    """Regions one after the other in a forward from which it is remarked on."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Join the pieces: what lies between them takes the host its launches alone."""
    graph = case.graph
    regions = _regions(case, graph)
    if len(regions) == 0:
        return None
    # For each region the outermost one it is in, itself when there is none.
    outer = ancestor_with(
        case.context.links.parent, regions, matching(case.replayed, REGION), outermost=True
    )
    resumed = regions[outer != regions]
    if len(resumed) == 0:
        return _in_a_row(case, graph, regions)
    between = _between(case, distinct(outer[outer != regions]))
    eager = join(between, _their_backward(case, between))
    steps = graph.num_steps
    return Proposal(
        summary=f"{len(resumed) / steps:.3g} times a step a compiled region goes on in another: "
        "torch.compile broke off there.",
        action="TORCH_LOGS=graph_breaks names the breaks; remove them (.item(), branches, print) "
        "until fullgraph=True holds",
        evidence=_evidence(case, graph, len(regions), eager),
        events=resumed,
        change=lambda before: _joined(case, before, eager, 1.0),
        cautious=lambda before: _joined(case, before, eager, POLICY.cautious_share),
    )


def _regions(case: Case, graph: Graph) -> Int64:
    """The compiled regions entered in the replayed steps, by time."""
    trace = case.replayed
    regions = np.flatnonzero(matching(trace, REGION) & trace.is_kind(Kind.OP, Kind.MARK))
    start = trace.start_ns[regions]
    inside: Int64 = regions[
        (start >= case.context.cut.host_start[0]) & (start < graph.call_end_ns[-1])
    ]
    return inside


def _between(case: Case, outer: Int64) -> Intervals:
    """When the host was inside these regions and in none of their compiled pieces, after the
    first."""
    trace = case.context.trace
    compiled = np.flatnonzero(matching(trace, COMPILED) & trace.is_kind(Kind.OP, Kind.MARK))
    first = np.searchsorted(trace.start_ns[compiled], trace.start_ns[outer])
    has_one = first < len(compiled)
    outer, first = outer[has_one], first[has_one]
    if len(outer) == 0:
        return empty()
    return subtract(
        union(trace.end_ns[compiled[first]], trace.end_ns[outer]), ranges_of(case, compiled)
    )


def _their_backward(case: Case, between: Intervals) -> Intervals:
    """The autograd nodes of the operators that ran there."""
    trace = case.context.trace
    recorded = trace.is_kind(Kind.OP) & (trace.sequence >= 0)
    forward = recorded & (trace.fwd_thread <= 0) & contains(between, trace.start_ns)
    nodes = recorded & matching(trace, NODE) & np.isin(trace.sequence, trace.sequence[forward])
    return ranges_of(case, np.flatnonzero(nodes))


def _joined(case: Case, graph: Graph, eager: Intervals, share: float) -> Graph:
    """Leave only the launching calls of the host's work in the eager stretches."""
    inside = share_inside(case, eager)
    own = np.where(
        contains(eager, graph.call_start_ns), case.context.trace.dur_ns[graph.call_event], 0
    )
    work = graph.call_parts["work"]
    spared_ns = share * np.maximum(work * inside - own, 0.0)
    return replace(graph, call_parts=graph.call_parts | {"work": work - spared_ns})


def _evidence(case: Case, graph: Graph, num_regions: int, eager: Intervals) -> tuple[str, ...]:
    trace, steps = case.context.trace, graph.num_steps
    launches = int((contains(eager, graph.call_start_ns) & (np.diff(graph.call_first) > 0)).sum())
    ops = np.flatnonzero(
        trace.is_kind(Kind.OP)
        & contains(eager, trace.start_ns)
        & matching(trace, re.compile(r"^aten::"))
    )
    outermost = ops[trace.kind[np.maximum(case.context.links.parent[ops], 0)] != Kind.OP]
    inside_region = ops[matching(trace, REGION)[np.maximum(case.context.links.parent[ops], 0)]]
    names = Counter(
        str(trace.names[trace.name[op]])
        for op in distinct(np.concatenate([outermost, inside_region])).tolist()
    ).most_common(3)
    lines = [
        f"{num_regions / steps:.3g} compiled regions a step",
        (
            f"{launches / steps:.3g} launches a step between them, and "
            f"{eager.total / steps / 1e6:.2f} ms of the host's time"
        ),
    ]
    if names:
        lines.append(
            "run there: " + ", ".join(f"{name} x {count / steps:.3g}" for name, count in names)
        )
    return tuple(lines)


def _in_a_row(case: Case, graph: Graph, regions: Int64) -> Remark | None:
    """Regions that follow one another in a forward, with launches between them: breaks, or a model
    compiled in parts."""
    trace, steps = case.context.trace, graph.num_steps
    start, end = trace.end_ns[regions][:-1], trace.start_ns[regions][1:]
    other = np.sort(
        trace.start_ns[matching(trace, BACKWARD_RANGE) | matching(trace, OPTIMIZER_RANGE)]
    )
    one_forward = np.searchsorted(other, end) == np.searchsorted(other, start)
    launching = np.searchsorted(graph.call_start_ns, end) > np.searchsorted(
        graph.call_start_ns, start
    )
    step = np.searchsorted(case.context.cut.host_start, trace.start_ns[regions], side="right")
    row = one_forward & launching & (step[1:] == step[:-1])
    if int(row.sum()) < (POLICY.least_in_a_row - 1) * steps:
        return None
    spent = (
        lengths_in(
            start[row], end[row], union(graph.call_start_ns[:1], graph.call_end_ns[-1:])
        ).sum()
        / steps
        / 1e6
    )
    return Remark(
        code=CODE,
        text=f"{len(regions) / steps:.3g} compiled regions a step with eager operators between "
        f"them ({spent:.2f} ms of the host's time): unless the parts are compiled one by one on "
        "purpose, TORCH_LOGS=graph_breaks says why.",
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
