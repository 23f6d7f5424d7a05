import math
from dataclasses import replace

import numpy as np
import pytest

from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.memory import nchw_layout, unfused_pointwise
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.host_ranges import INNER_LAUNCH
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch

IMAGES = "[[64, 64, 112, 112], [64]]"
TYPES = '["c10::BFloat16", "float"]'
FULL, FULL_TYPES = "[[64, 64, 112, 112], [64, 64, 3, 3]]", '["float", "float"]'
FULL_STRIDES = "[[802816, 12544, 112, 1], [576, 9, 3, 1]]"
BN = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>"
NCHW, NHWC = "[[802816, 12544, 112, 1], [1]]", "[[802816, 1, 7168, 64], [1]]"


def norm(strides: str, us: float, kernel: str = "batch_norm_collect_statistics_kernel") -> Launch:
    return launch("aten::native_batch_norm", kernel, us, IMAGES, TYPES, strides=strides)


def turn(us: float) -> Launch:
    return launch("aten::cudnn_convolution", "nchwToNhwcKernel", us, IMAGES, TYPES, strides=NCHW)


def conv(us: float) -> Launch:
    return launch(
        "aten::cudnn_convolution",
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_nhwc",
        us,
        IMAGES,
        TYPES,
        strides=NCHW,
    )


def test_nchw_layout_removes_transposes_and_speeds_norms_up() -> None:
    case = case_of_steps(*[turn(100.0), conv(100.0), norm(NCHW, 760.0)] * 3)
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    assert 2.1 < finding_of(case, proposal).predicted_speedup < 2.7  # 960 us to 100 + about 277


def test_nchw_layout_says_how_far_the_host_could_keep_up() -> None:
    """9 calls of 200 us of host time as recorded: more than the device then needs, or not, by what
    recording took of it."""
    case = case_of_steps(*[turn(300.0), conv(100.0), norm(NCHW, 760.0)] * 3, host_us=200.0)
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    sure = finding_of(replace(case, host_bounds=None), proposal)
    assert finding.predicted_speedup == sure.predicted_speedup
    assert finding.predicted_low < sure.predicted_low
    assert finding.predicted_high > sure.predicted_high


def test_what_another_fix_made_of_a_norm_stays() -> None:
    """Fused with what follows it, it is neither brought back nor made shorter once more; the
    transposes go."""
    small = launch("aten::relu", "vectorized_elementwise_kernel", 60.0, IMAGES, TYPES, strides=NCHW)
    case = case_of_steps(*[turn(300.0), conv(100.0), norm(NCHW, 760.0), small] * 3)
    fusing, turning = unfused_pointwise.propose(case), nchw_layout.propose(case)
    assert isinstance(fusing, Proposal)
    assert isinstance(turning, Proposal)
    fused = fusing.change(case.graph)
    both = turning.change(fused)
    is_turn = np.arange(len(case.graph)) % 4 == 0
    assert (
        both.task_ns[~is_turn].tolist()
        == fused.task_ns[~is_turn].tolist()
        != case.graph.task_ns[~is_turn].tolist()
    )
    assert both.task_ns[is_turn].sum() == 0 < fused.task_ns[is_turn].sum()


def test_nchw_layout_is_silent_in_channels_last() -> None:
    assert nchw_layout.propose(case_of_steps(*[conv(100.0), norm(NHWC, 300.0)] * 3)) is None


def test_nchw_layout_knows_that_group_norm_gets_slower() -> None:
    group = launch(
        "aten::native_group_norm", "RowwiseMomentsCUDAKernel", 200.0, IMAGES, TYPES, strides=NCHW
    )
    case = case_of_steps(*[turn(30.0), conv(100.0), group] * 3)
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    assert case.speedup(proposal.change(case.graph)) < 1.0
    assert finding_of(case, proposal).predicted_speedup < 1.0


def thin(name: str, us: float, *, side: int, dtype: str = "float") -> Launch:
    """A depthwise convolution over 64 channels of 112 x 112."""
    images, weight = "[64, 64, 112, 112]", f"[64, 1, {side}, {side}]"
    strides = f"[802816, 12544, 112, 1], [{side * side}, {side * side}, {side}, 1]"
    if "backward" in name:
        dims, strides = f"[{images}, {images}, {weight}]", f"[[802816, 12544, 112, 1], {strides}]"
    else:
        dims, strides = f"[{images}, {weight}]", f"[{strides}]"
    types = str([dtype] * dims.count("], [") + [dtype]).replace("'", '"')
    return launch(name, "conv_depthwise2d_kernel", us, dims, types, strides=strides)


