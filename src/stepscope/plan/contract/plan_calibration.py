"""`stepscope.plan-calibration/1`: what a run taught a plan; `stepscope plan --calibration` reads
it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from stepscope.core.constraints import AboveZero, Count
from stepscope.core.contract.codec import Contract

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
    """As the plan calls it: rates of another device are not taken from it."""
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
