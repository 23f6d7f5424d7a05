"""An experiment: the user's command before and after one change, run for real, and what that
proved.

A field is None when it was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Struct, field

from stepscope.core.constraints import one_of
from stepscope.core.experiments.trials import Change, Trial

Side = Literal["baseline", "candidate"]
BASELINE: Side = "baseline"
CANDIDATE: Side = "candidate"

PROVEN = "gain proven"
NO_GAIN = "no gain"
WORSE = "worse"
UNSETTLED = "not settled"
DIVERGES = "diverges"
"""The candidate's loss is not finite, or grows where the baseline's does not: no gain, however fast
it is."""
REFUSED = "refused"
VERDICTS = (PROVEN, NO_GAIN, WORSE, UNSETTLED, DIVERGES, REFUSED)


class Interval(Struct, frozen=True, kw_only=True):
    """A number and how sure it is. Where nothing is known of that, it goes from 0 to infinity."""

    value: float
    low: float
    high: float
    level: float = 0.95

    @property
    def is_bounded(self) -> bool:
        return self.low > 0 and math.isfinite(self.high)


class Measured(Struct, frozen=True, kw_only=True, rename={"step_ns": "pace_ns"}):
    """One run of the experiment."""

    side: Side
    round: int | None
    """Counted from 0; None for a run that does not count: a rehearsal, or one made to compare what
    it computed."""
    trial: Trial
    step_ns: float | None
    """The trimmed mean of its steps; None when it timed none. Shared storages have it under its
    older name."""


class SideSummary(Struct, frozen=True, kw_only=True):
    """One side's runs together."""

    num_runs: int
    step_ns: float | None
    """The geometric mean over the runs."""
    run_spread: float | None
    """The standard deviation of the logarithms of the runs' times: how much runs of the same
    command differ."""
    mean_ns: float | None
    """Of all steps, with none left out: it sees the rare long ones too."""


class SoFar(Struct, frozen=True, kw_only=True):
    """What was measured of one side when it ended before the evidence was looked at. It proves
    nothing."""

    num_runs: int
    """Runs that timed a step, those that fill the caches and those that were broken off among
    them."""
    num_steps: int
    median_ns: float
    """Of all their timed steps."""


class Difference(Struct, frozen=True, kw_only=True):
    """Something that the two sides should have in common and have not."""

    what: str
    """As in --allow."""
    words: str
    baseline: str
    candidate: str
    is_allowed: bool = False


LOSS_SOUND = "sound"
LOSS_NOT_FINITE = "not finite"
LOSS_GROWS = "grows"
LOSS_BASELINE = "baseline not finite"
LOSS_UNSEEN = "not seen"
LOSS_VERDICTS = (LOSS_SOUND, LOSS_NOT_FINITE, LOSS_GROWS, LOSS_BASELINE, LOSS_UNSEEN)


class SideLoss(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"num_runs": "runs", "num_not_finite": "runs_not_finite"},
):
    """The loss of one side's runs."""

    num_runs: int = 0
    """In which a loss was seen."""
    first: float | None = None
    """Of the first step; None where it is not finite."""
    last: float | None = None
    """Over the last few steps that all runs have; None where it is not finite."""
    num_not_finite: int = 0
    not_finite_step: int | None = None
    """The first step at which it is NaN or infinite."""


class LossCheck(Struct, frozen=True, kw_only=True):
    """Whether the candidate trains as the baseline does, as far as the loss shows it."""

    verdict: Annotated[str, one_of(*LOSS_VERDICTS)]
    """not finite: NaN or infinite for the candidate alone. grows: from its own start, and beyond
    what the baseline's runs differ by. Both make the verdict diverges."""
    because: str
    baseline: SideLoss = SideLoss()
    candidate: SideLoss = SideLoss()

    @property
    def is_fault(self) -> bool:
        """Whether the candidate is no gain, however fast it is."""
        return self.verdict in (LOSS_NOT_FINITE, LOSS_GROWS)


class Gap(Struct, frozen=True, kw_only=True, rename={"num": "steps"}):
    """The candidate against the baseline; a floor is the baseline against itself."""

    num: int
    """Compared."""
    largest: float | None
    """Relative; None when nothing was compared, or is_number is false."""
    is_number: bool = True
    """False when one of the two was NaN or infinite where the other was not."""
    at_step: int | None
    first_step: int | None
    """The first beyond the tolerance."""


class NumericsCheck(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "is_deterministic": "deterministic",
        "num_parameters_equal": "parameters_equal",
        "num_parameters_compared": "parameters_compared",
    },
):
    """What the candidate computed, against the baseline."""

    verdict: Annotated[
        str,
        one_of(
            "bit-identical",
            "equal within rounding",
            "within the baseline's own noise",
            "differs",
            "not comparable",
        ),
    ]
    because: str
    tolerance: float
    """Relative, of a loss."""
    is_deterministic: bool | None
    """Whether two runs of the baseline gave the same bits."""
    loss: Gap
    grad_norm: Gap
    parameter_norm: Gap
    loss_floor: Gap
    grad_norm_floor: Gap
    parameter_norm_floor: Gap
    num_parameters_equal: int | None
    """Steps after which every parameter had the same bits."""
    num_parameters_compared: int = 0


class Prediction(Struct, frozen=True, kw_only=True):
    """A predicted speedup, compared with what the change gave."""

    value: float
    low: float | None = None
    high: float | None = None
    source: str
    verdict: Annotated[str, one_of("held", "too high", "too low", "open")] = ""


class Verified(Struct, frozen=True, kw_only=True):
    verdict: str
    because: str
    speedup: Interval | None
    """Before / after; None when nothing was measured."""
    runs: tuple[Measured, ...]
    baseline: SideSummary
    candidate: SideSummary
    num_rounds: int
    num_looks: int
    """How often the evidence was looked at; the interval allows for it."""
    smallest: float | None
    """The smallest speedup that would have been shown, four times in five; None where nothing was
    measured."""
    per_sample: bool = False
    is_by_mean: bool = False
    """Whether the gain lies in rare long steps, so that the speedup and the sides' times are of the
    means over all steps."""
    is_interrupted: bool = False
    """Whether it was ended by hand, with what had been measured by then."""
    so_far: Mapping[Side, SoFar] = field(default_factory=dict)
    """By side, where it ended before the first look at the evidence; a side of which no step was
    timed is not there."""
    wall_s: float = 0.0
    differences: tuple[Difference, ...] = ()
    """Between the sides, allowed or not."""
    refusals: tuple[str, ...] = ()
    tail: str = ""
    """What a run that failed said last."""
    loss: LossCheck | None = None
    """None where no run of both sides was made."""
    check: NumericsCheck | None = None
    prediction: Prediction | None = None
    notes: tuple[str, ...] = ()
    folder: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    """By side, as they were given."""
    changes: Mapping[str, Change] = field(default_factory=dict)

    @property
    def is_gain(self) -> bool:
        return self.verdict == PROVEN

    @property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(run.trial for run in self.runs)
