"""`stepscope.plan-calibration/1`: what a run taught a plan; `stepscope plan --calibration` reads
it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from stepscope.core.codec import AboveZero, AtLeastZero, Contract, Count

MAX_BYTES = 1 << 20
MIN_FACTOR, MAX_FACTOR = 0.02, 50.0
Factor = Annotated[float, Meta(ge=MIN_FACTOR, le=MAX_FACTOR)]


class Factors(Struct, frozen=True, kw_only=True):
    """Measured over planned. null where it was not measured, or not planned."""

    compute: Factor | None
    comms: Factor | None
    host: Factor | None
    memory: Factor | None


class PlanCalibration(Contract, frozen=True, kw_only=True, tag="stepscope.plan-calibration/1"):
    """What a recorded run says of the planner's rates on this device."""

    AGAIN: ClassVar[str] = "`stepscope compare PLAN.json RUN --recalibrate FILE` makes it"

    device: str
    """Device as the plan calls it: rates of another device are not taken from it."""
    num_devices: Count
    model: str
    layout: str
    framework: str
    precision: str
    planned_step_s: AboveZero
    measured_step_s: AboveZero
    factors: Factors
    source: str
    """The run."""


class ComparedPart(Struct, frozen=True, kw_only=True):
    """One part of the step. null is 'not planned' or 'not measured'."""

    part: str
    planned_s: AtLeastZero | None
    measured_s: float | None
    difference_s: float | None
    """Measured less planned."""


class ComparedMemory(Struct, frozen=True, kw_only=True):
    """Memory of the device that holds most, without what the driver keeps."""

    planned_bytes: AtLeastZero
    measured_bytes: AtLeastZero | None
    """Reserved by the allocator; null where it was not recorded."""


class PlanComparisonContract(
    Contract, frozen=True, kw_only=True, tag="stepscope.plan-comparison/1"
):
    """A recorded run beside its plan."""

    plan: str
    run: str
    model: str
    cluster: str
    layout: str
    planned_devices: Count
    measured_ranks: Count
    planned_step_s: AboveZero
    measured_step_s: AboveZero
    ratio: AboveZero
    """Measured over planned."""
    most_off: str | None
    """The part that explains most of the difference; null where the plan was near enough."""
    parts: tuple[ComparedPart, ...]
    memory: ComparedMemory
    factors: Factors
    recalibrated_step_s: AboveZero | None
    """The same layout planned with them; null where the plan's model cannot be built again."""
    other_work: str | None
    """What tells that the run is not one of the plan's model and batch, from which nothing is
    learned; null where nothing does."""
    notes: tuple[str, ...]
