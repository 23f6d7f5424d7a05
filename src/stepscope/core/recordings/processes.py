"""What the processes of a job did for some seconds, as the system counts it from outside.

None is "not measured"; cores are of time on a core, a second.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from stepscope.core.codec import Count, one_of

RANK, WORKER, COMPILER, HELPER, PROCESS = "rank", "worker", "compiler", "helper", "process"
ROLES = (RANK, WORKER, COMPILER, HELPER, PROCESS)
"""What a process is to its job: it trains; it makes batches for one that does; it compiles; it does
something else for the job; or nothing says which."""


class ProcessUse(Struct, frozen=True, kw_only=True):
    """One process of the job, over the time it was looked at."""

    pid: int
    role: Annotated[str, one_of(*ROLES)]
    """process where nothing says what it does for the job."""
    name: str
    parent: int | None = None
    """The rank that it belongs to, by its number in the system."""
    rank: int | None = None
    """Its number in the job, where its environment has one."""
    num_threads: int | None = field(default=None, name="threads")
    cores: float | None = None
    """On average over its threads together."""
    queued_cores: float | None = None
    """Threads that were ready to run and had no core, on average."""
    kernel_share: float | None = None
    """Of its time on cores, spent in the operating system's kernel."""
    io_wait_share: float | None = None
    """Of the looks, that its main thread was in an uninterruptible wait: for a disk, a network
    file system or a driver."""
    wakes_per_s: float | None = None
    """How often its main thread went to sleep of its own accord: it woke as often."""
    read_bytes_s: float | None = None
    """From anywhere: files that memory holds, pipes."""
    disk_read_bytes_s: float | None = None
    disk_write_bytes_s: float | None = None
    uses_device: bool | None = None
    """It has a GPU's file open."""

    @property
    def wanted_cores(self) -> float | None:
        """What it would use if nobody else did."""
        return None if self.cores is None else self.cores + (self.queued_cores or 0.0)


class HostUse(Struct, frozen=True, kw_only=True):
    """The processes of one job, and the machine around them."""

    seconds: float | None
    num_looks: Count = field(name="looks")
    processes: tuple[ProcessUse, ...]
    num_cores: float | None = field(default=None, name="cores")
    """That the job may use: its affinity and its control group's quota."""
    quota_cores: float | None = None
    """What the control group's quota alone grants; None where there is none."""
    busy_cores: float | None = None
    """Of the whole machine."""
    other_cores: float | None = None
    """Used by processes that are not the job's."""
    io_wait_share: float | None = None
    """Of the machine's cores, idle with a disk's answer outstanding."""
    held_back_share: float | None = None
    """Of the time, that the control group's quota held its processes back."""
    not_measured: tuple[str, ...] = ()
    """What could not be, and why."""

    def of_role(self, role: str) -> tuple[ProcessUse, ...]:
        return tuple(process for process in self.processes if process.role == role)
