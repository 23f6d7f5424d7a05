"""A machine as it was measured: what `stepscope calibrate` writes and every other command may read
in place of a datasheet.

Times are seconds, sizes bytes, rates per second. A thing that was not measured is absent or None,
never zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from statistics import geometric_mean, median

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.hardware import DeviceRates, ProbeFile

SCHEMA = "stepscope.hardware/1"
WHOLE_KINDS = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives that fill a ring: their bus bandwidths are one figure, the link's."""
COPIES = ("device", "to_device_pinned", "to_device_pageable", "to_host_pinned", "to_host_pageable")
"""`device` is within the device's own memory, read and write counted; on a CPU, within the
host's."""


def ring_steps(kind: str, group_size: int) -> int:
    """Messages one after the other in a ring (Thakur, Rabenseifner and Gropp, 2005, section 3)."""
    if kind == "send_recv":
        return 1
    return (2 if kind == "all_reduce" else 1) * max(group_size - 1, 1)


def bus_factor(kind: str, group_size: int) -> float:
    """Bytes over the bus per byte of message; nccl-tests' doc/PERFORMANCE.md."""
    if kind in ("send_recv", "broadcast", "reduce"):
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (group_size - 1) / group_size


class Timing(Struct, frozen=True, kw_only=True):
    """One call's time: the median of the repeats, and where the middle four fifths of them lie."""

    seconds: float
    low_s: float
    high_s: float
    repeats: int


class GemmPoint(Struct, frozen=True, kw_only=True):
    """(m, k) x (k, n)."""

    precision: str
    m: int
    n: int
    k: int
    time: Timing

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k


class AttentionPoint(Struct, frozen=True, kw_only=True):
    """Causal scaled-dot-product attention of equal query and key lengths."""

    precision: str
    direction: str
    """forward, or backward alone."""
    batch: int
    heads: int
    length: int
    head_dim: int
    time: Timing

    @property
    def flops(self) -> float:
        """Half of 4 b h s s d, the causal half; the backward is twice the forward."""
        forward = 2.0 * self.batch * self.heads * self.length**2 * self.head_dim
        return forward * (2 if self.direction == "backward" else 1)


class CopyPoint(Struct, frozen=True, kw_only=True):
    kind: str
    size_bytes: int
    time: Timing

    @property
    def bytes_per_s(self) -> float:
        return (2 if self.kind == "device" else 1) * self.size_bytes / self.time.seconds


class CollectivePoint(Struct, frozen=True, kw_only=True):
    """One collective of one size. `size_bytes` as nccl-tests counts: the whole buffer, so all
    ranks' parts for a gather."""

    kind: str
    backend: str
    tier: str
    group_size: int
    size_bytes: int
    time: Timing

    @property
    def bus_bytes_per_s(self) -> float:
        return self.size_bytes * bus_factor(self.kind, self.group_size) / self.time.seconds


class Region(Struct, frozen=True, kw_only=True):
    """Sizes at which one line holds: T = steps * alpha + volume / beta."""

    name: str
    """latency, bandwidth, or mixed where neither has the larger part all through."""
    up_to_bytes: float | None
    """None: without end."""
    alpha_s: float
    beta_bytes_per_s: float | None
    """Bus bandwidth. None where the time did not grow with the size."""
    num_points: int


class CollectiveFit(Struct, frozen=True, kw_only=True):
    """Time over size of one collective in one group."""

    kind: str
    backend: str
    tier: str
    group_size: int
    regions: tuple[Region, ...]
    r2: float
    """R squared of the fit: of relative errors, against a constant time."""
    worst_misfit: float
    """Larger over smaller of the fitted and the measured time; 1 is none."""
    worst_bytes: int
    num_points: int
    mean_misfit: float | None = None
    """The geometric mean over the sizes; None in older files."""

    def seconds(self, size_bytes: float) -> float:
        """What a message of this size takes."""
        region = next(
            (r for r in self.regions if r.up_to_bytes is None or size_bytes < r.up_to_bytes),
            self.regions[-1],
        )
        start = ring_steps(self.kind, self.group_size) * region.alpha_s
        if region.beta_bytes_per_s is None:
            return start
        return start + size_bytes * bus_factor(self.kind, self.group_size) / region.beta_bytes_per_s

    def resized(self, group_size: int) -> CollectiveFit:
        """The same link under a group of another size: the same alpha and beta, other steps and
        volumes."""
        return replace(self, group_size=group_size)


