"""What the rules advise about what other tools recorded: `advise` of a rule gives Advice, several, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stepscope.core.beside import Advice, Beside
from stepscope.core.diagnosis import Finding
from stepscope.core.facts import Facts
from stepscope.rules.host import graph_breaks, recompilation
from stepscope.rules.registry import AUXILIARY_RULES
from stepscope.rules.shared import advice_from_logs as job_words


def advise(beside: Beside) -> tuple[Advice, ...]:
    """What every rule says, and what PyTorch said of their faults; the weightiest first, what has no weight after that."""
    found = [advice for rule in (*AUXILIARY_RULES, job_words) for advice in _several(rule.advise(beside))]
    return tuple(sorted(found, key=lambda advice: -(advice.weight if advice.weight is not None else -1.0)))


def _several(said: Advice | Iterable[Advice] | None) -> Iterable[Advice]:
    return () if said is None else (said,) if isinstance(said, Advice) else said


def weighed(beside: Beside, facts: Facts) -> Beside:
    """With the share of the step that each kernel has, where traces tell it."""
    shares = kernel_shares(facts)
    return replace(beside, kernel_shares=shares) if shares else beside


def kernel_shares(facts: Facts) -> Mapping[str, float]:
    """Of the median rank's measured windows, by kernel name."""
    if not facts.ranks:
        return {}
    rank = facts.median_rank
    whole = sum(rank.steps.step_intervals)
    shares: dict[str, float] = {}
    for row in rank.kernels if whole else ():
        shares[row.name] = shares.get(row.name, 0.0) + row.total_ns / whole
    return shares


def joined(findings: Sequence[Finding], advice: Sequence[Advice]) -> tuple[tuple[Finding, ...], tuple[Advice, ...]]:
    """Advice on a fault that the trace shows too becomes evidence of that finding; the rest stays."""
    codes = {finding.code for finding in findings}
    lines = {code: tuple(line for one in advice if one.code == code for line in _evidence(one)) for code in codes}
    told = tuple(replace(finding, evidence=(*finding.evidence, *lines[finding.code])) for finding in findings)
    return told, tuple(one for one in advice if one.code not in codes)


def _evidence(one: Advice) -> tuple[str, ...]:
    """Its lines, and of a compiler's log what it would do: it knows the very line or argument, which a trace does not."""
    return (*one.evidence, f"by that log: {one.action}") if one.code in (recompilation.CODE, graph_breaks.CODE) else one.evidence
