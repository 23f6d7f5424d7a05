"""Few constants that give the time of a matrix product: efficiency, half_k, tile.

See `core.calibrated.GemmFit`.

The rate falls where k is short (the loop's start and end weigh more: k / (k + half_k)) and where
the tiles of the output do not fill the last wave of SMs. Constants are searched for on a grid,
twice, the second time finely around the first's best, with the least mean |log(fitted / measured)|:
relative, and a shape for which the library has a trick of its own does not pull the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from msgspec.structs import replace

from stepscope.core.calibrated import (
    Calibrated,
    GemmFit,
    GemmPoint,
    best_flops,
    bytes_per_element,
    output_bytes,
)
from stepscope.core.hardware import DeviceSpec
from stepscope.core.trace import Float64

MIN_POINTS = 4
TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (128, 192), (128, 256), (256, 128), (256, 256))
"""What cuBLAS and CUTLASS cut outputs into."""


def fit_gemms(calibration: Calibrated, spec: DeviceSpec | None) -> tuple[GemmFit, ...]:
    """One fit per precision measured.

    Peaks are the datasheet's where the device is known, else the best measured.
    """
    bandwidth = calibration.copy_bytes_per_s()
    if bandwidth is None:
        return ()
    floor = 0.0
    if calibration.launch:
        # On a CPU the host that starts the product also does it.
        floor = (calibration.launch.device or calibration.launch.host).seconds
    fits = []
    for precision, best in best_flops(calibration.gemms).items():
        sheet = spec.peak_flops.get(precision) if spec else None
        points = [point for point in calibration.gemms if point.precision == precision]
        fit = fit_gemm(
            points,
            peak=sheet.value if sheet else best,
            peak_source="datasheet" if sheet else "best measured",
            num_sms=calibration.machine.num_sms,
            bandwidth=bandwidth,
            floor_s=floor,
        )
        fits += [fit] if fit else []
    return tuple(fits)


def fit_gemm(
    points: Sequence[GemmPoint],
    *,
    peak: float,
    peak_source: str,
    num_sms: int | None,
    bandwidth: float,
    floor_s: float,
) -> GemmFit | None:
    """The constants of one precision; None with too few shapes to fit them."""
    if len({(point.m, point.n, point.k) for point in points}) < MIN_POINTS:
        return None
    precision = points[0].precision
    # A floor above the shortest product cannot be one.
    floor_s = min(floor_s, 0.9 * min(point.time.seconds for point in points))
    shapes = np.array([(point.m, point.n, point.k) for point in points], np.float64)
    took = np.array([point.time.seconds for point in points]) - floor_s
    m, n, k = shapes.T
    moved_s = (
        bytes_per_element(precision) * (m * k + k * n) + output_bytes(precision) * m * n
    ) / bandwidth
    tiles: tuple[tuple[int, int] | None, ...] = (None,) if num_sms is None else TILES
    best: tuple[float, tuple[int, int] | None, float, float] | None = None
    for tile in tiles:
        work = shapes.prod(axis=1) * 2 / peak / _waves(m, n, tile, num_sms)
        misfit, efficiency, half_k = _search(work, k, moved_s, took)
        if best is None or misfit < best[0]:
            best = (misfit, tile, efficiency, half_k)
    assert best is not None
    _, tile, efficiency, half_k = best
    fit = GemmFit(
        precision=precision,
        peak_flops=peak,
        peak_source=peak_source,
        efficiency=efficiency,
        half_k=half_k,
        tile_m=tile[0] if tile else None,
        tile_n=tile[1] if tile else None,
        num_sms=num_sms,
        bandwidth_bytes_per_s=bandwidth,
        floor_s=floor_s,
        median_misfit=1.0,
        worst_misfit=1.0,
        worst_shape=(0, 0, 0),
        num_points=len(points),
    )
    return _judged(fit, points)


def _waves(m: Float64, n: Float64, tile: tuple[int, int] | None, num_sms: int | None) -> Float64:
    if tile is None or num_sms is None:
        return np.ones(len(m))
    covered = (
        np.ceil(np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / num_sms) * num_sms * tile[0] * tile[1]
    )
    return np.asarray(m * n / covered, np.float64)


def _search(
    work: Float64, k: Float64, moved_s: Float64, took: Float64
) -> tuple[float, float, float]:
    """Least mean |log misfit|, with its efficiency and half_k."""
    efficiencies = np.geomspace(0.02, 1.2, 60)
    halves = np.concatenate(([0.0], np.geomspace(4, 8192, 45)))
    best = (np.inf, 1.0, 0.0)
    for _ in range(2):
        slow = work * (k + halves[:, None]) / k
        time = np.maximum(slow[None] / efficiencies[:, None, None], moved_s)
        misfit = np.abs(np.log(time / took)).mean(axis=2)
        row, column = np.unravel_index(int(misfit.argmin()), misfit.shape)
        best = (float(misfit[row, column]), float(efficiencies[row]), float(halves[column]))
        efficiencies = np.geomspace(best[1] / 1.08, best[1] * 1.08, 41)
        halves = (
            np.geomspace(best[2] / 1.2, best[2] * 1.2, 41) if best[2] else np.linspace(0.0, 4.0, 41)
        )
    return best


def _judged(fit: GemmFit, points: Sequence[GemmPoint]) -> GemmFit:
    """The fit with how far it lies from what was measured."""
    ratios = [
        _ratio(fit.seconds(point.m, point.n, point.k), point.time.seconds) for point in points
    ]
    worst = max(range(len(points)), key=lambda index: ratios[index])
    return replace(
        fit,
        median_misfit=median(ratios),
        worst_misfit=ratios[worst],
        worst_shape=(points[worst].m, points[worst].n, points[worst].k),
    )


def _ratio(fitted: float, measured: float) -> float:
    return max(fitted / measured, measured / fitted)
