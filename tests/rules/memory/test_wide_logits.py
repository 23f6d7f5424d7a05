import pytest

from stepscope.core.diagnosis import Abstention
from stepscope.rules.memory import wide_logits
from stepscope.rules.memory.wide_logits import fused_by_compiler
from stepscope.rules.proposal import Proposal
from tests.ranges import left_open
from tests.rules.judging import finding_of, judge
from tests.rules.steps import Launch, case_of_steps, launch

LOGITS = "[8192, 128256]"
HALF = "c10::BFloat16"


def head(us: float = 2800.0) -> Launch:
    return launch(
        "aten::mm",
        "nvjet_sm90_tst_192x192",
        us,
        "[[8192, 1024], [1024, 128256]]",
        f'["{HALF}", "{HALF}"]',
    )


def loss(logits: str = LOGITS) -> list[Launch]:
    """As eager PyTorch computes a cross entropy over bf16 logits."""
    one, two = f"[{logits}, [], []]", f"[{logits}, {logits}, []]"
    return [
        launch(
            "aten::copy_", "direct_copy_kernel_cuda", 3000.0, two, f'["float", "{HALF}", "Scalar"]'
        ),
        launch(
            "aten::_log_softmax",
            "cunn_SoftMaxForward",
            4000.0,
            one,
            '["float", "Scalar", "Scalar"]',
        ),
        launch(
            "aten::fill_",
            "FillFunctor",
            900.0,
            f"[{logits}, []]",
            '["float", "Scalar"]',
            node="NllLossBackward0",
        ),
        launch(
            "aten::_log_softmax_backward_data",
            "cunn_SoftMaxBackward",
            4200.0,
            f"[{logits}, {logits}, [], []]",
            '["float", "float", "Scalar", "Scalar"]',
            node="LogSoftmaxBackward0",
        ),
        launch(
            "aten::copy_",
            "bfloat16_copy_kernel",
            1500.0,
            two,
            f'["{HALF}", "float", "Scalar"]',
            node="ToCopyBackward0",
        ),
    ]


def test_wide_logits_are_read_once_each_way() -> None:
    case = case_of_steps(head(), *loss(), head(), head())
    proposal = wide_logits.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert 1.9 < finding.predicted_speedup < 2.2  # 13.6 ms become 2.7; the products, 8.4 ms, stay
    assert left_open(finding)[0] < finding.predicted_speedup < left_open(finding)[1]
    assert finding.changes_numerics


def test_wide_logits_are_found_where_the_loss_leaves_tokens_out() -> None:
    case = case_of_steps(head(), *loss("[4, 2047, 128256]"), head(), head())
    assert isinstance(wide_logits.propose(case), Proposal)


def test_wide_logits_is_silent_about_a_classifier() -> None:
    narrow = launch(
        "aten::mm", "nvjet_sm90_tst", 50.0, "[[8192, 2048], [2048, 1000]]", f'["{HALF}", "{HALF}"]'
    )
    assert wide_logits.propose(case_of_steps(narrow, *loss("[8192, 1000]"))) is None


def test_wide_logits_is_silent_about_a_softmax_that_follows_no_product() -> None:
    assert wide_logits.propose(case_of_steps(*loss())) is None


def test_wide_logits_is_silent_about_a_fused_loss() -> None:
    fused = launch(
        "triton_red_fused__log_softmax__to_copy",
        "triton_red_fused__log_softmax",
        1500.0,
        f"[{LOGITS}]",
        f'["{HALF}"]',
    )
    assert wide_logits.propose(case_of_steps(head(), fused, head(), head())) is None


def test_wide_logits_asks_for_shapes() -> None:
    softmax = launch("aten::_log_softmax", "cunn_SoftMaxForward", 4000.0)
    assert isinstance(
        wide_logits.propose(case_of_steps(softmax, softmax, shapes=False)), Abstention
    )


def test_the_products_of_an_odd_vocabulary_are_padded_with_the_loss() -> None:
    def gain(vocabulary: int) -> float:
        slow = launch(
            "aten::mm",
            "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_32x2_tn_align1",
            11_000.0,
            f"[[8192, 1024], [1024, {vocabulary}]]",
            f'["{HALF}", "{HALF}"]',
            strides="[[1024, 1], [1, 1024]]",
        )
        case = case_of_steps(slow, *loss(f"[8192, {vocabulary}]"), slow, slow)
        proposal = wide_logits.propose(case)
        assert isinstance(proposal, Proposal)
        return finding_of(case, proposal).predicted_speedup

    assert gain(128257) > 2 * gain(128256)


def test_a_compiled_model_fuses_its_loss_too() -> None:
    case = case_of_steps(head(), *loss(), head(), head())
    graph, fused = case.graph, fused_by_compiler(case)
    assert fused is not None
    after = fused(graph).task_ns
    products = case.table.of_category("gemm")
    assert (after[products] == graph.task_ns[products]).all()
    passes = after[~products & (after > 0)]
    # 47 ps and 2.2 times a stream of 4 bytes for each of a milliard logits.
    assert passes.tolist() == pytest.approx([1_410_000, 2_140_000] * graph.num_steps, rel=0.05)
    assert fused_by_compiler(case_of_steps(head(), head())) is None


def test_a_loss_that_is_half_of_what_compiling_gives_is_named_before_it() -> None:
    scale = launch(
        "aten::mul",
        "elementwise_kernel",
        500.0,
        "[[8192, 32768], [8192, 32768]]",
        f'["{HALF}", "{HALF}"]',
    )
    case = case_of_steps(head(), *[scale] * 6, head(), *loss(), head())
    gains = {finding.code: finding.predicted_speedup for finding in judge(case).findings}
    assert gains["unfused-pointwise"] > gains["wide-logits"]
    assert list(gains).index("unfused-pointwise") > list(gains).index("wide-logits")
