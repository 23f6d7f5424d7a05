"""KernelReport: kernels one by one, as a profiler of the device's counters measured them. No
vendor's words: a warp is what the device runs in lock step (32 lanes on NVIDIA, 64 on AMD), a
multiprocessor its SM or CU, the tensor pipe its MMA or MFMA unit.

Shares are of 1, never percent. A field is None when it was not recorded, 0 when it was measured to
be zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from stepscope.core.recordings.recording import Recording

Dim = tuple[int, int, int]
WAITS_FOR_DEVICE = re.compile(
    r"^(cuda|hip)(Device|Stream|Ctx)Synchronize|^cu(Ctx|Stream)Synchronize"
)
"""Calls that wait for the device, by name."""
NAME_CHARS = 60
"""Characters of a kernel's name that are shown."""


class KernelMetrics(Struct, frozen=True, kw_only=True):
    """Metrics of one launch; or of several alike, then each figure is their mean."""

    name: str
    count: int = 1
    duration_ns: float | None = None
    """Duration of one launch."""
    device: str | None = None
    grid: Dim | None = None
    """Size of the grid in blocks."""
    block: Dim | None = None
    """Size of a block in threads."""
    registers: float | None = None
    """Registers of a thread."""
    shared_bytes: float | None = None
    """Shared memory of a block: static and dynamic."""

    occupancy: float | None = None
    """Warps on a multiprocessor while it is busy, of those it can hold."""
    theoretical_occupancy: float | None = None
    """What the launch allows."""
    limiters: tuple[str, ...] = ()
    """Registers, shared memory, warps, blocks or barriers: what holds the theoretical occupancy
    down; several where they bind alike, none where it is full."""
    waves: float | None = None
    """Blocks of the grid over those that fit on the device at once."""
    num_multiprocessors: int | None = None

    active: float | None = None
    """Share of the kernel's time in which a multiprocessor had work: the mean of all of them."""
    compute_throughput: float | None = None
    """Share of the peak of the multiprocessors' busiest unit, over the kernel's time."""
    dram_throughput: float | None = None
    l2_throughput: float | None = None
    l2_served: float | None = None
    """Share of the L2's peak in looking up and sending to the multiprocessors alone: what would
    stay if nothing came from DRAM."""
    l1_throughput: float | None = None
    tensor_pipe: float | None = None
    """Share of the tensor pipe's peak."""
    fma_pipe: float | None = None
    issue: float | None = None
    """Share of the cycles in which a scheduler with warps issued an instruction."""
    stalls: Mapping[str, float] = field(default_factory=dict)
    """Shares of the warps' time by what they waited for (NVIDIA's names: long_scoreboard, barrier,
    ...). Empty: not recorded."""

    l2_hits: float | None = None
    """Share of the sectors asked for that hit."""
    dram_read_bytes: float | None = None
    dram_write_bytes: float | None = None
    l2_size_bytes: int | None = None
    """Size of the device's L2."""
    l2_read_bytes: float | None = None
    """Bytes that the multiprocessors got from the L2."""
    load_sectors: float | None = None
    """Sectors of 32 bytes that one warp's load from global memory touches."""
    load_sectors_ideal: float | None = None
    """Sectors that its data would fill."""
    store_sectors: float | None = None
    store_sectors_ideal: float | None = None
    global_load_sectors: float | None = None
    """All of the kernel's, together."""
    global_store_sectors: float | None = None
    l2_load_sectors: float | None = None
    """Load sectors that the L1 did not have."""
    l2_store_sectors: float | None = None
    shared_wavefronts: float | None = None
    """Passes that accesses to shared memory took."""
    shared_wavefronts_ideal: float | None = None
    """Wavefronts without bank conflicts."""
    local_bytes: float | None = None
    """Loads and stores of local memory, where spilled registers go (and arrays that are indexed at
    run time)."""
    spill_instructions: float | None = None
    """Loads and stores that the compiler put there for want of registers."""
    instructions: float | None = None
    """Instructions of warps, all of them."""

    tensor_flops: float | None = None
    vector_flops: float | None = None
    """FLOPs of the FP64, FP32 and FP16 pipes."""

    @property
    def total_ns(self) -> float | None:
        return None if self.duration_ns is None else self.duration_ns * self.count

    @property
    def flops(self) -> float | None:
        """None unless both kinds were counted: half of them would be a wrong number."""
        if self.tensor_flops is None or self.vector_flops is None:
            return None
        return self.tensor_flops + self.vector_flops

    @property
    def dram_bytes(self) -> float | None:
        if self.dram_read_bytes is None or self.dram_write_bytes is None:
            return None
        return self.dram_read_bytes + self.dram_write_bytes

    @property
    def intensity(self) -> float | None:
        """FLOP for a byte of DRAM traffic: where the kernel stands along the roofline."""
        flops, moved = self.flops, self.dram_bytes
        return None if flops is None or not moved else flops / moved

    @property
    def roof(self) -> tuple[str, float] | None:
        """The unit nearest to its peak and how near: ("DRAM", 0.87)."""
        shares = [(name, share) for name, share in self._units() if share is not None]
        return max(shares, key=lambda pair: pair[1], default=None)

    def _units(self) -> tuple[tuple[str, float | None], ...]:
        return (
            ("tensor pipe", self.tensor_pipe),
            ("DRAM", self.dram_throughput),
            ("L2", self.l2_throughput),
            ("L1", self.l1_throughput),
            ("compute", self.compute_throughput),
        )


class KernelTotal(Struct, frozen=True, kw_only=True):
    """All launches of one name, of a tool that gives totals and no counters."""

    name: str
    count: int
    total_ns: float
    mean_ns: float | None = None


class Remark(Struct, frozen=True, kw_only=True):
    """What a rule of Nsight Compute says of a launch."""

    kernel: str
    rule: str
    text: str
    gain: float | None
    """Percent, by its own estimate."""
    gain_kind: str


class OtherTotals(Struct, frozen=True, kw_only=True):
    """Totals of what is no kernel: calls, copies, ranges."""

    of: str
    """The tool's own name for the table."""
    rows: tuple[KernelTotal, ...]
    unit: str = ""
    """Unit of the rows' totals and means, where they are no times but sizes."""


class KernelRecording(Recording, frozen=True, kw_only=True):
    """Kernels of one recording: counters of launches, in their order; totals where a tool gave no
    more than that."""

    kernels: tuple[KernelMetrics, ...] = ()
    totals: tuple[KernelTotal, ...] = ()
    remarks: tuple[Remark, ...] = ()
    others: tuple[OtherTotals, ...] = ()
    panel: tuple[tuple[str, ...], ...] = ()
    """Rows of rocprof-compute: metric, average, unit, peak and percent of the peak, as it writes
    them."""
    device: str | None = None


class KernelReport(Struct, frozen=True, kw_only=True):
    recordings: tuple[KernelRecording, ...] = ()

    @property
    def kernels(self) -> tuple[KernelMetrics, ...]:
        return tuple(kernel for recording in self.recordings for kernel in recording.kernels)