class GemmFit(Struct, frozen=True, kw_only=True):
    """time = max(FLOPs / (peak * efficiency * waves * k / (k + half_k)), bytes / bandwidth) +
    floor."""

    precision: str
    peak_flops: float
    peak_source: str
    """datasheet, or best measured where there is none."""
    efficiency: float
    half_k: float
    tile_m: int | None
    tile_n: int | None
    """None where the device is not made of units that take whole tiles."""
    num_sms: int | None
    bandwidth_bytes_per_s: float
    floor_s: float
    median_misfit: float
    worst_misfit: float
    """Larger over smaller of the fitted and the measured time; 1 is none."""
    worst_shape: tuple[int, int, int]
    num_points: int

    def seconds(self, m: int, n: int, k: int) -> float:
        rate = self.peak_flops * self.efficiency * self.waves(m, n) * k / (k + self.half_k)
        moved = product_bytes(self.precision, m, n, k)
        return max(2.0 * m * n * k / rate, moved / self.bandwidth_bytes_per_s) + self.floor_s

    def waves(self, m: int, n: int) -> float:
        """The share of the tiles' places that hold something: the last wave and the edges are not
        full."""
        if self.tile_m is None or self.tile_n is None or self.num_sms is None:
            return 1.0
        tiles = ceil(m / self.tile_m) * ceil(n / self.tile_n)
        return m * n / (ceil(tiles / self.num_sms) * self.num_sms * self.tile_m * self.tile_n)


def bytes_per_element(precision: str) -> int:
    return {"fp8": 1, "fp16": 2, "bf16": 2}.get(precision, 4)


def output_bytes(precision: str) -> int:
    """A product of fp8 matrices is written as bf16."""
    return 2 if precision == "fp8" else bytes_per_element(precision)


def product_bytes(precision: str, m: int, n: int, k: int) -> int:
    """Bytes of both matrices and of their product."""
    return bytes_per_element(precision) * (m * k + k * n) + output_bytes(precision) * m * n


class Machine(Struct, frozen=True, kw_only=True):
    """What was measured. No host names, no paths."""

    kind: str
    """cuda or cpu; unknown where the points come from another tool's output."""
    device: str
    memory_bytes: int | None = None
    num_sms: int | None = None
    num_devices: int | None = None
    num_threads: int | None = None
    """Threads of the host's arithmetic."""
    driver: str | None = None
    runtime: str | None = None
    """CUDA or ROCm, as torch was built with it."""
    torch: str | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None
    ranks_share_a_device: bool | None = None


class Launch(Struct, frozen=True, kw_only=True):
    """What starting one small kernel costs."""

    host: Timing
    device: Timing | None = None
    """The least time a kernel takes on the device, one after another."""


class HostSpeed(Struct, frozen=True, kw_only=True):
    python_ops_per_s: float
    """Rounds of a fixed loop of plain Python."""
    torch_ops_per_s: float
    """Small tensor operations on the host."""


