"""The rules, by name, and judging a case by all of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from stepscope.core.diagnosis import Finding
from stepscope.rules import serial_loader
from stepscope.rules.case import Case
from stepscope.rules.proposal import Abstention, Proposal, finding_of, together

RULES: tuple[ModuleType, ...] = (serial_loader,)

LEAST_SPEEDUP = 1.02
"""Findings that give less are left out unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the rules have to say about one rank."""

    findings: tuple[Finding, ...] = ()
    """Largest gain first, all of them."""
    together: float | None = None
    """The speedup of all mends worth naming at once; None when there are fewer than two."""
    abstentions: tuple[Abstention, ...] = ()


def judge(case: Case) -> Judgement:
    """Ask every rule; the replay says what each mend gives."""
    said = [rule.propose(case) for rule in RULES] if case.graph is not None else []
    proposals = [word for word in said if isinstance(word, Proposal)]
    paired = sorted(((finding_of(case, p), p) for p in proposals), key=lambda pair: -pair[0].predicted_speedup)
    worth = [proposal for finding, proposal in paired if finding.predicted_speedup >= LEAST_SPEEDUP]
    return Judgement(
        findings=tuple(finding for finding, _ in paired),
        together=together(case, worth) if len(worth) > 1 else None,
        abstentions=tuple(word for word in said if isinstance(word, Abstention)),
    )
