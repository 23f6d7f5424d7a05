"""Measuring for real on the CPU, with shapes so small that it takes no time; and the timer under a
clock that is ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs
from msgspec.structs import replace

from stepscope.calibrate.device import Device, find_device
from stepscope.calibrate.hardware_file import save
from stepscope.calibrate.measure import measure_device, num_points, unsteady_note
from stepscope.calibrate.report import calibration_document, rate_text, size_text, time_text
from stepscope.calibrate.sweep import CPU_FULL, CPU_QUICK, CUDA_FULL, CUDA_QUICK, Sweep
from stepscope.calibrate.timer import DeviceTimer, HostTimer, how_many, timing
from stepscope.core.calibrated import Calibrated, Timing
from stepscope.readers.hardware_file import read_hardware
from stepscope.report.document.terminal import to_text
from tests.followed_loops import followed_loops
from tests.wording import mentions

TINY = Sweep(
    gemms=((16, 16, 16), (16, 32, 16), (32, 32, 32), (64, 16, 32), (48, 48, 8)),
    attention=((1, 2, 16, 8),),
    copies=(1024, 65536),
    host_copies=(),
    collectives=(1024,),
    point_s=0.0,
    longest_call_s=10.0,
    collective_s=1.0,
    warm_s=0.5,
    sustained_s=1.5,
)


class FixedTimer:
    """Every call takes two milliseconds; the calls are made, so that what cannot be done here is
    found out."""

    def time(self, call: Callable[[], object], budget_s: float) -> Timing:
        call()
        return Timing(seconds=2e-3, low_s=1e-3, high_s=3e-3, repeats=7)

    def sustained(self, call: Callable[[], object], warm_s: float, for_s: float) -> Timing:
        """A quarter slower than a burst."""
        assert (warm_s, for_s) == (0.5, 1.5)
        call()
        return Timing(seconds=2.5e-3, low_s=2.4e-3, high_s=2.6e-3, repeats=7)

    def sample(self, call: Callable[[], object], inner: int, queue_s: float = 0.0) -> float:
        raise AssertionError("nothing is sampled outside collectives")


class NoProducts(FixedTimer):
    def time(self, call: Callable[[], object], budget_s: float) -> Timing:
        if "_product" in getattr(call, "__qualname__", ""):
            raise NotImplementedError("no products here")
        return super().time(call, budget_s)


def cpu() -> Device:
    return replace(find_device("cpu"), timer=FixedTimer())


@pytest.fixture(scope="module")
def found() -> Calibrated:
    return measure_device(cpu(), TINY, "test", lambda _: None)


def test_every_part_is_measured(found: Calibrated) -> None:
    assert {point.precision for point in found.gemms} == {"fp32", "bf16"}
    assert {(point.m, point.n, point.k) for point in found.gemms} == set(TINY.gemms)
    assert [point.direction for point in found.attention] == ["forward", "backward"]
    assert [point.size_bytes for point in found.copies] == [1024, 65536]
    assert found.launch is not None
    assert found.launch.device is None, "a CPU has no device side of a launch"
    assert found.host is not None
    assert found.host.python_ops_per_s > 0
    assert {fit.precision for fit in found.gemm_fits} == {"fp32", "bf16"}
    assert len(found.notes) == 1
    assert mentions(found.notes[0], "points", "spread"), "the fixed timer tells of 1 to 3 ms"


def test_every_point_is_counted_once() -> None:
    """A product that cannot be made here ends its precision, and what it would have counted."""
    sweep = replace(TINY, point_s=0.1)
    with followed_loops() as loops:
        measure_device(cpu(), sweep, "test", lambda _: None)
        measure_device(replace(cpu(), timer=NoProducts()), sweep, "test", lambda _: None)
    assert [loop.what for loop in loops] == ["measuring", "measuring"]
    # 2 copies, 5 products in 2 precisions, attention forward and backward; of each precision two
    # sustained products of 2 s, which is 20 points each.
    assert num_points("cpu", sweep) == 2 + 2 * 5 + 2 + 2 * 2 * 20
    for loop in loops:
        assert loop.total == num_points("cpu", sweep)
        assert loop.done == sorted(loop.done)
        assert loop.done[-1] == loop.total


def test_rates_are_work_over_time(found: Calibrated) -> None:
    roofs = found.roofs()
    assert roofs is not None
    assert roofs.peak_flops["fp32"] == pytest.approx(2 * 64 * 16 * 32 / 2.5e-3), (
        "as it is kept up for long"
    )
    assert roofs.bandwidth_bytes_per_s == pytest.approx(2 * 65536 / 2e-3), "read and write"
    assert found.attention[0].flops == 2 * 1 * 2 * 16 * 16 * 8
    assert found.attention[1].flops == 2 * found.attention[0].flops


def test_a_saved_file_is_read_as_it_was(found: Calibrated, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    save(found, path)
    assert read_hardware(path) == found
    assert [entry.name for entry in tmp_path.iterdir()] == ["machine.json"]
    assert json.loads(path.read_text())["schema"] == "stepscope.hardware/1"


def test_no_name_or_path_of_the_machine_is_in_the_file(found: Calibrated, tmp_path: Path) -> None:
    import socket

    path = tmp_path / "machine.json"
    save(found, path)
    text = path.read_text()
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text


def test_a_shape_that_takes_too_long_is_left_out_and_said() -> None:
    # The first shape gives 4.096 MFLOP/s under the fixed clock; 32768 FLOPs would take 8 ms.
    short = replace(TINY, gemms=((16, 16, 16), (32, 32, 32)), longest_call_s=5e-3)
    found = measure_device(cpu(), short, "test", lambda _: None)
    assert [point.m for point in found.gemms] == [16, 16]
    assert any(mentions(note, "fp32", "too long", "32 x 32 x 32") for note in found.notes)


def test_a_busy_machine_is_said() -> None:
    calm = Timing(seconds=1.0, low_s=0.95, high_s=1.05, repeats=5)
    wild = structs.replace(calm, high_s=2.0)
    assert unsteady_note([calm] * 9 + [wild]) == ()
    assert unsteady_note([]) == ()
    (note,) = unsteady_note([calm] * 7 + [wild] * 3)
    assert mentions(note, "3 of 10 points", "1.5 times")


def test_precision_is_reverted() -> None:
    import torch

    before = torch.get_float32_matmul_precision()
    measure_device(cpu(), TINY, "test", lambda _: None)
    assert torch.get_float32_matmul_precision() == before


def test_the_summary_tells_all_of_it(found: Calibrated) -> None:
    text = to_text(calibration_document(found))
    for word in (
        "fp32",
        "bf16",
        "forward, heads of 8",
        "device",
        "start of a kernel",
        "rounds of Python",
    ):
        assert word in text
    # 2 * 64 * 16 * 32 FLOPs in 2 ms and in 2.5 ms.
    assert next(line for line in text.splitlines() if "fp32" in line).split()[:5] == [
        "fp32",
        "32.8",
        "MFLOP/s",
        "26.2",
        "MFLOP/s",
    ]
    older = to_text(calibration_document(structs.replace(found, sustained=())))
    assert next(line for line in older.splitlines() if "fp32" in line).split()[:4] == [
        "fp32",
        "32.8",
        "MFLOP/s",
        "-",
    ]


def test_the_host_timer_divides_by_its_calls() -> None:
    clock = [0.0]
    calls = []

    def call() -> None:
        clock[0] += 2e-6
        calls.append(1)

    told = HostTimer(lambda: clock[0]).time(call, budget_s=0.004)
    assert told.seconds == pytest.approx(2e-6)
    assert told.repeats == 20, "100 calls of 2 us are a sample; 20 of them are 4 ms"
    assert len(calls) == 2 + 20 * 100


def test_how_many_stays_within_bounds() -> None:
    assert how_many(10.0, 0.1) == (1, 3)
    assert how_many(1e-9, 100.0) == (100, 30)


def test_timing_is_the_median_with_its_spread() -> None:
    told = timing([5.0, 1.0, 3.0, 2.0, 100.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    assert (told.seconds, told.low_s, told.high_s, told.repeats) == (6.0, 2.0, 10.0, 11)
    assert timing([1.0, 2.0]).seconds == 1.5


@pytest.mark.parametrize(
    "sweep",
    [CUDA_FULL, CUDA_QUICK, CPU_FULL, CPU_QUICK],
    ids=["cuda", "cuda-quick", "cpu", "cpu-quick"],
)
def test_sweeps_keep_the_shape_dependence(sweep: Sweep) -> None:
    assert len(set(sweep.gemms)) == len(sweep.gemms)
    work = [m * n * k for m, n, k in sweep.gemms]
    assert work == sorted(work), (
        "from the smallest, so that what is too long is known before it is tried"
    )
    assert sum(m == n == k for m, n, k in sweep.gemms) >= 5
    assert any(k * 8 <= min(m, n) for m, n, k in sweep.gemms), "small k"
    assert any(m * 8 <= n for m, n, _ in sweep.gemms), "few rows"
    assert any(n * 8 <= m for m, n, _ in sweep.gemms), "few columns"
    assert sweep.collectives[0] == 1024


def test_fp8_shapes_are_ones_the_hardware_takes() -> None:
    assert all(n % 16 == 0 and k % 16 == 0 for _, n, k in (*CUDA_FULL.gemms, *CUDA_QUICK.gemms))


def test_units_read_well() -> None:
    assert [size_text(n) for n in (512, 1536, 1 << 20, 1 << 30)] == [
        "512 B",
        "1.5 KB",
        "1 MB",
        "1 GB",
    ]
    assert [time_text(n) for n in (2.0, 2e-3, 2e-6, 2e-9)] == ["2 s", "2 ms", "2 us", "2 ns"]
    assert [rate_text(n) for n in (4e12, 4e9, 4e6, 4e3)] == ["4 TB/s", "4 GB/s", "4 MB/s", "4 KB/s"]


class FakeCuda:
    """A GPU with a clock of its own: kernels run one after another, from when they are queued."""

    def __init__(self, kernel_s: float) -> None:
        self.kernel_s = kernel_s
        self.free_at = 0.0
        self.num_holds = 0

    class Event:
        owner: FakeCuda

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at = -1.0

        def record(self) -> None:
            self.at = self.owner.free_at

        def synchronize(self) -> None:
            return None

        def elapsed_time(self, other: FakeCuda.Event) -> float:
            return (other.at - self.at) * 1e3

    def synchronize(self) -> None:
        return None

    def _sleep(self, cycles: int) -> None:
        assert 0 < cycles <= 0.05 * 2e9
        self.num_holds += 1
        self.free_at += cycles / 2e9

    def kernel(self) -> None:
        self.free_at += self.kernel_s


@pytest.mark.parametrize("kernel_s", [3e-6, 5e-3])
def test_the_device_timer_times_the_calls_and_not_the_hold(kernel_s: float) -> None:
    cuda = FakeCuda(kernel_s)
    FakeCuda.Event.owner = cuda
    told = DeviceTimer(SimpleNamespace(cuda=cuda)).time(cuda.kernel, budget_s=0.05)
    assert told.seconds == pytest.approx(kernel_s)
    assert told.high_s == pytest.approx(kernel_s)
    assert cuda.num_holds == told.repeats + 1
