"""expert-loop: experts one by one become grouped products; a mask, a few experts, and layers that
differ are no loop."""

from __future__ import annotations

from stepscope.rules.host import expert_loop
from stepscope.rules.proposal import Proposal
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch
from tests.wording import mentions

GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
HALF = '["c10::BFloat16", "c10::BFloat16"]'


def selection() -> Launch:
    return launch("aten::nonzero", "nonzero_kernel", 3.0, "[[4096]]", '["bool"]')


def product(m: int, n: int, k: int) -> Launch:
    return launch(
        "aten::mm", GEMM, 8.0, f"[[{m}, {k}], [{k}, {n}]]", HALF, strides=f"[[{k}, 1], [1, {k}]]"
    )


def expert(tokens: int, wide: int = 2048) -> list[Launch]:
    return [selection(), product(tokens, wide, 512), product(tokens, 512, wide)]


def loop(num: int) -> list[Launch]:
    return [each for number in range(num) for each in expert(200 + number)]


def test_a_loop_over_experts_becomes_one_round_of_larger_kernels() -> None:
    case = case_of_steps(*loop(16), product(4096, 16, 512), host_us=50.0)
    proposal = expert_loop.propose(case)
    assert isinstance(proposal, Proposal)
    assert mentions(proposal.summary, "1 loops", "16 experts")
    finding = finding_of(case, proposal)
    # 49 launches of 50 us become those of two experts and the last; the device has 250 us.
    assert 4.0 < finding.predicted_speedup < 10.0
    assert finding.predicted_low < finding.predicted_speedup


def test_work_on_the_device_is_not_promised_away() -> None:
    case = case_of_steps(*loop(16), host_us=1.0)
    proposal = expert_loop.propose(case)
    assert isinstance(proposal, Proposal)
    # 16 x 19 us, of which each kernel but the first expert's spares 2.
    assert finding_of(case, proposal).predicted_speedup < 1.5


def test_a_few_experts_are_no_loop() -> None:
    assert expert_loop.propose(case_of_steps(*loop(3))) is None


def test_masks_without_products_are_no_loop() -> None:
    chosen = [selection(), launch("aten::index", "index_kernel", 5.0, "[[4096, 512]]", HALF)]
    assert expert_loop.propose(case_of_steps(*chosen * 16, product(4096, 512, 512))) is None


def test_layers_of_other_sizes_are_no_experts() -> None:
    layers = [each for number in range(8) for each in expert(256, 512 + 64 * number)]
    assert expert_loop.propose(case_of_steps(*layers)) is None
