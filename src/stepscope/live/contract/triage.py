"""`stepscope.triage/1`: what `stepscope triage --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from stepscope.core.constraints import Count, one_of
from stepscope.core.contract.codec import Contract
from stepscope.core.recordings.processes import ROLES
from stepscope.live.shapes.triage import STATES


class TriagedProcess(Struct, frozen=True, kw_only=True):
    """One process of the job, over the time it was looked at."""

    pid: int
    role: Annotated[str, one_of(*ROLES)]
    """process where nothing says what it does for the job."""
    name: str
    parent: int | None
    """The rank that started it, as a process."""
    rank: int | None
    threads: int | None
    cores: float | None
    """On average, over its threads together."""
    queued_cores: float | None
    """Threads that were ready and had no core, on average."""
    kernel_share: float | None
    """Of its time on cores, in the operating system's kernel."""
    io_wait_share: float | None
    """Of the looks, with its main thread in an uninterruptible wait."""
    wakes_per_s: float | None
    """How often its main thread went to sleep of its own accord."""
    read_bytes_s: float | None
    """From anywhere, also from memory's cache."""
    disk_read_bytes_s: float | None
    disk_write_bytes_s: float | None
    uses_device: bool | None


class TriagedHost(Struct, frozen=True, kw_only=True):
    """One machine and the job's processes on it."""

    seconds: float | None
    looks: Count
    cores: float | None
    """That the job may use."""
    busy_cores: float | None
    other_cores: float | None
    """Used by processes that are not the job's."""
    io_wait_share: float | None
    held_back_share: float | None
    """Of the time, by the control group's quota."""
    processes: tuple[TriagedProcess, ...]


class TriagedDevice(Struct, frozen=True, kw_only=True):
    """One device, over its samples."""

    device: str
    name: str | None
    samples: Count
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


class TriageContract(Contract, frozen=True, kw_only=True, tag="stepscope.triage/1"):
    """What limits a running job, seen from outside. null is 'not measured'."""

    state: Annotated[str, one_of(*STATES)]
    summary: str
    first: str
    """What to do first."""
    also: tuple[str, ...]
    devices: tuple[TriagedDevice, ...]
    hosts: tuple[TriagedHost, ...]
    functions: tuple[TriagedFunction, ...]
    """By py-spy or perf: the hottest calls of the training code."""
    not_measured: tuple[str, ...]
