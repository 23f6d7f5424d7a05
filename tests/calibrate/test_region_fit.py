"""Lines fitted to times of known constants come back with those constants, and break where they
were made to break."""

from __future__ import annotations

import random

import pytest

from stepscope.calibrate.region_fit import fit_collectives, fit_regions
from stepscope.core.calibrated import CollectiveFit, CollectivePoint, Timing

SIZES = [1024 << at for at in range(21)]
NUM_RANKS = 8


def point(
    size: int, seconds: float, kind: str = "all_reduce", num_ranks: int = NUM_RANKS
) -> CollectivePoint:
    time = Timing(seconds=seconds, low_s=seconds, high_s=seconds, repeats=5)
    return CollectivePoint(
        kind=kind, backend="nccl", tier="node", group_size=num_ranks, size_bytes=size, time=time
    )


def fitted(
    times: list[float], noise: float = 0.0, seed: int = 7, kind: str = "all_reduce"
) -> CollectiveFit:
    draw = random.Random(seed)
    points = [
        point(size, time * (1 + draw.uniform(-noise, noise)), kind)
        for size, time in zip(SIZES, times, strict=True)
    ]
    draw.shuffle(points)
    fit = fit_regions(points)
    assert fit is not None
    return fit


def test_one_line_without_noise_comes_back_exactly() -> None:
    # A ring of eight: 14 steps of 5 us, and 14/8 of the bytes at 200 GB/s.
    fit = fitted([14 * 5e-6 + size * 14 / 8 / 200e9 for size in SIZES])
    assert len(fit.regions) == 1
    assert fit.regions[0].alpha_s == pytest.approx(5e-6, rel=1e-6)
    assert fit.regions[0].beta_bytes_per_s == pytest.approx(200e9, rel=1e-6)
    assert fit.r2 == pytest.approx(1.0, abs=1e-9)
    assert fit.worst_misfit == pytest.approx(1.0, abs=1e-6)
    assert (fit.num_points, fit.regions[0].up_to_bytes) == (21, None)


@pytest.mark.parametrize("seed", range(5))
def test_one_noisy_line_stays_one(seed: int) -> None:
    fit = fitted(
        [7 * 3e-6 + size * 7 / 8 / 50e9 for size in SIZES], noise=0.03, seed=seed, kind="all_gather"
    )
    assert len(fit.regions) == 1
    assert fit.regions[0].alpha_s == pytest.approx(3e-6, rel=0.03)
    assert fit.regions[0].beta_bytes_per_s == pytest.approx(50e9, rel=0.03)
    assert 1.0 < fit.worst_misfit < 1.08


@pytest.mark.parametrize("seed", range(5))
def test_two_protocols_break_where_they_change(seed: int) -> None:
    # Up to 256 KB a quick start and a slow link; beyond it the other way around.
    change = 256 * 1024
    times = [20e-6 + size / 10e9 if size <= change else 90e-6 + size / 150e9 for size in SIZES]
    fit = fitted(times, noise=0.02, seed=seed, kind="send_recv")
    assert len(fit.regions) == 2
    end = fit.regions[0].up_to_bytes
    assert end is not None
    assert change < end < 2 * change
    small, large = fit.regions
    assert small.alpha_s == pytest.approx(20e-6, rel=0.05)
    assert small.beta_bytes_per_s == pytest.approx(10e9, rel=0.1)
    assert large.alpha_s == pytest.approx(90e-6, rel=0.1)
    assert large.beta_bytes_per_s == pytest.approx(150e9, rel=0.05)
    assert small.num_points + large.num_points == fit.num_points == 21


def test_three_regions_are_the_most() -> None:
    times = [
        (size * 1e-9) * (1.0, 8.0, 64.0, 512.0, 4096.0)[min(at // 5, 4)] + 1e-5
        for at, size in enumerate(SIZES)
    ]
    assert len(fitted(times).regions) == 3


def test_small_messages_count_as_much_as_large_ones() -> None:
    # Least squares on plain seconds would give the first points any alpha at all: they are 1e-5 of
    # the sum.
    fit = fitted([10e-6 + size / 20e9 for size in SIZES], noise=0.05, seed=3, kind="broadcast")
    assert fit.seconds(1024) == pytest.approx(10e-6 + 1024 / 20e9, rel=0.05)


def test_a_time_that_does_not_grow_has_no_beta() -> None:
    fit = fitted([30e-6 * (1.0 - 0.001 * at) for at in range(21)], kind="broadcast")
    assert fit.regions[0].beta_bytes_per_s is None
    assert fit.regions[0].name == "latency"
    assert fit.seconds(1e9) == pytest.approx(30e-6, rel=0.02)


def test_a_link_without_latency_has_alpha_zero_not_less() -> None:
    fit = fitted([size / 10e9 * (1 + 0.01 * at) for at, size in enumerate(SIZES)], kind="broadcast")
    assert all(region.alpha_s >= 0 for region in fit.regions)
    assert fit.regions[-1].name == "bandwidth"


def test_the_worst_point_is_named() -> None:
    times = [10e-6 + size / 20e9 for size in SIZES]
    times[12] *= 3
    fit = fitted(times, kind="broadcast")
    assert fit.worst_bytes == SIZES[12]
    assert fit.worst_misfit > 1.5
    assert fit.mean_misfit is not None
    assert 1 < fit.mean_misfit < fit.worst_misfit


def test_too_little_to_fit_is_no_fit() -> None:
    assert fit_regions([point(1024, 1e-5), point(2048, 1e-5)]) is None
    assert fit_regions([point(1024, 1e-5)] * 5) is None
    assert fit_regions([point(size, 1e-5, num_ranks=1) for size in SIZES]) is None


def test_groups_are_fitted_apart() -> None:
    points = [
        point(size, 1e-5 + size / 1e9, kind)
        for kind in ("all_reduce", "broadcast")
        for size in SIZES
    ]
    points += [point(size, 2e-5 + size / 1e9, num_ranks=2) for size in SIZES]
    fits = fit_collectives(points)
    assert [(fit.kind, fit.group_size) for fit in fits] == [
        ("all_reduce", 8),
        ("broadcast", 8),
        ("all_reduce", 2),
    ]


def test_a_fit_carried_to_another_width_keeps_the_link() -> None:
    fit = fitted([14 * 5e-6 + size * 14 / 8 / 200e9 for size in SIZES]).resized(64)
    assert fit.seconds(1 << 30) == pytest.approx(
        126 * 5e-6 + (1 << 30) * 126 / 64 / 200e9, rel=1e-6
    )
