"""`stepscope.fix/1`: what `stepscope fix --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from stepscope.core.constraints import one_of
from stepscope.core.contract.codec import Contract
from stepscope.core.contract.verification import Interval, VerificationContract
from stepscope.core.experiments.fixed import OUTCOMES
from stepscope.core.experiments.trials import Value


class Predicted(Struct, frozen=True, kw_only=True):
    """The speedup that the finding promised."""

    value: float
    low: float | None
    high: float | None


class Attempt(Struct, frozen=True, kw_only=True):
    """One finding, and what was done about it."""

    code: str
    summary: str
    action: str
    outcome: Annotated[str, one_of(*OUTCOMES)]
    why: str
    predicted: Predicted
    knobs: Mapping[str, Value]
    """What was set, or would be; empty where nothing can be set from outside."""
    verification: VerificationContract | None
    """Compared with everything kept before it; null where nothing was run."""


class FixContract(Contract, frozen=True, kw_only=True, tag="stepscope.fix/1"):
    """What became of a run's findings when each was tried. What was not measured is null, never
    0."""

    command: tuple[str, ...]
    before_ms: float | None
    """The step that the findings are about."""
    speedup: Interval | None
    """Of all that was kept."""
    kept: Mapping[str, Value]
    findings: tuple[Attempt, ...]
    whole: VerificationContract | None
    """All that was kept against the command as it was given; null where nothing was kept or run, or
    it was interrupted."""
    left: tuple[str, ...]
    """Codes of what the last look still found, and nobody has tried."""
    notes: tuple[str, ...]
    folder: str | None
