"""bf16-matmul: large products gain by fp8 after their casts; small, odd and fp32 ones, logits, and
devices without fp8 do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.hardware.lookup import load_specs
from stepscope.rules.compute import bf16_matmul
from stepscope.rules.proposal import Proposal
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch

FAST = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
SIMT = "cutlass_80_simt_sgemm_128x256_8x4"
HALF = '["c10::BFloat16", "c10::BFloat16"]'


def product(m: int, n: int, k: int, us: float, kernel: str = FAST, types: str = HALF) -> Launch:
    return launch(
        "aten::mm", kernel, us, f"[[{m}, {k}], [{k}, {n}]]", types, strides=f"[[{k}, 1], [1, {k}]]"
    )


def test_large_products_gain_what_their_casts_leave() -> None:
    case = case_of_steps(*[product(8192, 8192, 8192, 1440.0)] * 4)
    proposal = bf16_matmul.propose(case)
    assert isinstance(proposal, Proposal)
    assert proposal.changes_numerics
    # 1440 us to 860 and 95 of casts.
    assert finding_of(case, proposal).predicted_speedup == pytest.approx(1440 / 955, rel=0.05)


@pytest.mark.parametrize(
    "product",
    [
        pytest.param(product(8192, 1024, 1024, 25.0), id="small"),
        pytest.param(product(8191, 8192, 8192, 1440.0), id="odd"),
        pytest.param(product(8192, 50304, 4096, 4400.0), id="logits"),
        pytest.param(
            product(
                8192, 8192, 8192, 21000.0, "cutlass_80_simt_sgemm_128x256_8x4", '["float"] * 2'
            ),
            id="fp32",
        ),
    ],
)
def test_other_products_are_left_alone(product: Launch) -> None:
    assert bf16_matmul.propose(case_of_steps(*[product] * 4)) is None


def test_a_device_without_fp8_is_left_alone() -> None:
    case = case_of_steps(*[product(8192, 8192, 8192, 4000.0)] * 4)
    older = next(spec for spec in load_specs() if "fp8" not in spec.peak_flops)
    context = replace(case.context, roofs=DevicePeaks(spec=older))
    assert bf16_matmul.propose(replace(case, context=context)) is None
