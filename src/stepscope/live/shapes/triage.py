"""What limits a job right now, by what can be seen from outside."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from stepscope.core.constraints import one_of
from stepscope.core.recordings.processes import HostUse
from stepscope.core.recordings.system import DeviceSeries, HostStacks

GPU, UNDERLOADED, THROTTLED = "gpu", "gpu-underloaded", "throttled"
INPUT_IO, INPUT_CPU, HOST = "input-io", "input-cpu", "host"
OVERSUBSCRIBED, SAVES, COMPILING = "oversubscribed", "saves", "compiling"
HUNG, FAILED, UNCLEAR = "hung", "failed", "unclear"
STATES = (
    GPU, UNDERLOADED, THROTTLED, INPUT_IO, INPUT_CPU, HOST, OVERSUBSCRIBED, SAVES, COMPILING,
    HUNG, FAILED, UNCLEAR,
)  # fmt: skip


class Triage(Struct, frozen=True, kw_only=True):
    """The answer, and what it rests on."""

    state: Annotated[str, one_of(*STATES)]
    summary: str
    first: str
    """What to do first."""
    also: tuple[str, ...] = ()
    """What else was seen."""
    devices: tuple[DeviceSeries, ...] = ()
    hosts: tuple[HostUse, ...] = ()
    stacks: tuple[HostStacks, ...] = ()
    not_measured: tuple[str, ...] = ()
