"""`stepscope.triage/1`, what `stepscope triage --format json` prints: what limits a job right now,
seen from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct, field

from stepscope.core.constraints import Count, one_of
from stepscope.core.contract.codec import Contract
from stepscope.core.recordings.processes import HostUse

GPU, UNDERLOADED, THROTTLED = "gpu", "gpu-underloaded", "throttled"
INPUT_IO, INPUT_CPU, HOST = "input-io", "input-cpu", "host"
OVERSUBSCRIBED, SAVES, COMPILING = "oversubscribed", "saves", "compiling"
HUNG, FAILED, UNCLEAR = "hung", "failed", "unclear"
STATES = (
    GPU, UNDERLOADED, THROTTLED, INPUT_IO, INPUT_CPU, HOST, OVERSUBSCRIBED, SAVES, COMPILING,
    HUNG, FAILED, UNCLEAR,
)  # fmt: skip


class TriagedDevice(Struct, frozen=True, kw_only=True):
    """One device, over its samples."""

    device: str
    name: str | None
    num_samples: Count = field(name="samples")
    busy_share: float | None
    """Of the time with a kernel running: the mean."""
    busy_median_share: float | None
    power_w: float | None
    """While at work, at the median."""
    power_limit_w: float | None
    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    temperature_c: float | None
    throttled: Mapping[str, float] | None
    """By reason, share of the samples at work."""


class TriagedFunction(Struct, frozen=True, kw_only=True):
    """Where threads stood most."""

    name: str
    share: float
    pid: int | None = None
    """The process that was looked into; null for a file's."""


class Triage(Contract, frozen=True, kw_only=True, tag="stepscope.triage/1"):
    """What limits a running job, seen from outside. null is 'not measured'."""

    state: Annotated[str, one_of(*STATES)]
    summary: str
    first: str
    """What to do first."""
    also: tuple[str, ...] = ()
    """What else was seen."""
    devices: tuple[TriagedDevice, ...] = ()
    hosts: tuple[HostUse, ...] = ()
    functions: tuple[TriagedFunction, ...] = ()
    """By py-spy or perf: the hottest calls of the training code."""
    not_measured: tuple[str, ...] = ()
