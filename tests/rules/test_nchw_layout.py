from stepscope.rules import nchw_layout
from stepscope.rules.proposal import Proposal, finding_of
from tests.rules.steps import Launch, case_of_steps, launch

IMAGES = "[[64, 64, 112, 112], [64]]"
TYPES = '["c10::BFloat16", "float"]'
NCHW, NHWC = "[[802816, 12544, 112, 1], [1]]", "[[802816, 1, 7168, 64], [1]]"


def norm(strides: str, us: float, kernel: str = "batch_norm_collect_statistics_kernel") -> Launch:
    return launch("aten::native_batch_norm", kernel, us, IMAGES, TYPES, strides=strides)


def turn(us: float) -> Launch:
    return launch("aten::cudnn_convolution", "nchwToNhwcKernel", us, IMAGES, TYPES, strides=NCHW)


def conv(us: float) -> Launch:
    return launch("aten::cudnn_convolution", "sm90_xmma_fprop_implicit_gemm_bf16bf16_nhwc", us, IMAGES, TYPES, strides=NCHW)


def test_nchw_layout_removes_transposes_and_speeds_norms_up() -> None:
    case = case_of_steps(*[turn(100.0), conv(100.0), norm(NCHW, 760.0)] * 3)
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    assert 2.1 < finding_of(case, proposal).predicted_speedup < 2.7  # 960 us to 100 + about 277


def test_nchw_layout_is_silent_in_channels_last() -> None:
    assert nchw_layout.propose(case_of_steps(*[conv(100.0), norm(NHWC, 300.0)] * 3)) is None


def test_nchw_layout_knows_that_group_norm_gets_slower() -> None:
    group = launch("aten::native_group_norm", "RowwiseMomentsCUDAKernel", 200.0, IMAGES, TYPES, strides=NCHW)
    case = case_of_steps(*[turn(30.0), conv(100.0), group] * 3)
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    assert finding_of(case, proposal).predicted_speedup < 1.0
