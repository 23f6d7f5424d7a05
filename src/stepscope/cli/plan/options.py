"""What a user may decide about a plan, by the names of the command line's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What is planned, and on what."""

    model: str | None
    cluster: str | None
    seq: int | None
    global_batch: int | None
    precision: str
    framework: str
    optimizer: str
    adapters: bool
    hardware: Path | None
    host_memory: float | None
    """GiB of a node."""
    price: float | None
    from_run: list[str] | None
    """Recordings whose rates are taken in place of datasheets."""
    no_cache: bool
    calibration: Path | None = None
    """What a run taught an earlier plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Parts of the layout that are given; what is None is searched."""

    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    micro_batch: int | None
    zero: int | None
    sp: bool | None
    recompute: str | None
    schedule: str | None
    offload: str | None
    allow_offload: bool
    no_flash: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What else to answer."""

    layouts: int
    explain: str | None
    tokens: float | None
    what_if: list[str]
    scaling: tuple[int, ...] | None
    largest: bool
    smallest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """A recorded run, and the widths to predict for."""

    from_run: list[str]
    nodes: tuple[int, ...] | None
    ranks_per_node: int | None
    strong: bool
    step_ms: float | None
    no_cache: bool
    cluster: str | None
    hardware: Path | None
    seq: int | None
    global_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a plan is shown, and where to."""

    format: str
    out: Path | None
