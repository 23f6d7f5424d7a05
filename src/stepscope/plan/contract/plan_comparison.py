"""`stepscope.plan-comparison/1`: what `stepscope compare PLAN.json RUN --format json` prints."""

from __future__ import annotations

from msgspec import Struct

from stepscope.core.constraints import AboveZero, AtLeastZero, Count
from stepscope.core.contract.codec import Contract
from stepscope.plan.contract.plan_calibration import Factors


class ComparedPart(Struct, frozen=True, kw_only=True):
    """One part of the step. null is 'not planned' or 'not measured'."""

    part: str
    planned_s: AtLeastZero | None
    measured_s: float | None
    difference_s: float | None
    """Measured less planned."""


class ComparedMemory(Struct, frozen=True, kw_only=True):
    """Of the device that holds most, without what the driver keeps."""

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
