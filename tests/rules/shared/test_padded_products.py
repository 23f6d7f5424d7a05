"""Misaligned products: they stay as slow on a larger batch, and the compiler may pad them."""

from __future__ import annotations

import pytest

from stepscope.rules.case import Case
from stepscope.rules.shared.batch_size import SIZES, at_size
from stepscope.rules.shared.products import is_misaligned, padded_by_compiler
from tests.rules.steps import Launch, case_of_steps, launch

ALIGN1 = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_32x2_tn_align1"
FAST = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
HALF = '["c10::BFloat16", "c10::BFloat16"]'


def head(vocabulary: int, us: float, kernel: str) -> Launch:
    """2048 tokens of 768 numbers by a vocabulary: 0.2 ms at the usual rate."""
    return launch(
        "aten::mm",
        kernel,
        us,
        f"[[2048, 768], [768, {vocabulary}]]",
        HALF,
        strides="[[768, 1], [1, 768]]",
    )


def times_as_long(case: Case) -> float:
    now = case.graph.task_ns
    return float(at_size(case, case.graph, 4, SIZES.roof_share)[0] / now[0])


def test_a_misaligned_product_takes_as_much_longer_as_the_batch_is_larger() -> None:
    case = case_of_steps(head(50257, 1700.0, ALIGN1))
    assert is_misaligned(case).all()
    assert times_as_long(case) == 4.0


def test_an_aligned_product_gets_another_kernel() -> None:
    case = case_of_steps(head(50304, 1700.0, FAST))
    assert not is_misaligned(case).any()
    assert times_as_long(case) < 1.0 + 1e-9


def test_the_compiler_pads_with_copies() -> None:
    """0.2 ms of product, 0.04 for the weight's copy and 0.1 for the logits'."""
    case = case_of_steps(head(50257, 1700.0, ALIGN1))
    padded = padded_by_compiler(case)
    assert padded is not None
    assert padded(case.graph).task_ns[0] == pytest.approx(345_000, rel=0.05)


def test_a_weights_gradient_lies_over_rows_that_are_padded_already() -> None:
    """Recorded with 30522 rows and 4096 tokens: 0.78 ms, 0.41 compiled."""
    gradient = launch(
        "aten::mm",
        ALIGN1,
        778.0,
        "[[30522, 4096], [4096, 768]]",
        HALF,
        strides="[[1, 30522], [768, 1]]",
    )
    case = case_of_steps(gradient)
    padded = padded_by_compiler(case)
    assert padded is not None
    assert padded(case.graph).task_ns[0] == pytest.approx(413_000, rel=0.05)


@pytest.mark.parametrize(
    "launched",
    [
        pytest.param(head(50304, 1700.0, FAST), id="aligned"),
        pytest.param(head(50257, 300.0, ALIGN1), id="no slower than padded"),
    ],
)
def test_the_compiler_leaves_what_padding_does_not_help(launched: Launch) -> None:
    assert padded_by_compiler(case_of_steps(launched)) is None
