"""What became of a run's findings when each was tried: kept, reverted, or left to a person.

A field is None when it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from stepscope.core.experiments.experiment import Prediction, Verified
from stepscope.core.experiments.trials import Change, Value

KEPT = "kept"
REVERTED = "reverted"
BY_HAND = "by hand"
NOT_TRIED = "not tried"
NOT_RUN = "it was not run"
"""Why, where nothing was asked to run."""
OUTCOMES = (KEPT, REVERTED, BY_HAND, NOT_TRIED)


class Attempt(Struct, frozen=True, kw_only=True):
    """One finding, and what was done about it."""

    code: str
    summary: str
    action: str
    predicted: Prediction
    outcome: str
    why: str
    knobs: Mapping[str, Value] = field(default_factory=dict)
    """What was set, or would be; empty where nothing can be set from outside."""
    verified: Verified | None = None
    """Compared with everything kept before it; None where nothing was run."""


class Fixed(Struct, frozen=True, kw_only=True):
    """A run's findings, from the top."""

    command: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    kept: Change
    whole: Verified | None
    """All that was kept against the command as it was given; None where nothing was kept or run, or
    it was interrupted."""
    before_ms: float | None = None
    """The step that the findings are about."""
    left: tuple[str, ...] = ()
    """Codes of what the last look still found, and nobody has tried."""
    notes: tuple[str, ...] = ()
    folder: str | None = None
    is_interrupted: bool = False

    @property
    def is_faster(self) -> bool:
        return self.whole is not None and self.whole.is_gain
