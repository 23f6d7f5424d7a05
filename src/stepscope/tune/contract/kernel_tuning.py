"""`stepscope.kernel_tuning/1`: what `stepscope tune kernel --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.core.contract.codec import Contract
from stepscope.core.experiments.trials import Value
from stepscope.tune.shapes.kernel_tuning import Case, Error, Floor, Gain, Timed, Trying


class Device(Struct, frozen=True, kw_only=True):
    name: str
    kind: str


class Measured(Struct, frozen=True, kw_only=True):
    """How times were taken."""

    by: str
    caches: str
    gradients: bool


class Check(Struct, frozen=True, kw_only=True):
    """What outputs were compared with."""

    tolerance: float
    allowed: Mapping[str, Error]
    """By precision."""
    cases: tuple[Case, ...]
    gradients: bool


class Result(Struct, frozen=True, kw_only=True):
    """A timed case. Configurations are named by their index in `configs`."""

    case: Case
    floor: Floor
    times: tuple[Timed | None, ...]
    reference: Timed | None
    baseline: int | None
    winner: int | None
    settings: Mapping[str, Value] | None
    """The winner's."""
    speedup: Gain | None
    share_of_floor: float | None
    ties: tuple[int, ...]


class KernelTuningContract(Contract, frozen=True, kw_only=True, tag="stepscope.kernel_tuning/1"):
    """What `stepscope tune kernel --format json` prints. What was not measured is null, never 0."""

    what: str
    reference: str
    device: Device
    versions: Mapping[str, str]
    measured: Measured
    check: Check
    roofs: str | None
    """Where the floors' rates come from."""
    configs: tuple[Trying, ...]
    cases: tuple[Result, ...]
    overall: int | None
    wall_s: float
    notes: tuple[str, ...]
