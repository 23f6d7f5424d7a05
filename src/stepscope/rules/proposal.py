"""What a rule says: a Proposal, a Remark, an Abstention, or nothing.

A rule is one module with `CODE`, `BOUND`, `propose(case)` and a docstring in sections (What it sees / Why it costs / Evidence it
needs / What to do / Example); `stepscope explain` prints that docstring. It never does arithmetic for the gain: it proposes a
Change, and the replay says what the step becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from stepscope.analyses.places import places_of
from stepscope.core.diagnosis import Finding, Place
from stepscope.core.trace import Float64, Int64
from stepscope.replay.changes import Change
from stepscope.rules.case import Case

MOST_PLACES = 3
LEAST_SHARE = 0.05
"""Of a finding's cost, below which a place is not worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A fault with its mend, and what the mend does to the graph."""

    code: str
    bound: str
    summary: str
    """One sentence: what is wrong, with its size."""
    action: str
    """What to do, the cheapest first: the knob and the value to try."""
    evidence: tuple[str, ...]
    """What was seen, each with a number."""
    change: Change
    cautious: Change | None = None
    """The same mend giving less; the same as `change` when None."""
    hopeful: Change | None = None
    """The same mend giving more."""
    changes_numerics: bool = False
    events: Int64 | None = None
    """The kernels, calls or ranges it is about: stacks name the lines they come from. None when no line could mend it."""
    events_ns: Float64 | None = None
    """What each of them costs; how long it was recorded to take when None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """A rule that could not judge, and what to record to let it."""

    code: str
    needs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something worth knowing that promises no time: memory about to run out, a stall too rare for the median step to see."""

    code: str
    text: str


class Fault(Protocol):
    """What a proposal says of its fault, whether it is a rank's or the job's."""

    @property
    def code(self) -> str: ...
    @property
    def bound(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def evidence(self) -> tuple[str, ...]: ...
    @property
    def changes_numerics(self) -> bool: ...


def finding_of(case: Case, proposal: Proposal) -> Finding:
    """The proposal with what the replay says it gives."""
    assert case.graph is not None
    assert case.pitch_ns is not None
    likely = case.speedup(proposal.change(case.graph))
    others = [case.speedup(change(case.graph)) for change in (proposal.cautious, proposal.hopeful) if change is not None]
    if case.host_bounds is not None:
        quick, slow = case.host_bounds
        others.append(case.speedup((proposal.hopeful or proposal.change)(quick)))
        others.append(case.speedup((proposal.cautious or proposal.change)(slow)))
    finding = predicted(proposal, (case.facts.rank,), case.pitch_ns, likely, others)
    places = places_in(case, proposal)
    if not places:
        return finding
    return replace(
        finding,
        action=f"{proposal.action}. {_most_at(places[0])}",
        evidence=(*proposal.evidence, *(f"{place.share:.0%} of it at {place.words}" for place in places)),
        places=places,
    )


def predicted(words: Fault, ranks: tuple[int, ...], pitch_ns: float, likely: float, others: Sequence[float]) -> Finding:
    """The one place where a finding is made, for a rank and for a job: the replay's speedups of the mend and of the same mend
    giving less and more. A mend that the replay finds to lengthen the step gives nothing: nobody need apply it."""
    gains = [max(1.0, speedup) for speedup in (likely, *others)]
    return Finding(
        code=words.code,
        bound=words.bound,
        summary=words.summary,
        action=words.action,
        evidence=words.evidence,
        ranks=ranks,
        predicted_speedup=gains[0],
        predicted_low=min(gains),
        predicted_high=max(gains),
        predicted_step_ms=pitch_ns / gains[0] / 1e6,
        changes_numerics=words.changes_numerics,
    )


def places_in(case: Case, proposal: Proposal) -> tuple[Place, ...]:
    """Where most of what the proposal is about comes from; nothing without stacks."""
    if proposal.events is None or case.stacks is None:
        return ()
    cost = case.survey.trace.dur_ns[proposal.events] if proposal.events_ns is None else proposal.events_ns
    found = places_of(case.stacks, proposal.events, np.asarray(cost, np.float64), MOST_PLACES)
    return tuple(place for place in found if place.share >= LEAST_SHARE)


def _most_at(place: Place) -> str:
    return f"{'Most' if place.share > 0.5 else f'The largest part ({place.share:.0%})'} of it at {place.words}"


def ladder(case: Case, proposals: list[Proposal]) -> tuple[float, ...]:
    """What the mends give one after the other: the first alone, the first two, and so on to all at once. They do not multiply,
    and one that has nothing left to give after those before it (a chain fused that is gone by then) is left out."""
    if not proposals:
        return ()
    assert case.graph is not None
    graph, gains = case.graph, [1.0]
    for proposal in proposals:
        changed = proposal.change(graph)
        gain = case.speedup(changed)
        if gain > gains[-1]:
            graph = changed
        gains.append(max(gain, gains[-1]))
    return tuple(gains[1:])
