"""Arithmetic and traffic of the run against the device's peaks: MFU, HFU, tensor-core use."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.grouping import distinct
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.analyses.kernels.tables import Float64, KernelWork
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.projection import Charges
from stepscope.core.facts import Roofline
from stepscope.core.kernel_names import MATRIX_CATEGORIES
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace

MIN_MATRIX_COVERAGE = 0.9
"""MFU is reported only when the work of this share of matrix-kernel time is known:
a part of the FLOPs would pass for all of them."""


def roofline(
    trace: Trace,
    charges: Charges,
    work: KernelWork,
    roofs: DevicePeaks | None,
    num_windows: int,
    step_ns: float | None,
) -> Roofline:
    """FLOPs per step and their share of the peak. FLOPs are the model's: recomputed work counts for
    HFU alone."""
    dur = trace.dur_ns[work.kernels]
    compute = ~work.of_category("collective")
    matrix = work.of_category(*MATRIX_CATEGORIES)
    is_modelled = ~np.isnan(work.flops) | ~np.isnan(work.bytes)
    recomputed = charges.recomputed[trace.kind[charges.work] == Kind.KERNEL]
    model = hardware = mfu = hfu = precision = None
    if (
        num_windows > 0
        and _coverage(dur, matrix, work) >= MIN_MATRIX_COVERAGE
        and bool(matrix.any())
    ):
        first = work.is_matrix & ~recomputed
        model = float(np.nansum(work.flops[first])) / num_windows
        hardware = float(np.nansum(work.hardware_flops[work.is_matrix])) / num_windows
        mfu = _utilisation(work, first, work.flops, roofs, num_windows, step_ns)
        hfu = _utilisation(work, work.is_matrix, work.hardware_flops, roofs, num_windows, step_ns)
        precision = _main_precision(work)
    bandwidth_ns, arithmetic_ns = _bound_times(work, roofs)
    return Roofline(
        device=None if roofs is None else roofs.spec.name,
        model_flops=model,
        hardware_flops=hardware,
        mfu=mfu,
        hfu=hfu,
        peak_precision=precision,
        modelled_share=_share(work.group_ns, is_modelled & compute, int(dur[compute].sum())),
        bandwidth_bound_ns=bandwidth_ns,
        arithmetic_bound_ns=arithmetic_ns,
        tensor_core_share=_tensor_core_share(dur, matrix, work),
        arithmetic_share=_share(dur, compute_bound(work, roofs) & compute, int(dur[compute].sum())),
    )


def compute_bound(work: KernelWork, roofs: DevicePeaks | None) -> Bool:
    """Mask of the kernels that arithmetic limits, not memory: by their roofline; where that is not
    known, the matrix kernels."""
    arithmetic = work.of_category(*MATRIX_CATEGORIES)
    if roofs is None:
        return arithmetic
    traffic = work.bytes / roofs.spec.bandwidth_bytes_per_s.value * 1e9
    has_floor = ~np.isnan(work.floor_ns) & ~np.isnan(traffic)
    bound: Bool = np.where(has_floor, traffic < work.floor_ns * (1 - 1e-9), arithmetic)
    return bound


def _coverage(dur: Int64, matrix: Bool, work: KernelWork) -> float:
    """Share of matrix-kernel time whose operator's FLOPs are known."""
    total = int(dur[matrix].sum())
    has_flops = work.is_matrix & ~np.isnan(work.flops)
    return float(work.group_ns[has_flops].sum()) / total if total else 0.0


def _utilisation(
    work: KernelWork,
    chosen: Bool,
    flops: Float64,
    roofs: DevicePeaks | None,
    num_windows: int,
    step_ns: float | None,
) -> float | None:
    """Time the chosen FLOPs need at the dense peaks of their precisions, over the step time."""
    if roofs is None or not step_ns:
        return None
    needed = 0.0
    for code in distinct(work.precision[chosen]).tolist():
        precision = None if code == NONE else work.precisions[code]
        time = roofs.arithmetic_ns(
            float(np.nansum(flops[chosen & (work.precision == code)])), precision, matrix=True
        )
        if np.isnan(time):
            return None
        needed += time
    used = needed / num_windows / step_ns
    # More than all of the peak: the step time that was given is not this run's.
    return used if used <= 1 else None


def slower_than_peak(context: RankContext) -> float | None:
    """How much longer the model's FLOPs need at the rates that
    the machine was measured at than at the datasheet's peaks.

    None where it was not measured, or not in a precision that the run uses.
    """
    roofs, work = context.roofs, context.kernels
    if roofs is None or roofs.measured is None:
        return None
    recomputed = np.isin(work.kernels, context.charges.work[context.charges.recomputed])
    start, (low, high) = context.trace.start_ns[work.kernels], context.window
    chosen = work.is_matrix & ~recomputed & (start >= low) & (start < high)
    at_peak = reached = 0.0
    for code in distinct(work.precision[chosen]).tolist():
        precision = None if code == NONE else work.precisions[code]
        flops = float(np.nansum(work.flops[chosen & (work.precision == code)]))
        best = None if precision is None else roofs.measured.best_flops(precision)
        if best is None:
            return None
        at_peak += roofs.arithmetic_ns(flops, precision, matrix=True)
        reached += flops / best * 1e9
    return reached / at_peak if at_peak > 0 else None


def _main_precision(work: KernelWork) -> str | None:
    counted = work.is_matrix & (work.precision != NONE) & ~np.isnan(work.flops)
    if not counted.any():
        return None
    return work.precisions[
        int(np.bincount(work.precision[counted], weights=work.flops[counted]).argmax())
    ]


def _bound_times(work: KernelWork, roofs: DevicePeaks | None) -> tuple[int | None, int | None]:
    """Kernel time bound by memory and bound by arithmetic."""
    if roofs is None:
        return None, None
    traffic = work.bytes / roofs.spec.bandwidth_bytes_per_s.value * 1e9
    has_floor = ~np.isnan(work.floor_ns)
    by_traffic = has_floor & ~np.isnan(traffic) & (traffic >= work.floor_ns * (1 - 1e-9))
    return int(work.group_ns[by_traffic].sum()), int(work.group_ns[has_floor & ~by_traffic].sum())


def _tensor_core_share(dur: Int64, matrix: Bool, work: KernelWork) -> float | None:
    is_classified = matrix & (work.tensor_core >= 0)
    total = int(dur[is_classified].sum())
    return float(dur[is_classified & (work.tensor_core == 1)].sum()) / total if total else None


def _share(values: Int64, mask: Bool, total: int) -> float | None:
    return min(1.0, float(values[mask].sum()) / total) if total else None
