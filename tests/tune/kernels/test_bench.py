"""Kernels checked on this machine's CPU: what is right passes, and each way of being wrong is
found."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.errors import UsageError
from stepscope.tune.kernels.bench import KernelBench
from stepscope.tune.kernels.call import direction_like
from stepscope.tune.kernels.checking import CheckResult
from stepscope.tune.kernels.errors import compare, judge, rounding, times
from stepscope.tune.shapes.kernel_tuning import Error
from tests.installed import need
from tests.kernels.running import bench_of, case

need("torch")

import torch


def checked(
    bench: KernelBench,
    settings: dict[str, bool | int | float | str],
    *shapes: tuple[int, ...],
    dtype: str = "float32",
) -> CheckResult:
    where = case(*shapes, dtype=dtype)
    referred = bench.refer(where)
    assert referred.problem is None
    assert referred.error is not None
    return bench.check(settings, where, times(referred.error, 4))


def test_errors_are_what_numpy_computes() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(50, 40))
    given = truth.astype(np.float32) * np.float32(1 + 1e-5)
    check = compare(
        torch,
        "output",
        torch.from_numpy(given),
        torch.from_numpy(truth.astype(np.float32)),
        torch.from_numpy(truth),
    )
    off, scale = np.abs(given.astype(np.float64) - truth), np.sqrt((truth**2).mean())
    assert check.error is not None
    assert check.error.worst == pytest.approx((off / (np.abs(truth) + scale)).max(), rel=1e-9)
    assert check.error.rms == pytest.approx(np.sqrt((off**2).mean()) / scale, rel=1e-9)


def test_a_small_fault_everywhere_is_seen_by_the_rms_alone() -> None:
    allowed = times(rounding(torch, "bfloat16"), 4)
    error, limit, measure = judge(compare_scaled(1.012), allowed)
    assert measure == "rms"
    assert error is not None
    assert limit is not None
    assert error > limit
    error, limit, _ = judge(compare_scaled(1.0), allowed)
    assert error is not None
    assert limit is not None
    assert error <= limit


def compare_scaled(factor: float):  # type: ignore[no-untyped-def]
    truth = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return compare(torch, "output", (truth * factor).bfloat16(), truth.bfloat16(), truth)


def test_infinities_and_nans_must_stand_where_the_reference_has_them() -> None:
    same = torch.tensor([1.0, float("inf"), float("nan")])
    assert compare(torch, "o", same.clone(), same, same.double()).problem is None
    for bad in (
        [1.0, 3.0, float("nan")],
        [float("nan"), float("inf"), float("nan")],
        [1.0, -float("inf"), float("nan")],
    ):
        assert compare(torch, "o", torch.tensor(bad), same, same.double()).error is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_right_kernel_passes_in_every_precision(dtype: str) -> None:
    bench = bench_of("blocked:softmax", reference="blocked:plain")
    for shape in ((1, 1), (13, 7), (64, 1000)):
        check = checked(bench, {"BLOCK": 16}, shape, dtype=dtype)
        assert check.is_right, check
        assert check.has_gradients
        assert check.num_checks == 2


def test_a_mask_that_is_wrong_fails_only_where_the_block_does_not_divide() -> None:
    bench = bench_of("blocked:softmax", reference="blocked:plain")
    settings: dict[str, bool | int | float | str] = {"BLOCK": 16, "careless": True}
    assert checked(bench, settings, (8, 64)).is_right
    wrong = checked(bench, settings, (8, 65))
    assert not wrong.is_right
    assert wrong.error is not None
    assert wrong.allowed is not None
    assert wrong.error > 100 * wrong.allowed


def test_memory_that_was_never_written_is_found_even_after_the_right_answer_lay_there() -> None:
    bench = bench_of("blocked:one_block", reference="blocked:plain", gradients=False)
    for _ in range(3):
        assert checked(bench, {"BLOCK": 128}, (16, 100)).is_right
        wrong = checked(bench, {"BLOCK": 64}, (16, 100))
        assert not wrong.is_right
        assert wrong.error is None
        assert "NaN" in wrong.measure


def test_a_wrong_backward_is_found_behind_a_right_forward() -> None:
    bench = bench_of("blocked:scaled", reference="blocked:plain")
    assert checked(bench, {"factor": 1.0}, (8, 33)).is_right
    wrong = checked(bench, {"factor": 1.01}, (8, 33))
    assert not wrong.is_right
    assert wrong.output == "gradient of x"
    assert wrong.error == pytest.approx(0.01, rel=0.5)


def test_a_kernel_that_writes_to_its_input_is_wrong_where_the_reference_does_not() -> None:
    bench = bench_of("blocked:moody", reference="blocked:plain", gradients=False)
    assert checked(bench, {"mood": "good"}, (4, 9)).is_right
    wrong = checked(bench, {"mood": "writes"}, (4, 9))
    assert not wrong.is_right
    assert "written to" in wrong.measure


def test_what_a_kernel_raises_is_an_answer() -> None:
    bench = bench_of("blocked:moody", reference="blocked:plain")
    check = checked(bench, {"mood": "raises"}, (4, 9))
    assert check.why is not None
    assert "shared memory" in check.why
    sample = bench.sample({"mood": "raises"}, case((4, 9)), 1)
    assert sample.ns is None
    assert sample.why is not None
    assert (bench.sample({"mood": "good"}, case((4, 9)), 3).ns or 0) > 0


def test_bytes_and_flops_of_a_product_are_those_of_its_tensors() -> None:
    bench = bench_of(
        "blocked:matmul", reference="blocked:plain_matmul", settings=("SPLIT",), gradients=False
    )
    reference = bench.refer(case((30, 20), (20, 50)))
    assert reference.bytes_moved == 4 * (30 * 20 + 20 * 50 + 30 * 50)
    assert reference.flops == 2 * 30 * 20 * 50
    assert checked(bench, {"SPLIT": 7}, (30, 20), (20, 50)).is_right


def test_a_reference_that_cannot_take_a_shape_says_so() -> None:
    bench = bench_of("blocked:matmul", reference="blocked:plain_matmul", settings=("SPLIT",))
    problem = bench.refer(case((3, 4), (5, 6))).problem
    assert problem is not None
    assert "RuntimeError" in problem


def test_a_module_is_checked_in_ways_that_change_nothing_but_speed() -> None:
    bench = bench_of("blocked:Small")
    for settings in ({"channels_last": True}, {"backend": "eager"}, {"mode": "eager"}):
        check = checked(bench, dict(settings), (2, 3, 16, 16))
        assert check.is_right, check
        # One output, the image's gradient, two weights and two biases.
        assert check.num_checks == 6
    assert (bench.sample({"channels_last": True}, case((2, 3, 16, 16)), 1).ns or 0) > 0


def test_settings_that_nothing_takes_are_refused_with_what_there_is() -> None:
    bench = bench_of("blocked:softmax", reference="blocked:plain")
    with pytest.raises(UsageError, match=r"no setting 'BLOK'.*BLOCK.*channels_last"):
        bench.check({"BLOK": 3}, case((4, 4)), Error(worst=1, rms=1))


def test_gradients_follow_one_direction_in_every_precision() -> None:
    direction = direction_like(torch, torch.zeros(50, dtype=torch.float64), 3)
    other = direction_like(torch, torch.zeros(50, dtype=torch.bfloat16), 3)
    assert torch.equal(direction, other.double())
