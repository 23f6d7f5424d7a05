"""Rates that are kept up: under clocks that are ours, on a device that slows down when it gets
hot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from stepscope.calibrate.gemms import chosen
from stepscope.calibrate.timer import DeviceTimer, HostTimer
from stepscope.core.calibrated import Calibrated, GemmFit, GemmPoint, Machine, Timing

HOT_AFTER_S = 0.3
COOL, HOT = 100e-6, 125e-6


def timed(seconds: float) -> Timing:
    return Timing(seconds=seconds, low_s=seconds, high_s=seconds, repeats=5)


def product(m: int, n: int, k: int, tflops: float, precision: str = "bf16") -> GemmPoint:
    return GemmPoint(
        precision=precision, m=m, n=n, k=k, time=timed(2.0 * m * n * k / tflops / 1e12)
    )


class HotDevice:
    """A GPU whose kernels slow down after it has been busy without pause; it cools as soon as it
    has nothing to do."""

    def __init__(self) -> None:
        self.done_at = 0.0
        self.busy_since = 0.0

    class Event:
        owner: HotDevice

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at = -1.0

        def record(self) -> None:
            self.at = self.owner.done_at

        def synchronize(self) -> None:
            if self.at >= self.owner.done_at:
                self.owner.busy_since = self.owner.done_at

        def elapsed_time(self, other: HotDevice.Event) -> float:
            return (other.at - self.at) * 1e3

    def synchronize(self) -> None:
        self.busy_since = self.done_at

    def kernel(self) -> None:
        self.done_at += HOT if self.done_at - self.busy_since > HOT_AFTER_S else COOL


@pytest.fixture
def hot(monkeypatch: pytest.MonkeyPatch) -> HotDevice:
    device = HotDevice()
    monkeypatch.setattr(HotDevice.Event, "owner", device, raising=False)
    return device


def test_a_sustained_rate_is_that_of_a_hot_device(hot: HotDevice) -> None:
    timer = DeviceTimer(SimpleNamespace(cuda=hot), lambda: hot.done_at)
    assert timer.time(hot.kernel, 0.05).seconds == pytest.approx(COOL), "a burst"
    told = timer.sustained(hot.kernel, 0.5, 1.5)
    assert told.low_s == pytest.approx(HOT)
    assert told.high_s == pytest.approx(HOT)
    assert told.repeats * 100 * HOT == pytest.approx(1.5, rel=0.02), (
        "samples of 100 calls for a second and a half"
    )


def test_without_warm_up_the_cool_device_would_be_seen(hot: HotDevice) -> None:
    told = DeviceTimer(SimpleNamespace(cuda=hot), lambda: hot.done_at).sustained(
        hot.kernel, 0.0, 1.5
    )
    assert told.low_s == pytest.approx(COOL)


def test_a_call_of_seconds_is_still_timed_three_times(hot: HotDevice) -> None:
    def long() -> None:
        hot.done_at += 4.0

    told = DeviceTimer(SimpleNamespace(cuda=hot), lambda: hot.done_at).sustained(long, 0.5, 1.5)
    assert (told.seconds, told.repeats) == (4.0, 3)


def test_the_host_timer_sustains_by_its_clock() -> None:
    clock = [0.0]

    def call() -> None:
        clock[0] += 1e-3 if clock[0] < 0.1 else 2e-3

    told = HostTimer(lambda: clock[0]).sustained(call, 0.2, 0.39)
    assert told.seconds == pytest.approx(2e-3)
    assert told.low_s == pytest.approx(2e-3)
    assert told.repeats == pytest.approx(10, abs=1), (
        "samples of twenty calls, which took 20 ms when they were counted"
    )
    assert HostTimer(lambda: clock[0]).sustained(call, 0.0, 0.0).repeats == 3


def test_the_best_large_and_the_best_middling_product_are_chosen() -> None:
    tiny, middling, better = (
        product(256, 256, 256, 900.0),
        product(2048, 2048, 2048, 700.0),
        product(3072, 3072, 3072, 720.0),
    )
    large, larger = product(8192, 8192, 8192, 790.0), product(16384, 16384, 8192, 760.0)
    assert chosen([tiny, middling, better, large, larger], 1.5) == [large, better]
    assert chosen([tiny], 1.5) == [tiny]
    slow = product(16384, 16384, 16384, 10.0)
    assert chosen([better, slow], 1.5) == [better], "one call of it lasts 0.9 s"
    assert chosen([slow], 1.5) == [slow], "the only one there is"


FIT = GemmFit(
    precision="bf16",
    peak_flops=989e12,
    peak_source="datasheet",
    efficiency=0.8,
    half_k=0.0,
    tile_m=None,
    tile_n=None,
    num_sms=None,
    bandwidth_bytes_per_s=4e12,
    floor_s=0.0,
    median_misfit=1.1,
    worst_misfit=1.5,
    worst_shape=(64, 64, 64),
    num_points=4,
)


def machine(*sustained: GemmPoint) -> Calibrated:
    bursts = (
        product(8192, 8192, 8192, 800.0),
        product(2048, 2048, 2048, 700.0),
        product(512, 512, 512, 60.0, "fp32"),
    )
    return Calibrated(
        schema="stepscope.hardware/1",
        made_by="test",
        date="",
        how="",
        machine=Machine(kind="cuda", device="NVIDIA H200"),
        gemms=bursts,
        gemm_fits=(FIT,),
        sustained=sustained,
    )


def test_fits_and_roofs_are_at_the_sustained_rate() -> None:
    found = machine(product(8192, 8192, 8192, 640.0), product(2048, 2048, 2048, 700.0))
    # Four fifths for the large one, all of it for the middling one: their geometric mean.
    share = (0.8 * 1.0) ** 0.5
    fit = found.gemm("bf16")
    assert fit is not None
    assert fit.seconds(8192, 8192, 8192) == pytest.approx(2 * 8192**3 / (989e12 * 0.8 * share))
    assert found.burst_gemm("bf16") == FIT
    assert found.best_flops("bf16") == pytest.approx(700e12), "the best of those kept up"
    assert found.best_flops("fp32") == pytest.approx(60e12), "a burst, as nothing else was measured"
    assert found.best_flops("fp8") is None


def test_an_older_file_is_as_before() -> None:
    found = machine()
    assert found.gemm("bf16") == FIT
    assert found.best_flops("bf16") == pytest.approx(800e12)
    odd = replace(found, sustained=(product(64, 64, 64, 1.0),))
    assert odd.gemm("bf16") == FIT, "of a shape that has no burst nothing can be said"
