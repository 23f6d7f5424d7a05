from stepscope.core.diagnosis import Abstention
from stepscope.rules.compute import fp32_matmul, tf32_off
from stepscope.rules.proposal import Proposal
from tests.rules.judging import finding_of
from tests.rules.steps import case_of_steps, launch

SGEMM = "cutlass_80_simt_sgemm_128x256_8x4_nt_align1"
WIDE = "[[8192, 4096], [4096, 4096]]", '["float", "float"]'
TINY = "[[64, 256], [256, 256]]", '["float", "float"]'


def test_fp32_matmul_promises_tensor_core_rates() -> None:
    case = case_of_steps(*[launch("aten::mm", SGEMM, 5400.0, *WIDE)] * 6)
    proposal = fp32_matmul.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert (
        10 < finding.predicted_speedup < 16
    )  # 275 GFLOP: 5.4 ms at 51 TFLOP/s, 0.36 ms at 770, and the casts
    assert finding.changes_numerics


def test_tf32_promises_its_own_rate() -> None:
    case = case_of_steps(*[launch("aten::mm", SGEMM, 5400.0, *WIDE)] * 6)
    proposal = tf32_off.propose(case)
    assert isinstance(proposal, Proposal)
    assert 4 < finding_of(case, proposal).predicted_speedup < 8
    assert "set_float32_matmul_precision" in proposal.action
    assert "cudnn" not in proposal.action


def test_fp32_matmul_gives_nothing_where_the_host_is_the_limit() -> None:
    case = case_of_steps(*[launch("aten::mm", SGEMM, 6.0, *TINY)] * 40, host_us=30.0)
    proposal = fp32_matmul.propose(case)
    assert proposal is None or (
        isinstance(proposal, Proposal) and finding_of(case, proposal).predicted_speedup < 1.02
    )


def test_fp32_matmul_is_silent_on_tensor_core_kernels() -> None:
    tf32 = launch("aten::mm", "cutlass_80_tensorop_s1688gemm_128x256_nt_align4", 700.0, *WIDE)
    half = launch(
        "aten::mm",
        "nvjet_sm90_tst_256x128_64x4",
        360.0,
        WIDE[0],
        '["c10::BFloat16", "c10::BFloat16"]',
    )
    assert fp32_matmul.propose(case_of_steps(*[tf32, half] * 3)) is None


def test_fp32_matmul_asks_for_shapes() -> None:
    word = fp32_matmul.propose(case_of_steps(*[launch("aten::mm", SGEMM, 500.0)] * 6, shapes=False))
    assert isinstance(word, Abstention)
    assert "record_shapes" in word.needs


def test_fp32_matmul_leaves_depthwise_convolutions_alone() -> None:
    dims, types = "[[64, 96, 56, 56], [96, 1, 3, 3]]", '["float", "float"]'
    depthwise = launch(
        "aten::_conv_depthwise2d", "conv_depthwise2d_forward_kernel", 900.0, dims, types
    )
    assert fp32_matmul.propose(case_of_steps(*[depthwise] * 6)) is None
