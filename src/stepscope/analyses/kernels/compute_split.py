"""Compute time by what keeps it from the device's dense peak.

A kernel's time is charged in this order, each part as far as time is left: the model's FLOPs at the
peak; recomputed work; the lower peak of its precision; the bytes that its arithmetic does not hide,
at full bandwidth; arithmetic of the vector units; SMs without a block, and padded tiles. What is
left is below its roof for a reason that is not told; and of a kernel whose work is not known,
nothing is. An operator's work is that of all its kernels, by their time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from stepscope.analyses.grouping import distinct
from stepscope.analyses.intervals import bounds, lengths_in
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.analyses.kernels.tables import KernelWork
from stepscope.analyses.rank_context import RankContext
from stepscope.core.peak import ACHIEVED, COMPUTE_PARTS, ComputeSplit
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind, Launch, OpInputs, Trace
from stepscope.workload.inputs import parse_inputs
from stepscope.workload.matmul import product_size

USUAL = ("bf16", "fp16")
"""What training uses at least: a run in fp32 is measured by these."""
TILE = re.compile(r"(?<![0-9a-z])(?:tilesize|MT)?(\d{2,3})x(\d{2,3})(?![0-9])", re.IGNORECASE)
"""A product's tile of the output in its kernel's name: `_128x256_64x4`, `tilesize128x128x32`,
`MT256x128x64`."""
TILE_SIZES = range(16, 513)
BATCH = 1 << 17
"""Kernels whose parts are worked out at once."""


class Reference(Struct, frozen=True, kw_only=True):
    """The peak that is the whole."""

    precision: str
    flops: float


def compute_split(context: RankContext) -> ComputeSplit | None:
    """Split of each window of the steps; None without a device or a window."""
    steps, roofs = context.cut.steps, context.roofs
    if not steps.windows or steps.where != "device":
        return None
    reference = None if roofs is None else _reference(roofs, context.kernels)
    if roofs is None or reference is None:
        compute = lengths_in(*bounds(steps.windows), context.sets.compute)
        return ComputeSplit(parts={"unknown_work": tuple(compute.tolist())})
    work = _Kernels.of(context)
    filled = _filled(context, work, roofs)
    rows = list[tuple[Int64, int]]()
    for windows in _batches(work, steps.windows):
        some = _running(work, windows[0][0], windows[-1][1])
        kernels = work.only(some)
        charged, arithmetic = _charged(kernels, roofs, reference, filled[some])
        rows += [_in_window(kernels, charged, arithmetic, window) for window in windows]
    parts = {part: tuple(int(row[0][at]) for row in rows) for at, part in enumerate(COMPUTE_PARTS)}
    if np.isnan(filled).all():
        parts.pop("not_filled")
    return ComputeSplit(
        device=roofs.spec.name,
        precision=reference.precision,
        peak_flops=reference.flops,
        num_sms=roofs.spec.num_sms,
        parts=parts,
        arithmetic_ns=tuple(row[1] for row in rows),
    )


def _reference(roofs: DevicePeaks, work: KernelWork) -> Reference | None:
    """The fastest precision that products of the run use, or the usual 16 bits where that is
    faster; of equals, what is used most."""
    counted = work.is_matrix & (work.precision != NONE) & ~np.isnan(work.flops)
    used = np.bincount(work.precision[counted], weights=work.flops[counted])
    names = [work.precisions[code] for code in np.argsort(-used, kind="stable") if used[code] > 0]
    peaks = {name: roofs.peak_flops(name, matrix=True) for name in (*names, *USUAL)}
    known = {name: peak for name, peak in peaks.items() if peak}
    if not known:
        return None
    best = max(known, key=known.__getitem__)
    return Reference(precision=best, flops=known[best])


class _Kernels(Struct, frozen=True, kw_only=True):
    """Kernels that are no collectives, by start; each has its share of its operator's work."""

    index: Int64
    """Into the trace."""
    row: Int64
    """Into the context's KernelWork, of the kernel that carries the operator's work."""
    op: Int64
    start_ns: Int64
    end_ns: Int64
    reach_ns: Int64
    """The last end so far."""
    dur_ns: Int64
    flops: Float64
    hardware_flops: Float64
    bytes: Float64
    precision: tuple[str, ...]
    precision_code: Int64
    is_matrix: Bool
    recomputed: Bool

    @classmethod
    def of(cls, context: RankContext) -> _Kernels:
        trace, charges, work = context.trace, context.charges, context.kernels
        is_kernel = trace.kind[charges.work] == Kind.KERNEL
        chosen = np.flatnonzero(~context.collective[work.kernels])
        op, recomputed = (c[is_kernel][chosen] for c in (charges.op, charges.recomputed))
        dur = trace.dur_ns[work.kernels[chosen]]
        lead, total = _leads(op, dur)
        share = np.divide(dur, total, out=np.zeros(len(dur)), where=total > 0)
        row = chosen[lead]
        index = work.kernels[chosen]
        return cls(
            index=index,
            row=row,
            op=op,
            start_ns=trace.start_ns[index],
            end_ns=trace.end_ns[index],
            reach_ns=np.maximum.accumulate(trace.end_ns[index]),
            dur_ns=dur,
            flops=work.flops[row] * share,
            hardware_flops=work.hardware_flops[row] * share,
            bytes=work.bytes[row] * share,
            precision=work.precisions,
            precision_code=work.precision[row].astype(np.int64),
            is_matrix=work.is_matrix[row],
            recomputed=recomputed,
        )

    def only(self, some: slice) -> _Kernels:
        columns = {
            name: column[some]
            for name in self.__struct_fields__
            if isinstance(column := getattr(self, name), np.ndarray)
        }
        return replace(self, **columns)


