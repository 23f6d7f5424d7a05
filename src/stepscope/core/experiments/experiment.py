"""An experiment: the user's command before and after one change, run for real, and what that
proved.

A field is None when it was not measured.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from msgspec import Struct

from stepscope.core.codec import Contract, one_of
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
    """A number and how sure it is."""

    value: float
    low: float | None = None
    """None, as `high`, where nothing is known of how sure it is."""
    high: float | None = None
    level: float = 0.95
    """Held over all looks together."""

    @property
    def is_bounded(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def lowest(self) -> float:
        """The least it may be: 0 where nothing is known."""
        return 0.0 if self.low is None else self.low

    @property
    def highest(self) -> float:
        """The most it may be: infinity where nothing is known."""
        return math.inf if self.high is None else self.high


class Measured(Struct, frozen=True, kw_only=True):
    """One run of the experiment, with all that is evidence."""

    side: Side
    round: int | None
    """Counted from 0; None for a run that does not count: a rehearsal, or one made to compare what
    it computed."""
    trial: Trial
    step_ns: float | None
    """The trimmed mean of its steps; None when it timed none."""

    @property
    def run(self) -> Run:
        trial = self.trial
        return Run(
            side=self.side,
            round=self.round,
            folder=trial.folder,
            num_steps=len(trial.step_ns),
            ms=None if self.step_ns is None else self.step_ns / 1e6,
            wall_s=trial.wall_s,
            exit_code=trial.exit_code,
            on_device=trial.on_device,
            is_good=trial.is_good,
            samples=trial.setup.samples,
        )


class Run(
    Struct, frozen=True, kw_only=True, rename={"num_steps": "steps", "is_good": "ended_well"}
):
    """One run of the experiment."""

    side: Annotated[str, one_of(BASELINE, CANDIDATE)]
    round: int | None
    """Number from 0; null for a run that does not count."""
    folder: str
    num_steps: int
    ms: float | None
    """The trimmed mean of its steps; null when it timed none."""
    wall_s: float
    exit_code: int
    on_device: bool
    """Whether the steps are by the device's own clock."""
    is_good: bool = True
    """Whether it gave steps and ended well, or was ended by us."""
    samples: float | None = None
    """Samples of a step, on all ranks; null where that is not known."""


class SideSummary(Struct, frozen=True, kw_only=True, rename={"num_runs": "runs"}):
    """One side's runs together."""

    command: str | None = None
    """Command as it was given."""
    change: Change = Change()
    num_runs: int = 0
    """Runs that count."""
    ms: float | None = None
    """The geometric mean over runs of the trimmed mean of their steps."""
    mean_ms: float | None = None
    """Mean of all steps, none left out: it sees the rare long ones too."""
    run_spread: float | None = None
    """The standard deviation of the logarithms of the runs' times: how much runs of the same
    command differ."""


class SoFar(Struct, frozen=True, kw_only=True, rename={"num_runs": "runs", "num_steps": "steps"}):
    """One side, when it ended before the first look at the evidence."""

    num_runs: int
    """Runs that timed a step, those that fill the caches and those that were broken off among
    them."""
    num_steps: int
    median_ms: float
    """Median of all these steps."""


class SoFarSides(Struct, frozen=True, kw_only=True):
    """Sides so far; null for one of which no step was timed."""

    baseline: SoFar | None
    candidate: SoFar | None


class Difference(Struct, frozen=True, kw_only=True, rename={"is_allowed": "allowed"}):
    """Something that the two sides should have in common and have not."""

    what: str
    """Name of what differs, as in --allow."""
    words: str = ""
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
    """Runs in which a loss was seen."""
    first: float | None = None
    """Loss of the first step; None where it is not finite."""
    last: float | None = None
    """Loss over the last few steps that all runs have; None where it is not finite."""
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


class Predicted(Struct, frozen=True, kw_only=True):
    """A predicted speedup."""

    value: float
    low: float | None = None
    high: float | None = None


class Prediction(Predicted, frozen=True, kw_only=True):
    """A predicted speedup, compared with what the change gave."""

    source: str
    verdict: Annotated[str, one_of("held", "too high", "too low", "open")] = ""


class Verified(
    Contract,
    frozen=True,
    kw_only=True,
    tag="stepscope.verification/1",
    rename={
        "smallest": "smallest_shown",
        "num_rounds": "rounds",
        "num_looks": "looks",
        "is_by_mean": "by_mean",
        "is_interrupted": "interrupted",
        "check": "numerics",
    },
):
    """What `stepscope verify` proved. null is what was not measured; it is never 0."""

    IS_CLOSED: ClassVar[bool] = False

    verdict: Annotated[str, one_of(*VERDICTS)]
    because: str
    speedup: Interval | None = None
    """Ratio before / after: more than 1 is faster. Null when nothing was measured."""
    smallest: float | None = None
    """The smallest true speedup that an interval this wide would distinguish from 1, four times in
    five."""
    unit: Annotated[str, one_of("step", "sample")] = "step"
    """What a side's ms are of."""
    is_by_mean: bool = False
    """Whether the gain lies in rare long steps, so that the speedup and the sides' times are of the
    means over all steps."""
    baseline: SideSummary = SideSummary()
    candidate: SideSummary = SideSummary()
    num_rounds: int = 0
    """Rounds of four runs each."""
    num_looks: int = 0
    """How often the evidence was looked at; the interval allows for it."""
    wall_s: float = 0.0
    is_interrupted: bool = False
    """Whether it was ended by hand, or by a signal."""
    so_far: SoFarSides | None = None
    """Steps measured by side when it ended before the first look at the evidence, runs that do not
    count among it. They prove nothing. Null otherwise."""
    differences: tuple[Difference, ...] = ()
    """Differences between the sides, allowed or not."""
    refusals: tuple[str, ...] = ()
    tail: str = ""
    """What a run that failed said last."""
    loss: LossCheck | None = None
    """The loss of every run, with or without --check. Null where not both sides were run."""
    check: NumericsCheck | None = None
    """Result of --check."""
    prediction: Prediction | None = None
    runs: tuple[Run, ...] = ()
    notes: tuple[str, ...] = ()
    folder: str | None = None
    """Where the runs are kept."""

    @property
    def is_gain(self) -> bool:
        return self.verdict == PROVEN

    @property
    def sides(self) -> tuple[tuple[Side, SideSummary], ...]:
        return (BASELINE, self.baseline), (CANDIDATE, self.candidate)
