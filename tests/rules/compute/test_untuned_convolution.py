from stepscope.core.diagnosis import Abstention
from stepscope.rules.compute import untuned_convolution
from stepscope.rules.proposal import Proposal, Remark
from tests.ranges import left_open
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch
from tests.wording import mentions

DIMS = "[[64, 256, 28, 28], [256, 256, 3, 3], [], [], [], [], [], [], []]"
HALF = (
    '["c10::BFloat16", "c10::BFloat16", "ScalarList", "ScalarList", "ScalarList", "Scalar", '
    '"Scalar", "Scalar", "Scalar"]'
)
STRIDES = "[[200704, 1, 7168, 256], [2304, 1, 768, 256], [], [], [], [], [], [], []]"


def conv(us: float, *, benchmark: bool) -> Launch:
    """59 GFLOP: 80 us when well made."""
    concrete = f'["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "{benchmark}", "False", "True"]'
    name = "sm90_xmma_fprop_implicit_gemm_bf16bf16_nhwc"
    return launch(
        "aten::cudnn_convolution", name, us, DIMS, HALF, strides=STRIDES, concrete=concrete
    )


def test_untuned_convolution_promises_a_range_that_begins_at_nothing() -> None:
    case = case_of_steps(*[conv(400.0, benchmark=False)] * 6)
    proposal = untuned_convolution.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert finding.predicted_low <= 1.0
    assert 1.0 < finding.predicted_speedup < 1.1
    assert 2.0 < left_open(finding)[1] < 2.6


def test_untuned_convolution_is_silent_when_benchmarking_is_on() -> None:
    assert untuned_convolution.propose(case_of_steps(*[conv(400.0, benchmark=True)] * 6)) is None


def test_untuned_convolution_is_silent_about_good_ones() -> None:
    assert untuned_convolution.propose(case_of_steps(*[conv(75.0, benchmark=False)] * 6)) is None


def test_untuned_convolution_asks_for_shapes() -> None:
    some = launch("aten::cudnn_convolution", "sm90_xmma_fprop_implicit_gemm", 400.0)
    assert isinstance(
        untuned_convolution.propose(case_of_steps(*[some] * 3, shapes=False)), Abstention
    )


def miopen(us: float, *, benchmark: bool) -> Launch:
    concrete = f'["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "{benchmark}", "False"]'
    return launch(
        "aten::miopen_convolution",
        "igemm_fwd_gtcx3_nhwc_bf16",
        us,
        DIMS,
        HALF,
        strides=STRIDES,
        concrete=concrete,
    )


def test_untuned_convolution_says_of_miopen_that_no_search_was_tried() -> None:
    remark = untuned_convolution.propose(case_of_steps(*[miopen(400.0, benchmark=False)] * 6))
    assert isinstance(remark, Remark)
    assert mentions(remark.text, "2.4 ms", "without MIOpen's search")


def test_untuned_convolution_is_silent_when_miopen_searched_or_is_good() -> None:
    assert untuned_convolution.propose(case_of_steps(*[miopen(400.0, benchmark=True)] * 6)) is None
    assert untuned_convolution.propose(case_of_steps(*[miopen(75.0, benchmark=False)] * 6)) is None
