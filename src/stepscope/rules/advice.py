"""What the rules advise about the recordings of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from stepscope.core.diagnosis import Abstention, Finding
from stepscope.core.facts import Facts
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.run import RunFacts
from stepscope.rules.registry import advisers, every_rule
from stepscope.rules.rule import Advised


def advise(auxiliary: Auxiliary) -> tuple[Advice, ...]:
    """What every rule says, and what PyTorch said of their faults: the weightiest first, what has
    no weight last."""
    every: list[Advice] = []
    for said in (*_said(auxiliary), *(adviser(auxiliary) for adviser in advisers())):
        if isinstance(said, Advice):
            every.append(said)
        elif said is not None and not isinstance(said, Abstention):
            every.extend(said)
    return tuple(
        sorted(
            every, key=lambda advice: -1.0 if advice.weight is None else advice.weight, reverse=True
        )
    )


def abstentions(auxiliary: Auxiliary) -> tuple[Abstention, ...]:
    """What the recordings are about and yet do not tell."""
    return tuple(said for said in _said(auxiliary) if isinstance(said, Abstention))


def _said(auxiliary: Auxiliary) -> Iterator[Advised]:
    for rule in every_rule():
        if rule.advise is not None:
            yield rule.advise(auxiliary)


def advise_run(run: RunFacts) -> tuple[Advice, ...]:
    """What the steps of a recorded run show by their lengths alone, the weightiest first."""
    every = [rule.advise_run(run) for rule in every_rule() if rule.advise_run is not None]
    return tuple(
        sorted((each for each in every if each is not None), key=lambda each: -(each.weight or 0.0))
    )


def weighed(auxiliary: Auxiliary, facts: Facts) -> Auxiliary:
    """Add the share of the step that each kernel has, where there are traces."""
    shares = kernel_shares(facts)
    return replace(auxiliary, kernel_shares=shares) if shares else auxiliary


def kernel_shares(facts: Facts) -> Mapping[str, float]:
    """Share of the median rank's measured windows, by kernel name."""
    if not facts.ranks:
        return {}
    rank = facts.median_rank
    whole = sum(rank.steps.step_intervals)
    shares: dict[str, float] = {}
    for row in rank.kernels if whole else ():
        shares[row.name] = shares.get(row.name, 0.0) + row.total_ns / whole
    return shares


def joined(
    findings: Sequence[Finding], advice: Sequence[Advice]
) -> tuple[tuple[Finding, ...], tuple[Advice, ...]]:
    """Advice on a fault that the trace shows too becomes evidence of that finding; the rest
    stays."""
    lines: dict[str, list[str]] = {finding.code: [] for finding in findings}
    ranks = {finding.code: set(finding.ranks) for finding in findings}
    rest = []
    for each in advice:
        if each.code in lines and set(each.ranks) <= ranks[each.code]:
            lines[each.code] += _evidence(each)
        else:
            rest.append(each)
    explained = tuple(
        replace(finding, evidence=(*finding.evidence, *lines[finding.code])) for finding in findings
    )
    return explained, tuple(rest)


def _evidence(advice: Advice) -> tuple[str, ...]:
    """Lines of the advice; of a compiler's log also its action, which names a line or an argument
    that a trace does not have."""
    if advice.code not in ("recompilation", "graph-breaks"):
        return advice.evidence
    return (*advice.evidence, f"by that log: {advice.action}")
