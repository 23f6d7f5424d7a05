"""low-occupancy: few warps and nothing busy; what keeps more away is named."""

from __future__ import annotations

import pytest

from stepscope.recordings.ncu.low_occupancy import advise
from tests.rules.kernels import beside, healthy_gemm, kernel, recorded
from tests.wording import mentions


@pytest.mark.parametrize(
    ("limiters", "words"),
    [
        (("shared memory",), ("200 KiB of shared memory",)),
        (
            ("registers", "shared memory"),
            ("168 registers", "200 KiB of shared memory"),
        ),
        (("blocks",), ("blocks",)),
    ],
)
def test_limiter_is_named(limiters: tuple[str, ...], words: tuple[str, ...]) -> None:
    few = kernel(
        occupancy=0.06,
        theoretical_occupancy=0.0625,
        limiters=limiters,
        registers=168,
        shared_bytes=200 * 1024,
    )
    (advice,) = advise(beside(few))
    assert advice.code == "low-occupancy"
    assert limiters[0].split()[0] in advice.summary.lower()
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "6% of the warps held", "6% allowed")
    cause = why.partition(";")[2]
    assert mentions(cause, *words)
    known = ("registers", "shared memory", "blocks")
    assert {name for name in known if mentions(cause, name)} == set(limiters)
    assert advice.weight == 1
    assert mentions(advice.weight_of, "kernels", "measured")


def test_small_grid_is_its_own_cause() -> None:
    small = kernel(grid=(32, 1, 1), waves=0.12, occupancy=0.5, active=0.21)
    (advice,) = advise(beside(small))
    assert "grid" in advice.summary
    (why,) = advice.evidence
    assert mentions(
        why, "k (100%)", "32 blocks", "132 multiprocessors", "0.12 waves", "21% of its time"
    )


def test_a_grid_that_nearly_fills_the_device_is_not_small() -> None:
    assert advise(beside(kernel(waves=0.97, occupancy=0.9))) == ()
    assert advise(beside(kernel(waves=0.97, occupancy=0.45, theoretical_occupancy=0.5))), (
        "one block a multiprocessor, half its warps"
    )


def test_warps_that_end_early() -> None:
    (advice,) = advise(beside(kernel(occupancy=0.3)))
    assert "end early" in advice.summary


def test_causes_are_told_apart_and_weighed() -> None:
    both = (
        kernel(
            "a",
            duration_ns=3000.0,
            occupancy=0.1,
            theoretical_occupancy=0.1,
            limiters=("registers",),
            registers=255,
        ),
        kernel("b", occupancy=0.1, waves=0.5),
    )
    first, second = advise(beside(*both))
    assert (first.weight, second.weight) == (0.75, 0.25)
    assert (first.kernels, second.kernels) == (("a",), ("b",))


@pytest.mark.parametrize(
    "fields",
    [
        {"tensor_pipe": 0.7},
        {"dram_throughput": 0.7},
        {"l2_throughput": 0.75},
        {"issue": 0.85},
        {"occupancy": None},
        {"theoretical_occupancy": None},
        {"compute_throughput": None},
        {"dram_throughput": None},
        {"limiters": (), "occupancy": 0.55, "theoretical_occupancy": 0.6},
    ],
)
def test_silent_where_it_does_not_matter_or_is_not_known(fields: dict[str, object]) -> None:
    few = {
        "occupancy": 0.1,
        "theoretical_occupancy": 0.1,
        "limiters": ("registers",),
        "registers": 255,
    }
    assert advise(beside(kernel(**few))), "the same kernel without that"
    assert advise(beside(kernel(**(few | fields)))) == ()


def test_healthy_gemm_and_nothing_at_all() -> None:
    assert advise(beside(healthy_gemm())) == ()
    assert advise(beside()) == ()


def test_recorded_step_has_two_small_grids_and_no_more() -> None:
    (advice,) = advise(recorded())
    assert advice.weight == pytest.approx((21856 + 14784) / 1_297_920)
    assert [line.split("<")[0] for line in advice.evidence] == ["", "reduce_kernel"]
    assert "GammaBetaBackward" in advice.evidence[0]
