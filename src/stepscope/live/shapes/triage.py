"""`stepscope.triage/1`, what `stepscope triage --format json` prints: what limits a job right now,
seen from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct, field

from stepscope.core.codec import Contract, Count, one_of
from stepscope.core.recordings.system import HostUse

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
    """Share of the time with a kernel running: the mean."""
    busy_median_share: float | None
    power_w: float | None
    """While at work, at the median."""
    power_limit_w: float | None
    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    temperature_c: float | None
    throttled: Mapping[str, float] | None
    """Share of the samples at work, by reason."""


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
    """Hottest calls of the training code, by py-spy or perf."""
    not_measured: tuple[str, ...] = ()


OK, BAD, UNKNOWN = "ok", "bad", "not known"


class Check(Struct, frozen=True):
    """One question about the job."""

    name: str
    state: str
    """OK, BAD or UNKNOWN."""
    words: str


class RankTimes(Struct, frozen=True, kw_only=True):
    """One rank's steps that no profiler slowed, the very first left out."""

    rank: int
    num_steps: int
    mean_ns: float
    low_ns: int
    high_ns: int
    """The shortest and the longest."""
    parts_ns: Mapping[str, float]
    """A step, on average: loader, backward, optimizer; what is not there was not timed."""


class Health(Struct, frozen=True, kw_only=True):
    checks: tuple[Check, ...]
    ranks: tuple[RankTimes, ...] = ()

    @property
    def state(self) -> str:
        """BAD when one is, else UNKNOWN when one is."""
        states = {check.state for check in self.checks}
        return BAD if BAD in states else UNKNOWN if UNKNOWN in states or not states else OK


class Frame(Struct, frozen=True, kw_only=True):
    """One call."""

    name: str
    file: str
    line: int


class Stood(Struct, frozen=True, kw_only=True):
    """One process, over all looks at it."""

    pid: int
    rank: int | None
    """None where its environment does not say."""
    stacks: tuple[tuple[Frame, ...], ...]
    """Stacks of the thread that trains, a stack for each look; the innermost call first."""
    cpu_share: float | None
    """CPU time it used in the meantime, in cores."""
    problem: str | None = None
    """Why there are no stacks."""


class Standing(Struct, frozen=True, kw_only=True):
    """What is made of it."""

    pid: int
    rank: int | None
    state: str
    """hung: at one source location and using no CPU; slow: at one and using CPU; running; or
    unknown."""
    where: tuple[Frame, ...]
    """The innermost calls of the training code itself, the innermost first."""
    inside: str | None
    """The call they are in, of torch or another library."""
    collective: str | None
    """The collective it is in, where it is in one."""
    is_elsewhere: bool = False
    """Stands where most ranks do not."""
    problem: str | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """All ranks, and what their source locations mean together."""

    ranks: tuple[Standing, ...]
    summary: str
