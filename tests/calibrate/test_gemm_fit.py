"""Constants of matrix products come back from times that were made with them."""

from __future__ import annotations

import random
from math import ceil

import pytest

from stepscope.calibrate.gemm_fit import fit_gemm
from stepscope.calibrate.sweep import CUDA_FULL, CUDA_QUICK
from stepscope.core.calibrated import GemmFit, GemmPoint, Timing

PEAK = 989e12
BANDWIDTH = 4e12
NUM_SMS = 132


def made(
    shape: tuple[int, int, int],
    efficiency: float,
    half_k: float,
    tile: tuple[int, int],
    noise: float,
) -> GemmPoint:
    """Written out by hand, not through GemmFit."""
    m, n, k = shape
    tiles = ceil(m / tile[0]) * ceil(n / tile[1])
    full = m * n / (ceil(tiles / NUM_SMS) * NUM_SMS * tile[0] * tile[1])
    busy = 2 * m * n * k / (PEAK * efficiency * full * k / (k + half_k))
    seconds = (max(busy, 2 * (m * n + n * k + m * k) / BANDWIDTH) + 2e-6) * noise
    return GemmPoint(
        precision="bf16",
        m=m,
        n=n,
        k=k,
        time=Timing(seconds=seconds, low_s=seconds, high_s=seconds, repeats=3),
    )


def fitted(points: list[GemmPoint], num_sms: int | None = NUM_SMS) -> GemmFit:
    fit = fit_gemm(
        points,
        peak=PEAK,
        peak_source="datasheet",
        num_sms=num_sms,
        bandwidth=BANDWIDTH,
        floor_s=2e-6,
    )
    assert fit is not None
    return fit


@pytest.mark.parametrize(
    ("efficiency", "half_k", "tile"), [(0.78, 180.0, (128, 256)), (0.62, 450.0, (128, 128))]
)
@pytest.mark.parametrize("shapes", [CUDA_FULL.gemms, CUDA_QUICK.gemms], ids=["full", "quick"])
def test_constants_come_back(
    efficiency: float,
    half_k: float,
    tile: tuple[int, int],
    shapes: tuple[tuple[int, int, int], ...],
) -> None:
    draw = random.Random(11)
    fit = fitted(
        [made(shape, efficiency, half_k, tile, draw.uniform(0.97, 1.03)) for shape in shapes]
    )
    assert fit.efficiency == pytest.approx(efficiency, rel=0.03)
    assert fit.half_k == pytest.approx(half_k, rel=0.12)
    assert {fit.tile_m, fit.tile_n} == set(tile)
    assert 1.0 <= fit.median_misfit < 1.03
    assert fit.worst_misfit < 1.12
    assert fit.num_points == len(shapes)


def test_the_worst_shape_is_named() -> None:
    points = [made(shape, 0.7, 200.0, (128, 128), 1.0) for shape in CUDA_QUICK.gemms]
    odd = made((8192, 8192, 1024), 0.7, 200.0, (128, 128), 5.0)
    fit = fitted(
        [odd if (point.m, point.n, point.k) == (8192, 8192, 1024) else point for point in points]
    )
    assert fit.worst_shape == (8192, 8192, 1024)
    assert fit.worst_misfit == pytest.approx(5.0, rel=0.1)
    assert fit.median_misfit < 1.05


def test_a_device_without_sms_has_no_tiles() -> None:
    fit = fitted(
        [made(shape, 0.7, 200.0, (128, 128), 1.0) for shape in CUDA_QUICK.gemms], num_sms=None
    )
    assert (fit.tile_m, fit.tile_n, fit.num_sms) == (None, None, None)
    assert fit.waves(100, 100) == 1.0


def test_few_shapes_are_no_fit() -> None:
    points = [made((1024, 1024, 1024), 0.7, 200.0, (128, 128), 1.0)] * 9
    assert (
        fit_gemm(
            points, peak=PEAK, peak_source="", num_sms=NUM_SMS, bandwidth=BANDWIDTH, floor_s=0.0
        )
        is None
    )


def test_waves_count_the_last_one_and_the_edges() -> None:
    fit = fitted([made(shape, 0.7, 200.0, (128, 128), 1.0) for shape in CUDA_QUICK.gemms])
    assert fit.waves(fit.tile_m or 0, fit.tile_n or 0) == pytest.approx(1 / NUM_SMS)
    assert fit.waves((fit.tile_m or 0) * NUM_SMS, fit.tile_n or 0) == pytest.approx(1.0)
    assert fit.waves((fit.tile_m or 0) * (NUM_SMS + 1), fit.tile_n or 0) == pytest.approx(
        (NUM_SMS + 1) / (2 * NUM_SMS)
    )
