"""`stepscope.kernel_tuning/1`: what `stepscope tune kernel --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.core.contract.codec import Contract
from stepscope.core.experiments.kernel_tuning import Error
from stepscope.core.experiments.trials import Value


class Device(Struct, frozen=True, kw_only=True):
    name: str
    kind: str


class Measured(Struct, frozen=True, kw_only=True):
    """How times were taken."""

    by: str
    caches: str
    gradients: bool


class Case(Struct, frozen=True, kw_only=True):
    """One call: shapes and precision of its inputs."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    timed: bool


class Check(Struct, frozen=True, kw_only=True):
    """What outputs were compared with."""

    tolerance: float
    allowed: Mapping[str, Error]
    """By precision."""
    cases: tuple[Case, ...]
    gradients: bool


class Deviation(Struct, frozen=True, kw_only=True):
    case: Case
    output: str
    error: float | None
    allowed: float | None
    measure: str


class Config(Struct, frozen=True, kw_only=True):
    """A configuration, and whether it computes the same."""

    settings: Mapping[str, Value]
    outcome: str
    why: str | None
    failed_at: Case | None
    worst: Deviation | None
    num_checks: int


class Floor(Struct, frozen=True, kw_only=True):
    """What no kernel can go below."""

    bytes: int
    flops: float | None
    ns: float | None
    bound: str | None
    fits_cache: bool


class Time(Struct, frozen=True, kw_only=True):
    ns: float
    low_ns: float
    high_ns: float
    samples: int


class Speedup(Struct, frozen=True, kw_only=True):
    """Baseline / winner."""

    value: float
    low: float
    high: float | None
    pairs: int


class Result(Struct, frozen=True, kw_only=True):
    """A timed case. Configurations are named by their index in `configs`."""

    case: Case
    floor: Floor
    times: tuple[Time | None, ...]
    reference: Time | None
    baseline: int | None
    winner: int | None
    settings: Mapping[str, Value] | None
    """The winner's."""
    speedup: Speedup | None
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
    configs: tuple[Config, ...]
    cases: tuple[Result, ...]
    overall: int | None
    wall_s: float
    notes: tuple[str, ...]
