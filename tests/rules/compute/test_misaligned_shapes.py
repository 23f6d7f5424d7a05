from stepscope.core.diagnosis import Abstention
from stepscope.rules.compute import misaligned_shapes
from stepscope.rules.proposal import Proposal
from tests.ranges import left_open
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch

ALIGN1 = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_32x2_tn_align1"
FAST = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
HALF = '["c10::BFloat16", "c10::BFloat16"]'


def product(m: int, n: int, k: int, us: float, kernel: str = FAST, types: str = HALF) -> Launch:
    """A linear layer: the weight is kept as n x k."""
    return launch(
        "aten::mm", kernel, us, f"[[{m}, {k}], [{k}, {n}]]", types, strides=f"[[{k}, 1], [1, {k}]]"
    )


def test_misaligned_shapes_promises_the_padded_products_time() -> None:
    case = case_of_steps(
        product(8192, 50257, 768, 6600.0, ALIGN1), product(8192, 50304, 768, 850.0)
    )
    proposal = misaligned_shapes.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert 4.0 < finding.predicted_speedup < 4.8  # 7450 us to 1700
    assert left_open(finding)[0] < finding.predicted_speedup < left_open(finding)[1]
    assert "50257" in finding.action


def test_misaligned_shapes_does_not_mind_an_odd_number_of_tokens() -> None:
    assert (
        misaligned_shapes.propose(case_of_steps(*[product(8191, 4096, 4096, 1200.0)] * 4)) is None
    )


def test_misaligned_shapes_leaves_a_small_head_alone() -> None:
    head = launch(
        "aten::mm",
        "gemv2T_kernel",
        200.0,
        "[[65536, 1024], [1024, 1]]",
        HALF,
        strides="[[1024, 1], [1, 1024]]",
    )
    assert misaligned_shapes.propose(case_of_steps(*[head] * 4)) is None


def test_misaligned_shapes_is_silent_in_fp32_on_the_vector_units() -> None:
    slow = product(
        8192,
        50257,
        768,
        13000.0,
        "cutlass_80_simt_sgemm_128x256_8x4_nt_align1",
        '["float", "float"]',
    )
    assert misaligned_shapes.propose(case_of_steps(*[slow] * 3)) is None


def test_misaligned_shapes_asks_for_shapes() -> None:
    word = misaligned_shapes.propose(
        case_of_steps(*[launch("aten::mm", ALIGN1, 6000.0)] * 3, shapes=False)
    )
    assert isinstance(word, Abstention)
    assert "record_shapes" in word.needs
