from dataclasses import replace

import pytest

from stepscope.core.diagnosis import Abstention
from stepscope.rules.case import Case
from stepscope.rules.memory import unfused_pointwise
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.compiled_host import num_left
from stepscope.rules.shared.fusible_runs import prepared_to_add
from tests.rules.judging import finding_of
from tests.rules.recorder import Recorder
from tests.rules.steps import case_of_steps, launch
from tests.tracing import op

N = 64 * 2**20
ONE, TWO = (f"[[{N}]]", '["float"]'), (f"[[{N}], [{N}]]", '["float", "float"]')
VECTOR = "vectorized_elementwise_kernel"

HALF_PAIR = '["c10::BFloat16", "c10::BFloat16"]'


def test_unfused_pointwise_run_reads_once_and_writes_once() -> None:
    chain = [
        launch("aten::mul", VECTOR, 190.0, *TWO),
        *[launch("aten::neg", VECTOR, 127.0, *ONE)] * 5,
    ]
    case = case_of_steps(*chain)
    proposal = unfused_pointwise.propose(case)
    assert isinstance(proposal, Proposal)
    assert (
        3.8 < finding_of(case, proposal).predicted_speedup < 4.5
    )  # 825 us; two read and one written take 194


def test_unfused_pointwise_picks_rows_where_they_are_read() -> None:
    pick = launch("aten::index", "vectorized_gather_kernel", 300.0, f"[[{N}], []]", '["float", ""]')
    read = [launch("aten::neg", VECTOR, 127.0, *ONE)] * 2
    product = launch("aten::mm", "nvjet_a", 50.0, "[[1024, 1024], [1024, 1024]]", HALF_PAIR)
    read_at_once = unfused_pointwise.propose(read_case := case_of_steps(pick, *read, product))
    multiplied = unfused_pointwise.propose(product_case := case_of_steps(*read, pick, product))
    assert isinstance(read_at_once, Proposal)
    assert isinstance(multiplied, Proposal)
    # Of 604 us 177 are left; of rows that a product reads nothing goes.
    assert 3.2 < finding_of(read_case, read_at_once).predicted_speedup < 3.6
    assert 1.2 < finding_of(product_case, multiplied).predicted_speedup < 1.35


def test_rows_are_neither_laid_out_nor_sorted_before_they_are_added() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        run.launch("aten::copy_", kernel_us=20)
        began = run.now
        run.launch("aten::copy_", kernel_us=20)
        run.launch("aten::sort", kernel_us=20)
        run.span("aten::_index_put_impl_", began, kind=op)
        run.step(number, start)
    case = run.case()
    assert prepared_to_add(case).tolist() == [1, 2, 4, 5, 7, 8]


def test_a_batch_norm_that_counts_its_batches_keeps_a_kernel_for_it() -> None:
    chain = [launch("aten::neg", VECTOR, 127.0, *ONE)] * 3
    product = launch("aten::mm", "nvjet_a", 50.0, "[[1024, 1024], [1024, 1024]]", HALF_PAIR)
    count = launch("aten::add_", VECTOR, 2.0, "[[], []]", '["long int", "Scalar"]')
    half = launch("aten::add_", VECTOR, 2.0, "[[], []]", '["float", "Scalar"]')
    assert num_left(case_of_steps(*chain, product, count)) == 3
    assert num_left(case_of_steps(*chain, product, half)) == 2


def test_unfused_pointwise_does_not_fuse_across_a_product() -> None:
    gemm = launch(
        "aten::mm", "nvjet_a", 700.0, "[[65536, 1024], [1024, 1024]]", '["float", "float"]'
    )
    assert (
        unfused_pointwise.propose(
            case_of_steps(*[launch("aten::neg", VECTOR, 127.0, *ONE), gemm] * 4)
        )
        is None
    )


def test_unfused_pointwise_keeps_functions_at_their_arithmetic() -> None:
    case = case_of_steps(*[launch("aten::sin", VECTOR, 128.0, *ONE)] * 10)
    proposal = unfused_pointwise.propose(case)
    assert isinstance(proposal, Proposal)
    assert (
        finding_of(case, proposal).predicted_speedup < 4
    )  # 10 x 20 instructions an element: 400 us, not 127


def test_where_the_hosts_time_is_open_the_range_says_so() -> None:
    """708 us on the device of which a third is left, and a recorded host of 660, of whose launches
    two thirds are: what recording took of that is not known."""
    chain = launch("aten::neg", VECTOR, 167.0, *ONE)
    product = launch("aten::mm", "nvjet_sm90_tst", 20.0, "[[512, 512], [512, 512]]", HALF_PAIR)
    case = case_of_steps(*[chain, chain, product] * 2, host_us=110.0)
    proposal = unfused_pointwise.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    alone = finding_of(replace(case, host_bounds=None), proposal)
    assert finding.predicted_speedup == alone.predicted_speedup
    assert finding.predicted_low < alone.predicted_low
    assert finding.predicted_high >= alone.predicted_high


def pictures(
    channels: int,
    *,
    weight: str | None = None,
    height: int = 112,
    operator: str = "aten::cudnn_convolution",
) -> Case:
    """A convolution whose tensors are turned for it, then four operations on what it gives."""
    dims = f"[[64, {channels}, {height}, 112], {weight or f'[{channels}, {channels}, 3, 3]'}]"
    strides = f"[[{channels * height * 112}, {height * 112}, 112, 1], [{channels * 9}, 9, 3, 1]]"
    types = '["c10::BFloat16", "c10::BFloat16"]'
    turn = launch(operator, "nchwToNhwcKernel", 300.0, dims, types, strides=strides)
    product = launch(
        operator, "sm90_xmma_fprop_implicit_gemm_bf16bf16_nhwc", 200.0, dims, types, strides=strides
    )
    small = launch("aten::neg", VECTOR, 127.0, *ONE)
    return case_of_steps(turn, product, *[small] * 4)


def predicted(case: Case) -> float:
    proposal = unfused_pointwise.propose(case)
    assert isinstance(proposal, Proposal)
    return finding_of(case, proposal).predicted_speedup


def test_the_compiler_turns_pictures_too() -> None:
    """Of 1008 us the four become one of about 130; what turned the tensors goes with it where the
    compiler chooses the layout."""
    assert predicted(pictures(128)) == pytest.approx(1008 / 330, rel=0.05)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(pictures(64), id="narrow"),
        pytest.param(pictures(128, weight="[128, 64, 3, 3]"), id="grouped"),
        pytest.param(pictures(128, weight="[64, 128, 3, 3]"), id="half as many channels out"),
        pytest.param(pictures(128, height=1), id="a signal"),
        pytest.param(pictures(128, operator="aten::miopen_convolution"), id="ROCm"),
    ],
)
def test_the_compiler_leaves_some_layouts(case: Case) -> None:
    assert predicted(case) == pytest.approx(1008 / 630, rel=0.05)


def test_small_tensors_are_fused_too_and_shapes_are_asked_for() -> None:
    small = launch("aten::neg", VECTOR, 3.0, "[[4096]]", '["float"]')
    assert predicted(case_of_steps(*[small] * 10)) > 1.5
    unknown = case_of_steps(*[launch("aten::neg", VECTOR, 100.0)] * 10, shapes=False)
    assert isinstance(unfused_pointwise.propose(unknown), Abstention)
