from dataclasses import replace

from stepscope.core.diagnosis import Abstention
from stepscope.rules.memory import unfused_attention
from stepscope.rules.proposal import Proposal
from tests.ranges import left_open
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch
from tests.wording import mentions


def attention(
    batch: int, tokens: int, dim: int, dtype: str, times: tuple[float, ...], gemm: str = "nvjet_a"
) -> list[Launch]:
    scores, tall, wide = (
        f"[{batch}, {rows}, {columns}]"
        for rows, columns in ((tokens, tokens), (tokens, dim), (dim, tokens))
    )
    pair, vector = f'["{dtype}", "{dtype}"]', "vectorized_elementwise_kernel"
    softmax = f'["{dtype}", "Scalar", "Scalar"]'
    return [
        launch("aten::bmm", gemm, times[0], f"[{tall}, {wide}]", pair),
        launch("aten::mul", vector, times[1], f"[{scores}, []]", f'["{dtype}", "double"]'),
        launch(
            "aten::masked_fill_",
            vector,
            times[1],
            f"[{scores}, [{tokens}, {tokens}], []]",
            f'["{dtype}", "bool", "Scalar"]',
        ),
        launch(
            "aten::_softmax",
            "softmax_warp_forward",
            times[1],
            f"[{scores}, [], []]",
            softmax,
            concrete='["", "-1", "False"]',
        ),
        launch("aten::bmm", gemm, times[2], f"[{scores}, {tall}]", pair),
    ]


def test_unfused_attention_becomes_one_kernel() -> None:
    case = case_of_steps(*attention(64, 2048, 64, "c10::BFloat16", (160.0, 260.0, 150.0)) * 3)
    proposal = unfused_attention.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert (
        8 < finding.predicted_speedup < 16
    )  # 1090 us for each; a fused causal one takes about 85, another 153
    assert left_open(finding)[0] < finding.predicted_speedup


def test_attention_that_sdpa_wrote_out_itself_is_told_how_to_force_another_back_end() -> None:
    written_out = attention(64, 2048, 64, "c10::BFloat16", (160.0, 260.0, 150.0))
    sdpa = "aten::scaled_dot_product_attention"
    case = case_of_steps(*(replace(one, within=sdpa) for one in written_out * 3))
    proposal = unfused_attention.propose(case)
    assert isinstance(proposal, Proposal)
    assert "sdpa_kernel" in proposal.action
    assert "attn_implementation" not in proposal.action
    assert mentions(proposal.evidence[0], sdpa, "math back end")
    plain = unfused_attention.propose(case_of_steps(*written_out * 3))
    assert isinstance(plain, Proposal)
    assert "sdpa_kernel" not in plain.action


def test_unfused_attention_in_plain_fp32_gains_little() -> None:
    case = case_of_steps(
        *attention(128, 1024, 64, "float", (515.0, 130.0, 420.0), "sm80_simt_sgemm") * 3
    )
    proposal = unfused_attention.propose(case)
    assert isinstance(proposal, Proposal)
    assert left_open(finding_of(case, proposal))[0] < 1.5


def test_unfused_attention_in_tf32_gets_slower() -> None:
    case = case_of_steps(*attention(128, 1024, 64, "float", (180.0, 130.0, 150.0)) * 3)
    proposal = unfused_attention.propose(case)
    assert isinstance(proposal, Proposal)
    assert proposal.cautious is not None
    assert (
        case.speedup(proposal.cautious(case.graph)) < 1.0
    )  # measured: 1029 us fused, 180 + 150 for the products
    assert finding_of(case, proposal).predicted_low == 1.0


def test_unfused_attention_leaves_other_softmaxes_alone() -> None:
    experts = launch(
        "aten::_softmax",
        "softmax_warp_forward",
        30.0,
        "[[4, 2048, 8], [], []]",
        '["float", "Scalar", "Scalar"]',
    )
    mm = launch(
        "aten::mm",
        "nvjet_a",
        300.0,
        "[[8192, 1024], [1024, 4096]]",
        '["c10::BFloat16", "c10::BFloat16"]',
    )
    bmm = launch(
        "aten::bmm",
        "nvjet_b",
        300.0,
        "[[8, 1024, 1024], [8, 1024, 4096]]",
        '["c10::BFloat16", "c10::BFloat16"]',
    )
    assert unfused_attention.propose(case_of_steps(mm, experts, bmm, mm)) is None


def test_unfused_attention_asks_for_shapes() -> None:
    softmax = launch("aten::_softmax", "softmax_warp_forward", 300.0)
    assert isinstance(
        unfused_attention.propose(case_of_steps(*[softmax] * 3, shapes=False)), Abstention
    )
