"""untuned-matmul: products far above the time that well-made kernels take."""

from __future__ import annotations

import pytest

from stepscope.rules.case import Case
from stepscope.rules.compute import untuned_matmul
from stepscope.rules.proposal import Remark
from tests.rules.steps import case_of_steps, launch
from tests.wording import mentions

WIDE = "[[8192, 4096], [4096, 4096]]", '["c10::BFloat16", "c10::BFloat16"]'
HALF = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


def multiplying(us: float, kernel: str = HALF) -> Case:
    return case_of_steps(*[launch("aten::mm", kernel, us, *WIDE)] * 6)


def test_products_at_half_their_rate_are_worth_a_search() -> None:
    """275 GFLOP: 0.36 ms by a well-made kernel."""
    said = untuned_matmul.propose(multiplying(800.0))
    assert isinstance(said, Remark)
    assert mentions(said.text, "max-autotune", "4.8 ms", "stepscope tune --knob compile_mode")


@pytest.mark.parametrize(
    ("us", "kernel"), [(380.0, HALF), (800.0, "triton_tem_fused_mm_3")], ids=["fast", "searched"]
)
def test_products_near_their_rate_or_searched_for_are_left_alone(us: float, kernel: str) -> None:
    assert untuned_matmul.propose(multiplying(us, kernel)) is None
