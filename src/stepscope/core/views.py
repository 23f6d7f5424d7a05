"""Views: a rank's recorded steps by operator, kernel, module and allocation, as profilers show
them. Sums over the measured steps; times are integer nanoseconds."""

from __future__ import annotations

from msgspec import Struct


class OperatorView(Struct, frozen=True, kw_only=True):
    name: str
    count: int
    host_ns: int
    """Host time with all that it called; a call inside another of its name counts once."""
    own_host_ns: int
    """Host time without the operators that it called."""
    own_device_ns: int
    """Device time of the work launched in it, and in no operator that it called."""


class ShapeView(Struct, frozen=True, kw_only=True):
    """The calls of one operator with inputs of one shape."""

    name: str
    dims: str | None
    """Sizes as the recorder writes them; None where it wrote none."""
    count: int
    own_host_ns: int
    own_device_ns: int


class KernelView(Struct, frozen=True, kw_only=True):
    """All calls of one kernel by one operator."""

    name: str
    op: str | None
    min_ns: int
    max_ns: int
    occupancy_pct: float | None
    """The recorder's estimate, weighted by time; None where it has none."""
    blocks_per_sm: float | None
    """Blocks of a launch over the device's multiprocessors, weighted by time: below 1 some of them
    have nothing to do. None where either is not known."""


class ModuleView(Struct, frozen=True, kw_only=True):
    """A module where it stands in its tree; parents come before their children."""

    name: str
    depth: int
    count: int
    """Calls of its forward."""
    host_ns: int
    """Host time of these calls."""
    device_ns: int
    """Device time of the work launched inside, and of its backward where autograd's numbers
    tell."""


class MemoryView(Struct, frozen=True, kw_only=True):
    """What one operator allocated."""

    op: str | None
    """None: in no operator."""
    count: int
    """Allocations."""
    allocated_bytes: int
    net_bytes: int
    """Allocated less freed while it ran: below 0 it let go of more than it took."""


class ProfilerViews(Struct, frozen=True, kw_only=True):
    """All of one rank."""

    num_steps: int
    operators: tuple[OperatorView, ...]
    kernels: tuple[KernelView, ...]
    shapes: tuple[ShapeView, ...] | None
    """None where no shape was recorded."""
    modules: tuple[ModuleView, ...] | None
    """None where no module was recorded."""
    memory: tuple[MemoryView, ...] | None
    """None where no allocation was recorded."""
    memory_device: str | None = None
    """Where that memory is: device, or host."""
