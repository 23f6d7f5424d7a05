"""What a rule says: a Proposal, a Remark, an Abstention, or nothing.

A rule is one module with `CODE`, `BOUND`, `propose(case)` and a docstring in sections (What it sees / Why it costs / Evidence it
needs / What to do / Example); `stepscope explain` prints that docstring. It never does arithmetic for the gain: it proposes a
Change, and the replay says what the step becomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.diagnosis import Finding
from stepscope.replay.changes import Change
from stepscope.rules.case import Case


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


def finding_of(case: Case, proposal: Proposal) -> Finding:
    """The proposal with what the replay says it gives."""
    assert case.graph is not None
    assert case.pitch_ns is not None
    gains = sorted(
        case.speedup(change(case.graph))
        for change in (proposal.change, proposal.cautious or proposal.change, proposal.hopeful or proposal.change)
    )
    likely = case.speedup(proposal.change(case.graph))
    return Finding(
        code=proposal.code,
        bound=proposal.bound,
        summary=proposal.summary,
        action=proposal.action,
        evidence=proposal.evidence,
        ranks=(case.facts.rank,),
        predicted_speedup=likely,
        predicted_low=gains[0],
        predicted_high=gains[-1],
        predicted_step_ms=case.pitch_ns / likely / 1e6,
        changes_numerics=proposal.changes_numerics,
    )


def together(case: Case, proposals: list[Proposal]) -> float:
    """What all the mends give at once, in the order they are given: they do not multiply, and one that has nothing left to give
    after those before it (a chain fused that is gone by then) is left out."""
    assert case.graph is not None
    graph, best = case.graph, 1.0
    for proposal in proposals:
        changed = proposal.change(graph)
        gain = case.speedup(changed)
        if gain > best:
            graph, best = changed, gain
    return best
