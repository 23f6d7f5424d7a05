"""`stepscope.verification/1`: what `stepscope verify --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Struct

from stepscope.core.constraints import one_of
from stepscope.core.contract.codec import Contract
from stepscope.core.experiments.experiment import (
    VERDICTS,
    LossCheck,
    NumericsCheck,
    Prediction,
)
from stepscope.core.experiments.trials import Value


class Interval(Struct, frozen=True, kw_only=True):
    """A number and how sure it is."""

    value: float
    low: float | None
    high: float | None
    level: float
    """Held over all looks together."""


class Change(Struct, frozen=True, kw_only=True):
    """What was applied on top of the command."""

    environment: Mapping[str, str]
    knobs: Mapping[str, Value]
    arguments: tuple[str, ...]


class Side(Struct, frozen=True, kw_only=True):
    """One side's runs together."""

    command: str | None
    change: Change
    runs: int
    """That count."""
    ms: float | None
    """The geometric mean over runs of the trimmed mean of their steps."""
    mean_ms: float | None
    """Of all steps, none left out."""
    run_spread: float | None
    """The standard deviation of the logarithms of the runs' times."""


class SoFar(Struct, frozen=True, kw_only=True):
    """One side, when it ended before the first look at the evidence."""

    runs: int
    """That timed a step."""
    steps: int
    median_ms: float
    """Of all these steps."""


class SoFarSides(Struct, frozen=True, kw_only=True):
    """By side."""

    baseline: SoFar | None
    candidate: SoFar | None


class Run(Struct, frozen=True, kw_only=True):
    """One run of the experiment."""

    side: Annotated[str, one_of("baseline", "candidate")]
    round: int | None
    """From 0; null for a run that does not count."""
    folder: str
    steps: int
    ms: float | None
    wall_s: float
    exit_code: int
    on_device: bool
    """Whether the steps are by the device's own clock."""


class Difference(Struct, frozen=True, kw_only=True):
    """Something that the two sides should have in common and have not."""

    what: str
    """As in --allow."""
    baseline: str
    candidate: str
    allowed: bool


class VerificationContract(Contract, frozen=True, kw_only=True, tag="stepscope.verification/1"):
    """What `stepscope verify` proved. null is what was not measured; it is never 0."""

    IS_CLOSED: ClassVar[bool] = False

    verdict: Annotated[str, one_of(*VERDICTS)]
    because: str
    speedup: Interval | None
    """Before / after: more than 1 is faster. Null when nothing was measured."""
    smallest_shown: float | None
    """The smallest true speedup that an interval this wide would distinguish from 1, four times in
    five."""
    unit: Annotated[str, one_of("step", "sample")]
    """What a side's ms are of."""
    baseline: Side
    candidate: Side
    rounds: int
    """Of four runs each."""
    looks: int
    """How often the evidence was looked at; the interval allows for it."""
    wall_s: float
    interrupted: bool
    """Whether it was ended by hand, or by a signal."""
    so_far: SoFarSides | None
    """By side, what was measured when it ended before the first look at the evidence, runs that do
    not count among it. It proves nothing. Null otherwise."""
    differences: tuple[Difference, ...]
    refusals: tuple[str, ...]
    tail: str
    """What a run that failed said last."""
    loss: LossCheck | None
    """The loss of every run, with or without --check. Null where not both sides were run."""
    numerics: NumericsCheck | None
    """Of --check."""
    prediction: Prediction | None
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    folder: str | None
    """Where the runs are kept."""
