"""What became of a run's findings, as JSON: the document `stepscope.fix/1`."""

from __future__ import annotations

from stepscope.core.contract.codec import encode, filled
from stepscope.core.contract.fix import Attempt, FixContract, Predicted
from stepscope.core.experiments import fixed as core
from stepscope.report.verify.json import verified_contract


def fixed_json(fixed: core.Fixed) -> str:
    """The document as indented text."""
    return encode(fixed_contract(fixed))


def fixed_contract(fixed: core.Fixed) -> FixContract:
    """What was not measured is null, never 0."""
    whole = None if fixed.whole is None else verified_contract(fixed.whole)
    return filled(
        FixContract,
        fixed,
        speedup=None if whole is None else whole.speedup,
        kept=fixed.kept.knobs,
        findings=tuple(map(_attempt, fixed.attempts)),
        whole=whole,
    )


def _attempt(attempt: core.Attempt) -> Attempt:
    return filled(
        Attempt,
        attempt,
        predicted=filled(Predicted, attempt.predicted),
        verification=None if attempt.verified is None else verified_contract(attempt.verified),
    )
