import dataclasses
from types import ModuleType

import numpy as np
import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import OpInputs, TraceMeta
from stepscope.hardware.lookup import find_spec
from stepscope.rules.case import Case, case_of
from stepscope.rules.compute import fp32_matmul, tf32_off
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.host_ranges import with_operators
from stepscope.rules.shared.vector_products import at_precision, find_products
from tests.rules.judging import finding_of
from tests.rules.steps import H200, Launch, case_of_steps, launch
from tests.tracing import Event, call, kernel, mark, op, trace_of
from tests.wording import mentions

SGEMM = "cutlass_80_simt_sgemm_128x256_8x4_nt_align1"
BY_GROUP = "implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>"
IN_HALF = (
    "implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, 128, 5, 5, 3, 3, 3, 1, false, true>"
)
WIDE = "[[8192, 4096], [4096, 4096]]", '["float", "float"]'
TINY = "[[64, 256], [256, 256]]", '["float", "float"]'


def test_fp32_matmul_promises_tensor_core_rates() -> None:
    case = case_of_steps(*[launch("aten::mm", SGEMM, 5400.0, *WIDE)] * 6)
    proposal = fp32_matmul.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert (
        8 < finding.predicted_speedup < 16
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


def test_autocast_has_products_that_are_in_tf32_in_bf16_too() -> None:
    tf32 = launch("aten::mm", "cutlass_80_tensorop_s1688gemm_128x256_nt_align4", 1400.0, *WIDE)
    case = case_of_steps(*[tf32] * 5, launch("aten::mm", SGEMM, 5400.0, *WIDE))
    proposal = fp32_matmul.propose(case)
    assert isinstance(proposal, Proposal)
    assert (proposal.change(case.graph).task_ns < 800_000).all()  # 360 us and the casts
    assert proposal.changes_training
    assert mentions(proposal.summary, "7.0 ms", "in TF32")
    alone = tf32_off.propose(case)
    assert isinstance(alone, Proposal)
    in_tf32 = case.graph.task_ns == 1_400_000
    assert (alone.change(case.graph).task_ns[in_tf32] == 1_400_000).all()


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


def grouped(num_streams: int) -> Case:
    """A 3 x 3 convolution in 32 groups of 4 channels, a kernel of 5 us for each group."""
    detail = OpInputs(
        dims="[[8, 128, 44, 44], [128, 4, 3, 3], [], [], [], []]",
        types='["float", "float", "ScalarList", "ScalarList", "ScalarList", "Scalar"]',
        strides="[[247808, 1936, 44, 1], [36, 9, 3, 1], [], [], [], []]",
        concrete='["", "", "[1, 1]", "[1, 1]", "[1, 1]", "32"]',
    )
    events: list[Event] = []
    free, host, number = [0] * num_streams, 0, 0
    for step in range(4):
        began = host
        for _ in range(4):
            start = host
            for group in range(32):
                number += 1
                events.append(call("cudaLaunchKernel", host + 100, host + 9_900, number))
                stream = group % num_streams
                ready = max(free[stream], host + 3_000)
                free[stream] = ready + 5_000
                events.append(kernel(BY_GROUP, ready, free[stream], number, stream=7 + stream))
                host += 10_000
            events.append(op("aten::cudnn_convolution", start, host, detail=detail))
        events.append(mark(f"ProfilerStep#{step}", began, host + 1))
        host += 2
    meta = TraceMeta(path="built", devices=(H200,), has_shapes=True)
    return case_of(build_context(trace_of(*events, meta=meta), find_spec(H200)), 0, None)


@pytest.mark.parametrize("rule", [fp32_matmul, tf32_off])
def test_groups_that_were_launched_one_by_one_are_launched_together(rule: ModuleType) -> None:
    """The host took 32 launches of 10 us for each convolution."""
    case = grouped(num_streams=8)
    proposal = rule.propose(case)
    assert isinstance(proposal, Proposal)
    assert finding_of(case, proposal).predicted_speedup > 3


def test_products_that_run_beside_each_other_take_no_more_than_the_step_alone() -> None:
    """Groups of 5 us, launched every 10: what a host of its own speed would have run at once."""
    case = grouped(num_streams=8)
    found = find_products(case)
    assert found is not None
    assert not mentions(found.summary, "at a time")
    longer = dataclasses.replace(case.graph, task_ns=case.graph.task_ns * 4)
    found = find_products(dataclasses.replace(case, unprofiled=longer))
    assert found is not None
    assert mentions(found.summary, "several at a time", "without tensor cores")


def test_casts_cost_launches_where_most_others_are_gone() -> None:
    case = grouped(num_streams=8)
    graph, roofs, products = case.graph, case.context.roofs, find_products(case)
    assert roofs is not None
    assert products is not None
    in_tf32, in_bf16 = (
        at_precision(case, roofs, products, precision)(graph).call_parts["work"].sum()
        for precision in ("tf32", "bf16")
    )
    # Four convolutions a step, their images and weights cast both ways, beside a launch each.
    assert in_bf16 > 2 * in_tf32


def test_an_operator_more_takes_the_host_what_one_does_with_all_its_launches() -> None:
    case = grouped(num_streams=1)
    graph, work = case.graph, case.graph.call_parts["work"]
    one = np.zeros(len(graph))
    one[0] = 1.0
    added = with_operators(graph, case.table, one).call_parts["work"].sum() - work.sum()
    num_operators = len(np.unique(case.table.op))
    assert added == pytest.approx(work.sum() / num_operators, rel=0.1)


def test_kernels_of_one_stream_keep_their_launches() -> None:
    """A transposed convolution looks grouped by its weight."""
    case = grouped(num_streams=1)
    proposal = tf32_off.propose(case)
    assert isinstance(proposal, Proposal)
    assert finding_of(case, proposal).predicted_speedup < 1.1


def test_each_product_of_a_recurrent_layer_stays_a_kernel() -> None:
    """A step of it is a product too small to fill the device, at any precision."""
    layer = OpInputs(
        dims="[[64, 64, 1024], [[4096, 1024]], [], [], [64, 1024], [64, 1024]" + 10 * ", []" + "]",
        types='["float", "TensorList", "Scalar", "", "float", "float", "Scalar", "Scalar", '
        '"Scalar", "Scalar", "Scalar", "Scalar", "Scalar", "Scalar", "ScalarList", ""]',
        strides=None,
        concrete='["", "", "4", "", "", "", "2", "1024", "0", "1", "False", "0.", "True", "False", '
        '"[]", ""]',
    )
    events: list[Event] = []
    time, number = 0, 0
    for step in range(3):
        start = time
        for _ in range(100):
            number += 1
            events.append(call("cudaLaunchKernel", time + 100, time + 900, number))
            events.append(kernel(SGEMM, time + 1_000, time + 49_000, number))
            time += 50_000
        events.append(op("aten::_cudnn_rnn", start, time, detail=layer))
        events.append(mark(f"ProfilerStep#{step}", start, time + 1))
        time += 2
    meta = TraceMeta(path="built", devices=(H200,), has_shapes=True)
    case = case_of(build_context(trace_of(*events, meta=meta), find_spec(H200)), 0, None)
    products = find_products(case)
    assert products is not None
    graph, roofs = case.graph, case.context.roofs
    assert roofs is not None
    after = at_precision(case, roofs, products, "tf32")(graph)
    assert (after.task_ns >= 3_000).all(), "each is a kernel still"
    assert after.task_ns.sum() < graph.task_ns.sum()


def of_groups(channels: int) -> Launch:
    """A 16-bit convolution in 16 groups, of that many channels each, on the vector units."""
    wide = 16 * channels
    return launch(
        "aten::cudnn_convolution",
        IN_HALF,
        3000.0,
        f"[[16, {wide}, 1, 800], [{wide}, {channels}, 1, 128], [], [], [], []]",
        '["c10::BFloat16", "c10::BFloat16", "ScalarList", "ScalarList", "ScalarList", "Scalar"]',
        strides=f"[[{wide * 800}, 800, 800, 1], [{channels * 128}, 128, 128, 1], [], [], [], []]",
        concrete='["", "", "[0, 64]", "[1, 1]", "[1, 1]", "16"]',
    )


def test_sixteen_bit_convolutions_on_the_vector_units_are_better_off_in_tf32() -> None:
    case = case_of_steps(*[of_groups(channels=48)] * 3)
    proposal = fp32_matmul.propose(case)
    assert isinstance(proposal, Proposal)
    assert "16-bit convolutions" in proposal.summary
    assert "TF32" in proposal.action
    assert finding_of(case, proposal).predicted_speedup > 1.5
    assert proposal.changes_numerics


def test_groups_too_narrow_for_the_tensor_cores_stay_in_sixteen_bits() -> None:
    assert fp32_matmul.propose(case_of_steps(*[of_groups(channels=4)] * 3)) is None


def test_without_autocast_is_said_where_its_casts_cost_more_than_wider_numbers() -> None:
    cast = launch(
        "aten::copy_",
        "at::native::bfloat16_copy_kernel_cuda",
        900.0,
        "[[4096, 4096], [4096, 4096]]",
        '["c10::BFloat16", "float"]',
    )
    few = fp32_matmul.propose(case_of_steps(*[of_groups(channels=48)] * 3))
    many = fp32_matmul.propose(case_of_steps(*[of_groups(channels=48), cast] * 3))
    assert isinstance(few, Proposal)
    assert isinstance(many, Proposal)
    assert "around these modules" in few.action
    assert "no autocast" in many.action
