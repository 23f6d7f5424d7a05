"""What a machine's cores, memory and disks did while a job ran on it, as its own tools tell it.

None is "not recorded"; shares are of 1.
"""

from __future__ import annotations

from msgspec import Struct


class DiskLoad(Struct, frozen=True, kw_only=True):
    """One disk, in the mean of the looks at it."""

    name: str
    busy_share: float | None = None
    """Share of the time with a request under way."""
    reads_per_s: float | None = None
    read_bytes_per_s: float | None = None
    written_bytes_per_s: float | None = None
    read_wait_ms: float | None = None
    """Milliseconds from a request to its answer."""
    queue: float | None = None
    """Requests under way, in the mean."""


class SystemCall(Struct, frozen=True, kw_only=True):
    """All calls of one kind into the operating system."""

    name: str
    num: int
    seconds: float
    share: float
    """Share of the time in all of them."""


class HostLoad(Struct, frozen=True, kw_only=True):
    """What a machine's cores, memory and disks did, or a process' calls into its system, in the
    mean of the looks at them."""

    path: str
    tool: str
    num_looks: int
    work_share: float | None = None
    """Share of all cores' time at work: user, nice and system."""
    idle_share: float | None = None
    io_wait_share: float | None = None
    """Share of all cores' time with nothing to do while a disk's answer is waited for."""
    runnable: float | None = None
    """Threads that run or wait for a core."""
    blocked: float | None = None
    """Threads that wait for a disk."""
    swapped_bytes_per_s: float | None = None
    """Bytes a second to the swap and back."""
    memory_free_share: float | None = None
    """Share of the machine's memory that programs can still have."""
    swap_used_share: float | None = None
    disks: tuple[DiskLoad, ...] = ()
    calls: tuple[SystemCall, ...] = ()