def _batches(
    work: _Kernels, windows: Sequence[tuple[int, int]]
) -> Iterator[Sequence[tuple[int, int]]]:
    """Windows in a row with not many more than BATCH kernels: what is charged to a kernel has many
    columns, and a long trace millions of kernels."""
    ends = np.searchsorted(work.start_ns, [high for _, high in windows])
    borders = np.flatnonzero(np.diff(ends // BATCH)) + 1
    for first, last in pairwise([0, *borders.tolist(), len(windows)]):
        yield windows[first:last]


def _leads(op: Int64, dur: Int64) -> tuple[Int64, Int64]:
    """Longest kernel of each operator's call, and the time of all kernels of that call."""
    group = np.where(op == NONE, -1 - np.arange(len(op)), op)
    order = np.lexsort((-dur, group))
    begins = np.flatnonzero(np.diff(group[order], prepend=group[order][:1] - 1))
    if not len(order):
        return order, dur
    counts = np.diff(begins, append=len(order))
    lead, total = np.empty_like(order), np.empty_like(dur)
    lead[order] = np.repeat(order[begins], counts)
    total[order] = np.repeat(np.add.reduceat(dur[order], begins), counts)
    return lead, total


def _charged(
    work: _Kernels, roofs: DevicePeaks, reference: Reference, filled: Float64
) -> tuple[Float64, Bool]:
    """Nanoseconds of each of COMPUTE_PARTS by kernel, which sum to its time; and which kernels
    arithmetic limits."""
    time = work.dur_ns.astype(np.float64)
    traffic = work.bytes / roofs.spec.bandwidth_bytes_per_s.value * 1e9
    own_peak = _peaks(work, roofs)
    at_peak = np.where(work.is_matrix, work.flops, np.nan) / reference.flops * 1e9
    at_own = work.flops / own_peak * 1e9
    executed = work.hardware_flops / own_peak * 1e9
    is_known = np.where(work.is_matrix, ~np.isnan(at_own), ~np.isnan(traffic) | ~np.isnan(at_own))
    arithmetic = is_known & ~(np.nan_to_num(traffic) >= np.nan_to_num(executed))
    first = ~work.recomputed
    claims: Mapping[str, Float64] = {
        ACHIEVED: np.where(first, at_peak, 0.0),
        "recomputation": np.where(first, np.where(work.is_matrix, executed - at_own, 0.0), time),
        "precision": np.where(work.is_matrix, at_own - at_peak, 0.0),
        "memory_bound": traffic - np.where(work.is_matrix, np.nan_to_num(executed), 0.0),
        "vector_arithmetic": np.where(work.is_matrix, 0.0, executed - np.nan_to_num(traffic)),
        "not_filled": time * (1 - filled),
        "below_bandwidth": np.where(is_known & ~arithmetic, time, 0.0),
        "below_peak": np.where(arithmetic, time, 0.0),
        "unknown_work": time,
    }
    charged = np.empty((len(time), len(COMPUTE_PARTS)))
    claimed, before = np.zeros(len(time)), np.zeros(len(time))
    for number, part in enumerate(COMPUTE_PARTS):
        claimed += np.maximum(np.nan_to_num(claims[part]), 0.0)
        reach = np.minimum(claimed, time)
        np.subtract(reach, before, out=charged[:, number])
        before = reach
    return charged, arithmetic & first


def _peaks(work: _Kernels, roofs: DevicePeaks) -> Float64:
    """The peak of each kernel's own precision, on the units that it may use; NaN: not known."""
    peaks = np.full(len(work.dur_ns), np.nan)
    for code in distinct(work.precision_code).tolist():
        if code == NONE:
            continue
        of_code = work.precision_code == code
        for matrix in (True, False):
            peak = roofs.peak_flops(work.precision[code], matrix=matrix)
            peaks[of_code & (work.is_matrix == matrix)] = np.nan if peak is None else peak
    return peaks


def _in_window(
    work: _Kernels, charged: Float64, arithmetic: Bool, window: tuple[int, int]
) -> tuple[Int64, int]:
    """Nanoseconds of each part in the window, whole ones that sum to its compute; and the time of
    kernels that arithmetic limits."""
    low, high = window
    # The kernels that run in the window.
    running = _running(work, low, high)
    chosen = np.arange(running.start, running.stop)
    inside = chosen[(work.end_ns[chosen] > low) & (work.dur_ns[chosen] > 0)]
    if not len(inside):
        return np.zeros(len(COMPUTE_PARTS), np.int64), 0
    start = np.maximum(work.start_ns[inside], low)
    end = np.minimum(work.end_ns[inside], high)
    scale = (end - start) / work.dur_ns[inside]
    reach = np.maximum.accumulate(end)
    begins = np.flatnonzero(np.concatenate([[True], start[1:] >= reach[:-1]]))
    covered = reach[np.append(begins[1:] - 1, len(reach) - 1)] - start[begins]
    pooled = np.add.reduceat(charged[inside] * scale[:, None], begins, axis=0)
    kept = np.minimum(np.cumsum(pooled, axis=1), covered[:, None]).sum(axis=0)
    total = int(covered.sum())
    # Rounded where the parts meet, so that they still sum to the whole.
    edges = np.minimum(np.rint(kept / kept[-1] * total).astype(np.int64), total)
    # A double does not hold the nanoseconds of a damaged file's years.
    edges[-1] = total
    limited = (end - start)[arithmetic[inside]].sum()
    return np.diff(edges, prepend=0), min(int(limited), total)


def _running(work: _Kernels, low: int, high: int) -> slice:
    """Slice from the first kernel that ends after `low` to the last that begins before `high`."""
    begin = int(np.searchsorted(work.reach_ns, low, side="right"))
    return slice(begin, max(begin, int(np.searchsorted(work.start_ns, high))))


def _filled(context: RankContext, work: _Kernels, roofs: DevicePeaks) -> Float64:
    """Share of the device's SMs and of their tiles that has work while a kernel runs: blocks over
    SMs in whole waves, and outputs over the tiles that cover them. NaN: not known. What waits for
    memory needs no whole waves, only a block on each SM."""
    trace, num_sms = context.trace, roofs.spec.num_sms
    # Whether other vendors' recorders count blocks or threads differs.
    if num_sms is None or roofs.spec.vendor != "nvidia" or not len(work.index):
        return np.full(len(work.index), np.nan)
    detail, name = trace.detail[work.index], trace.name[work.index]
    of_op = np.where(work.op == NONE, NONE, trace.detail[np.maximum(work.op, 0)])
    op_name = np.where(work.op == NONE, NONE, trace.name[np.maximum(work.op, 0)])
    is_product = work.is_matrix & context.kernels.of_category("gemm")[work.row]
    columns = np.stack([detail, name, of_op, op_name, work.is_matrix, is_product])
    which = np.zeros(len(work.index), np.int64)
    num = 1
    for column in columns:
        num_codes = int(column.max()) + 2
        if num * num_codes >= 2**63:
            codes, which = np.unique(which, return_inverse=True)
            num = len(codes)
        which = which * num_codes + column + 1
        num *= num_codes
    _, first, which = np.unique(which, return_index=True, return_inverse=True)
    shares = [_share_filled(trace, kind, num_sms) for kind in columns[:, first].T.tolist()]
    return np.array(shares, np.float64)[which]


def _share_filled(trace: Trace, kind: list[int], num_sms: int) -> float:
    detail, name, of_op, op_name, is_matrix, is_product = kind
    launch = trace.details[detail] if detail != NONE else None
    if not isinstance(launch, Launch) or not launch.grid:
        return math.nan
    blocks = math.prod(launch.grid)
    if blocks <= 0:
        return math.nan
    if not is_matrix:
        return min(1.0, blocks / num_sms)
    waves = blocks / num_sms / math.ceil(blocks / num_sms)
    inputs = trace.details[of_op] if of_op != NONE else None
    if not is_product or not isinstance(inputs, OpInputs):
        return waves
    return waves * _tile_share(trace.names[name], trace.names[op_name], inputs)


def _tile_share(kernel: str, op: str, inputs: OpInputs) -> float:
    """Share of what the tiles cover that is outputs; 1 where the tile or the sizes are not known.
    Which side of a tile goes along the rows is not told: the better one is taken."""
    tile, parsed = TILE.search(kernel), parse_inputs(inputs)
    size = None if parsed is None else product_size(op, parsed)
    if tile is None or size is None:
        return 1.0
    sides = int(tile[1]), int(tile[2])
    if not all(side in TILE_SIZES for side in sides) or min(size) <= 0:
        return 1.0
    return max(_used(size, sides), _used(size, sides[::-1]))


def _used(size: tuple[int, int], tile: tuple[int, int]) -> float:
    return math.prod(n / side / math.ceil(n / side) for n, side in zip(size, tile, strict=True))