class Calibrated(Struct, frozen=True, kw_only=True):
    """A hardware file."""

    schema: str
    made_by: str
    date: str
    how: str
    machine: Machine
    gemms: tuple[GemmPoint, ...] = ()
    """Bursts, too short to run into a limit of power or heat."""
    sustained: tuple[GemmPoint, ...] = ()
    """A few of the same shapes, repeated without pause until the rate had settled: what a training
    step sees."""
    attention: tuple[AttentionPoint, ...] = ()
    copies: tuple[CopyPoint, ...] = ()
    launch: Launch | None = None
    host: HostSpeed | None = None
    collectives: tuple[CollectivePoint, ...] = ()
    gemm_fits: tuple[GemmFit, ...] = ()
    collective_fits: tuple[CollectiveFit, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    operators: tuple[ProbeFile, ...] = ()
    """What `stepscope probe` had timed there by then."""

    def is_of(self, device: str | None) -> bool:
        """Whether a device of this name is the kind that was measured."""
        return (
            device is not None
            and device.strip().casefold() == self.machine.device.strip().casefold()
        )

    def gemm(self, precision: str) -> GemmFit | None:
        """The fit at the sustained rate, where there is one; `burst_gemm` is as it was fitted."""
        fit = self.burst_gemm(precision)
        return (
            None
            if fit is None
            else replace(fit, efficiency=fit.efficiency * self.sustained_share(precision))
        )

    def burst_gemm(self, precision: str) -> GemmFit | None:
        return next((fit for fit in self.gemm_fits if fit.precision == precision), None)

    def sustained_share(self, precision: str) -> float:
        """Share of a burst's rate that the same products keep up for long; 1 where that was not
        measured."""
        bursts = {
            (point.m, point.n, point.k): point.time.seconds
            for point in self.gemms
            if point.precision == precision
        }
        shares = [
            bursts[point.m, point.n, point.k] / point.time.seconds
            for point in self.sustained
            if point.precision == precision and (point.m, point.n, point.k) in bursts
        ]
        return geometric_mean(shares) if shares else 1.0

    def best_flops(self, precision: str) -> float | None:
        """FLOP/s of the best product: kept up for long where that was measured, else in a burst;
        None for no product at all."""
        return (best_flops(self.gemms) | best_flops(self.sustained)).get(precision)

    def collective(self, kind: str, group_size: int, tier: str) -> CollectiveFit | None:
        """The fit of exactly this group; `CollectiveFit.resized` carries one to another size."""
        key = (kind, group_size, tier)
        return next(
            (fit for fit in self.collective_fits if (fit.kind, fit.group_size, fit.tier) == key),
            None,
        )

    def bus_bytes_per_s(self, num_ranks: int) -> float | None:
        """What the largest collectives of so many ranks move over the bus, the median over kinds;
        None where no group like theirs was measured: one node's for as many as it has devices, else
        one of several nodes."""
        if self.machine.ranks_share_a_device or num_ranks < 2:
            return None
        inside = self.machine.num_devices is None or num_ranks <= self.machine.num_devices
        kinds: dict[str, list[CollectivePoint]] = {}
        for point in self.collectives:
            if point.kind in WHOLE_KINDS and (point.tier == "node") is inside:
                kinds.setdefault(point.kind, []).append(point)
        rates = [
            max(points, key=lambda point: point.size_bytes).bus_bytes_per_s
            for points in kinds.values()
        ]
        return median(rates) if rates else None

    def copy_bytes_per_s(self, kind: str = "device") -> float | None:
        """Rate of the largest size measured: smaller ones may never leave a cache."""
        points = [point for point in self.copies if point.kind == kind]
        return max(points, key=lambda point: point.size_bytes).bytes_per_s if points else None

    def roofs(self, source: str = "measured") -> DeviceRates | None:
        """The best product of each precision, as it is kept up, and the device's own memory; None
        where either is missing."""
        bandwidth = self.copy_bytes_per_s()
        if not self.gemms or bandwidth is None:
            return None
        peaks = best_flops(self.gemms) | best_flops(self.sustained)
        return DeviceRates(
            device=self.machine.device,
            source=source,
            peak_flops=peaks,
            bandwidth_bytes_per_s=bandwidth,
        )


def best_flops(points: Iterable[GemmPoint]) -> dict[str, float]:
    """FLOP/s of the fastest shape, by precision."""
    best: dict[str, float] = {}
    for point in points:
        best[point.precision] = max(
            best.get(point.precision, 0.0), point.flops / point.time.seconds
        )
    return best
