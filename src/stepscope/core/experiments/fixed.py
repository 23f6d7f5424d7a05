"""What became of a run's findings when each was tried: kept, reverted, or left to a person.

A field is None when it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct, field

from stepscope.core.codec import Contract, one_of
from stepscope.core.experiments.experiment import Interval, Predicted, Verified
from stepscope.core.experiments.trials import Value

KEPT = "kept"
REVERTED = "reverted"
BY_HAND = "by hand"
NOT_TRIED = "not tried"
NOT_RUN = "it was not run"
"""Why, where nothing was asked to run."""
OUTCOMES = (KEPT, REVERTED, BY_HAND, NOT_TRIED)


class Attempt(Struct, frozen=True, kw_only=True, rename={"verified": "verification"}):
    """One finding, and what was done about it."""

    code: str
    summary: str
    action: str
    outcome: Annotated[str, one_of(*OUTCOMES)]
    why: str
    predicted: Predicted
    """Gain that the finding predicted."""
    knobs: Mapping[str, Value] = field(default_factory=dict)
    """Settings that were made, or would be; empty where nothing can be set from outside."""
    verified: Verified | None = None
    """Compared with everything kept before it; null where nothing was run."""


class Fixed(
    Contract,
    frozen=True,
    kw_only=True,
    tag="stepscope.fix/1",
    rename={"attempts": "findings", "is_interrupted": "interrupted"},
):
    """What became of a run's findings when each was tried. What was not measured is null, never
    0."""

    command: tuple[str, ...]
    before_ms: float | None = None
    """The step that the findings are about."""
    speedup: Interval | None = None
    """Speedup of all that was kept."""
    kept: Mapping[str, Value] = field(default_factory=dict)
    attempts: tuple[Attempt, ...]
    whole: Verified | None = None
    """All that was kept against the command as it was given; null where nothing was kept or run, or
    it was interrupted."""
    left: tuple[str, ...] = ()
    """Codes of what the last look still found, and nobody has tried."""
    notes: tuple[str, ...] = ()
    folder: str | None = None
    is_interrupted: bool = False

    @property
    def is_faster(self) -> bool:
        return self.whole is not None and self.whole.is_gain