def test_nchw_layout_sees_depthwise_convolutions_that_nothing_turns() -> None:
    case = case_of_steps(
        *[
            thin("aten::_conv_depthwise2d", 240.0, side=3),
            thin("aten::convolution_backward", 1000.0, side=3),
        ]
        * 4
    )
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    assert 2.2 < finding_of(case, proposal).predicted_speedup < 3.2


def test_a_compiler_turns_depthwise_convolutions_that_nothing_turns_now() -> None:
    """A convolution of 128 channels out is wide enough for it; 64 alone are not."""
    dims = "[[64, 64, 112, 112], [128, 64, 1, 1]]"
    wide = launch("aten::cudnn_convolution", "s1688gemm_tf32", 60.0, dims, FULL_TYPES)
    depthwise = thin("aten::_conv_depthwise2d", 240.0, side=3)
    assert nchw_layout.turned_by_compiler(case_of_steps(depthwise, depthwise)) is None
    case = case_of_steps(depthwise, wide)
    turned = nchw_layout.turned_by_compiler(case)
    assert turned is not None
    times = turned(case.graph).task_ns
    assert times[0] == pytest.approx(nchw_layout.POLICY.thin_factor * case.graph.task_ns[0])


def test_nchw_layout_knows_that_wide_depthwise_kernels_in_fp32_get_slower() -> None:
    case = case_of_steps(
        *[
            thin("aten::_conv_depthwise2d", 320.0, side=7),
            thin("aten::convolution_backward", 1100.0, side=7),
        ]
        * 4
    )
    proposal = nchw_layout.propose(case)
    if proposal is not None:
        assert isinstance(proposal, Proposal)
        assert case.speedup(proposal.change(case.graph)) < 1.0
        assert finding_of(case, proposal).predicted_speedup < 1.0  # and the finding says so


def work_of(graph: Graph) -> float:
    return float(graph.call_parts["work"].sum())


def added_work(case: Case, proposal: Proposal) -> float:
    """Of the host, in ns."""
    return work_of(proposal.change(case.graph)) - work_of(case.graph)


def test_nchw_layout_adds_launches_in_fp32_without_tensor_cores() -> None:
    kernel = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_g1_ffma"
    full = launch("aten::cudnn_convolution", kernel, 20.0, FULL, FULL_TYPES, strides=FULL_STRIDES)
    dims, strides = "[[64, 64, 112, 112], [64]]", NCHW
    batch_norm = launch(
        "aten::cudnn_batch_norm", BN, 60.0, dims, '["float", "float"]', strides=strides
    )
    case = case_of_steps(*[full, batch_norm] * 4, host_us=200.0)
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    # 6 turns and 4 fills more a step, each a part of one of 8 operators; the host is the limit.
    more = (6 * nchw_layout.POLICY.turn_launch + 4 * INNER_LAUNCH) / 8
    assert added_work(case, proposal) == pytest.approx(more * work_of(case.graph), rel=0.1)
    assert finding_of(case, proposal).predicted_speedup < 0.95


def test_nchw_layout_turns_each_group_of_a_convolution_in_fp32() -> None:
    kernel = "void implicit_convolve_sgemm<float, float, 128, 6, 7>"

    def host_ns(channels: int) -> float:
        dims = f"[[64, 64, 112, 112], [64, {channels}, 3, 3]]"
        full = launch(
            "aten::cudnn_convolution", kernel, 20.0, dims, FULL_TYPES, strides=FULL_STRIDES
        )
        case = case_of_steps(*[full, norm(NCHW, 760.0)] * 4, host_us=200.0)
        proposal = nchw_layout.propose(case)
        assert isinstance(proposal, Proposal)
        return added_work(case, proposal)

    assert host_ns(4) == pytest.approx(16 * host_ns(64))
    assert host_ns(64) > 0


