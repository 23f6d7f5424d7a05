"""Autocast's casts, counted from the operators of an fp32 step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.rules.case import Case
from stepscope.rules.shared.autocast import Autocast, under_autocast
from tests.rules.steps import Launch, case_of_steps, launch, recomputed

SGEMM, STREAM = "cutlass_80_simt_sgemm_128x256_8x4_nt_align1", "vectorized_elementwise_kernel"
ROWS, WIDTH = 8192, 1024


def layer(rows: int = ROWS, into: int = WIDTH, out: int = WIDTH) -> Launch:
    dims = f"[[{out}], [{rows}, {into}], [{into}, {out}]]"
    return launch("aten::addmm", SGEMM, 500.0, dims, '["float", "float", "float"]')


def over(name: str, kernel: str = STREAM, *, tensors: int = 1) -> Launch:
    dims = ", ".join([f"[{ROWS}, {WIDTH}]"] * tensors)
    return launch(name, kernel, 40.0, f"[{dims}]", str(["float"] * tensors).replace("'", '"'))


def norm() -> Launch:
    return launch(
        "aten::native_layer_norm",
        "vectorized_layer_norm_kernel",
        40.0,
        f"[[{ROWS}, {WIDTH}], [], [{WIDTH}], [{WIDTH}], []]",
        '["float", "ScalarList", "float", "float", "Scalar"]',
    )


def autocast(*launches: Launch) -> tuple[Case, Autocast]:
    case = case_of_steps(*launches)
    assert case.context.roofs is not None
    return case, under_autocast(case, case.context.roofs)


def launches_of(*launches: Launch) -> list[float]:
    """Added to each of these, in the first step."""
    _, cast = autocast(*launches)
    each: list[float] = cast.launches[: len(launches)].tolist()
    return each


WEIGHT_AND_BIAS, ACTIVATION = 4.0, 2.0


def test_a_layer_after_a_norm_has_its_input_cast_and_one_after_a_gelu_has_not() -> None:
    assert launches_of(norm(), layer(), over("aten::gelu"), layer()) == [
        0.0,
        WEIGHT_AND_BIAS + ACTIVATION,
        0.0,
        WEIGHT_AND_BIAS,
    ]


def test_layers_beside_one_another_each_have_the_norms_output_cast() -> None:
    added = launches_of(norm(), layer(), over("aten::mul"), layer(), layer())
    assert added == [0.0, 6.0, 0.0, 6.0, 6.0]


def test_a_norm_after_a_layer_has_its_input_cast_unless_a_residual_was_added() -> None:
    assert launches_of(layer(), over("aten::gelu"), norm())[-1] == ACTIVATION
    added = launches_of(norm(), layer(), over("aten::add", tensors=2), norm())
    assert added[-1] == 0.0


def test_a_pass_that_recomputes_casts_again_and_the_first_has_no_gradient() -> None:
    loss = replace(over("aten::mul"), node="MulBackward0")
    both_passes = recomputed(norm(), layer(), over("aten::gelu"))
    _, cast = autocast(*both_passes[:3], loss, *both_passes[3:])
    both = WEIGHT_AND_BIAS + ACTIVATION
    assert cast.launches[:7].tolist() == [0.0, both / 2, 0.0, 0.0, 0.0, both, 0.0]
    assert 0 < cast.cast_ns[1] < cast.cast_ns[5]
    assert cast.narrow[[2, 6]].all()


def test_shared_weights_are_cast_once() -> None:
    gradient = launch("torch::autograd::AccumulateGrad", STREAM, 2.0)
    shared = [norm(), layer(), over("aten::gelu"), layer(), over("aten::gelu"), layer()]
    _, apart = autocast(*shared, *[gradient] * 6)
    _, once = autocast(*shared, *[gradient] * 2)
    assert apart.launches.sum() / 4 == pytest.approx(ACTIVATION + 3 * WEIGHT_AND_BIAS)
    assert once.launches.sum() / 4 == pytest.approx(ACTIVATION + WEIGHT_AND_BIAS)


def test_what_lies_between_layers_is_narrow_and_what_a_norm_gives_is_not() -> None:
    _, cast = autocast(norm(), over("aten::mul"), layer(), over("aten::gelu"))
    assert cast.narrow[:4].tolist() == [False, False, False, True]


def test_a_large_activation_costs_a_pass_over_it_each_way() -> None:
    _, cast = autocast(norm(), layer(), over("aten::gelu"), layer())
    first, second = cast.cast_ns[[1, 3]] / 1e3
    megabytes = ROWS * WIDTH * 6 / 1e6
    # At an H200's 4.8 TB/s; the kernels that widen reach less than half of it.
    passes_us = megabytes / 4.8 * (1 / 0.91 + 1 / 0.43)
    assert first - second == pytest.approx(passes_us + 1.5 + 2.6, rel=0.01)
