"""The host runs Python of its own between operators, and the device waits.

What it sees: gaps of the driving threads with no operator and no runtime call in them, longer
than it takes to go from one operator to the next, that are not the loader's, the optimizer's, the
compiler's, a file's or the collector's, and that the replay of the step gets shorter without.

Why it costs: while Python loops over lists, builds masks, formats logs or computes with numpy,
nothing is launched. The few microseconds between any two operators are not meant: they belong to
launch-overhead, whose fix removes both.

Evidence it needs: operators and runtime calls. Stacks (`with_stack=True`) name the line; without
them the gap may also be something else that holds the process: logging, a file, a lock,
`gc.collect()`; one that gc-pause takes for a collection is left to it.

On a busy machine (`stepscope run` tells) the host also stands still where others have its core:
what counts there is what every recorded step spends before the same operator.

What to do: take the work off the step (do it in the loader's workers, once before the loop, or
every n-th step), or write it with tensors and `torch.compile` it.

Example: a Python loop over 512 tokens that builds a mask in each forward takes milliseconds;
`torch.arange` and a comparison launch two kernels.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import is_among
from stepscope.analyses.host.source_locations import frames_at
from stepscope.analyses.intervals import subtract
from stepscope.core.diagnosis import Abstention
from stepscope.core.recorders import capitalized
from stepscope.core.trace import Kind
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.host.gc_pause import pauses_of, possible_collections
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.between_operators import (
    HostGaps,
    long_gaps,
    per_step_ns,
    ranges_of,
    without_work_in,
    work_ns_in,
)

CODE = "python-overhead"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.2
    """Share of the host's work below which the operators and their launches are what keeps the host
    busy, and launch-overhead judges."""
    pause_ns: int = 1_000_000
    """No way from one operator to the next takes this long: a gap that does is work of its own."""
    least_paused: float = 0.05
    """Share of the host's work in such gaps from which they are reported by themselves."""
    cautious_share: float = 0.5
    """Share of the gaps that goes when only part of them can leave the step."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """Take the gaps out of the steps, down to what lies between any two operators."""
    graph = case.graph
    if not case.context.trace.is_kind(Kind.OP).any():
        return Abstention(
            code=CODE,
            reason="operators were not recorded",
            needs="profile with ProfilerActivity.CPU",
        )
    work = per_step_ns(graph, graph.call_parts["work"])
    pauses, every = pauses_of(case, graph), long_gaps(case)
    # One piece of time has one finding.
    every = every.only(~is_among(every.start, possible_collections(case).start))
    long = every.only(every.own_ns >= POLICY.pause_ns)
    for gaps, least_share in ((every, POLICY.least_share), (long, POLICY.least_paused)):
        excess = subtract(ranges_of(case, gaps, whole=False), pauses)
        spent = work_ns_in(case, graph, excess)
        if len(gaps) and spent >= least_share * work:
            break
    else:
        return None
    whole = subtract(ranges_of(case, gaps, whole=True), pauses)
    return Proposal(
        summary=f"The host spends {spent / 1e6:.2f} of its {work / 1e6:.2f} ms a step outside "
        f"operators{'' if graph.on_host else ', launching nothing'}.",
        action=_action(case),
        evidence=_evidence(case, graph, gaps),
        events=None
        if case.stacks is None or not case.has_lines
        else frames_at(case.stacks, gaps.middle_ns, case.context.host.driving),
        events_ns=gaps.own_ns.astype(np.float64),
        change=lambda before: without_work_in(case, before, excess),
        cautious=lambda before: without_work_in(case, before, excess, POLICY.cautious_share),
        hopeful=lambda before: without_work_in(case, before, whole),
    )


def _action(case: Case) -> str:
    fix = (
        "do this work every 50th step, before the loop or in loader workers; or write it with "
        "tensors and compile it"
    )
    if not case.graph.on_host:
        fix += "; launch-overhead's fix does not add to this one for code that is compiled"
    if case.has_lines:
        return f"{fix[0].upper()}{fix[1:]}"
    lines = capitalized(case.recorder.with_stacks)
    return f"{lines} to see which line it is (Python, logging, a file, gc.collect()), then {fix}"


def _evidence(case: Case, graph: Graph, gaps: HostGaps) -> tuple[str, ...]:
    """How many and how long, and before which operator."""
    trace = case.replayed
    longest = np.argsort(-gaps.own_ns, kind="stable")[:20]
    driving = case.context.host.driving[: len(trace)]
    recorded = np.flatnonzero(trace.is_kind(Kind.OP, Kind.RUNTIME) & driving)
    position = np.searchsorted(trace.start_ns[recorded], gaps.end[longest])
    following = recorded[position[position < len(recorded)]]
    before = Counter(
        str(trace.names[trace.name[event]]) for event in following.tolist()
    ).most_common(2)
    longest_ms = int(gaps.own_ns.max()) / 1e6
    per_step = f"{len(gaps) / graph.num_steps:.3g}"
    plural = "" if per_step == "1" else "s"
    evidence = [f"{per_step} gap{plural} a step, the longest {longest_ms:.2f} ms"]
    if before:
        names = " and ".join(name for name, _ in before)
        evidence.append(f"the longest stand before {names}")
    return tuple(evidence)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