@pytest.mark.parametrize(
    ("name", "slower"),
    [
        pytest.param("aten::cudnn_convolution", 1.65, id="grouped"),
        pytest.param("aten::cudnn_convolution_transpose", 1.2, id="transposed"),
    ],
)
def test_nchw_layout_knows_that_grouped_convolutions_in_fp32_get_slower(
    name: str, slower: float
) -> None:
    kernel = "void implicit_convolve_sgemm<float, float, 128, 6, 7>"
    weight = "[[64, 64, 112, 112], [64, 32, 3, 3]]"
    full = launch(name, kernel, 1000.0, weight, FULL_TYPES, strides=FULL_STRIDES)
    case = case_of_steps(full, norm(NCHW, 60.0))
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    times = proposal.change(case.graph).task_ns
    assert times[0] == pytest.approx(slower * case.graph.task_ns[0])


def test_nchw_layout_keeps_the_rounding_of_fp32_tensors() -> None:
    turned = launch(
        "aten::cudnn_convolution", "nchwToNhwcKernel", 100.0, FULL, FULL_TYPES, strides=FULL_STRIDES
    )
    kernel = "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_nhwc"
    case = case_of_steps(
        *[
            turned,
            launch(
                "aten::cudnn_convolution", kernel, 100.0, FULL, FULL_TYPES, strides=FULL_STRIDES
            ),
        ]
        * 4
    )
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    assert (
        1.15 < finding_of(case, proposal).predicted_speedup < 1.3
    )  # 200 us to 162: the pass stays as a copy


def pointwise(us: float, kernel: str, *, channels: int = 256) -> Launch:
    """Over 128 images of 14 x 14: 16 MB read and written, 0.8 GFLOP."""
    return launch(
        "aten::cudnn_convolution",
        kernel,
        us,
        f"[[128, {channels}, 14, 14], [64, {channels}, 1, 1], [], [], [], []]",
        '["c10::BFloat16", "c10::BFloat16", "ScalarList", "ScalarList", "ScalarList", "Scalar"]',
        strides=f"[[{channels * 196}, 196, 14, 1], [{channels}, 1, 1, 1], [], [], [], []]",
        concrete='["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"]',
    )


ALIGN1 = "cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nn_align1"


def test_pointwise_convolutions_over_odd_images_are_aligned_in_nhwc() -> None:
    case = case_of_steps(*[pointwise(80.0, ALIGN1)] * 4)
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    assert 8 < finding_of(case, proposal).predicted_speedup < 10  # 80 us to 5 + 4.2


def test_pointwise_convolutions_that_load_whole_rows_or_have_odd_channels_stay() -> None:
    fast = pointwise(80.0, "sm90_xmma_fprop_implicit_gemm_bf16bf16_nhwc")
    odd = pointwise(80.0, ALIGN1, channels=250)
    assert nchw_layout.propose(case_of_steps(*[fast, odd] * 4)) is None


def norm_us(*dims: int) -> float:
    """Of a batch norm in NHWC, forward in bf16."""
    images = ", ".join(map(str, dims))
    strides = ", ".join(str(math.prod(dims[place + 1 :])) for place in range(len(dims)))
    slow = launch(
        "aten::native_batch_norm",
        "batch_norm_collect_statistics_kernel",
        5000.0,
        f"[[{images}], [{dims[1]}]]",
        TYPES,
        strides=f"[[{strides}], [1]]",
    )
    case = case_of_steps(conv(10.0), slow)
    proposal = nchw_layout.propose(case)
    assert isinstance(proposal, Proposal)
    times = proposal.change(case.graph).task_ns[case.table.of_category("norm")]
    return float(times[0]) / 1e3


def test_norms_in_nhwc_take_what_recorded_ones_took() -> None:
    assert norm_us(384, 32, 80, 80) == pytest.approx(855, rel=0.15), "rows of 64 bytes"
    assert norm_us(128, 64, 64, 64) == pytest.approx(199, rel=0.15)
    assert norm_us(128, 512, 16, 16) == pytest.approx(77, rel=0.15), "many channels"


def test_norms_over_volumes_have_no_kernels_of_their_own_in_nhwc() -> None:
    assert norm_us(16, 64, 16, 56, 56) > 2 * norm_us(16, 64, 16 * 56, 56)
