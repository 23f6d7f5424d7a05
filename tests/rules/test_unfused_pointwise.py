from stepscope.rules import unfused_pointwise
from stepscope.rules.proposal import Abstention, Proposal, finding_of
from tests.rules.steps import case_of_steps, launch

N = 64 * 2**20
ONE, TWO = (f"[[{N}]]", '["float"]'), (f"[[{N}], [{N}]]", '["float", "float"]')
VECTOR = "vectorized_elementwise_kernel"


def test_unfused_pointwise_run_reads_once_and_writes_once() -> None:
    chain = [launch("aten::mul", VECTOR, 190.0, *TWO), *[launch("aten::neg", VECTOR, 127.0, *ONE)] * 5]
    case = case_of_steps(*chain)
    proposal = unfused_pointwise.propose(case)
    assert isinstance(proposal, Proposal)
    assert 3.8 < finding_of(case, proposal).predicted_speedup < 4.5  # 825 us; two read and one written take 194


def test_unfused_pointwise_does_not_fuse_across_a_product() -> None:
    gemm = launch("aten::mm", "nvjet_a", 700.0, "[[65536, 1024], [1024, 1024]]", '["float", "float"]')
    assert unfused_pointwise.propose(case_of_steps(*[launch("aten::neg", VECTOR, 127.0, *ONE), gemm] * 4)) is None


def test_unfused_pointwise_keeps_functions_at_their_arithmetic() -> None:
    case = case_of_steps(*[launch("aten::sin", VECTOR, 128.0, *ONE)] * 10)
    proposal = unfused_pointwise.propose(case)
    assert isinstance(proposal, Proposal)
    assert finding_of(case, proposal).predicted_speedup < 4  # 10 x 20 instructions an element: 400 us, not 127


def test_unfused_pointwise_is_silent_on_small_tensors_and_asks_for_shapes() -> None:
    small = launch("aten::neg", VECTOR, 3.0, "[[4096]]", '["float"]')
    assert unfused_pointwise.propose(case_of_steps(*[small] * 10)) is None
    unknown = case_of_steps(*[launch("aten::neg", VECTOR, 100.0)] * 10, shapes=False)
    assert isinstance(unfused_pointwise.propose(unknown), Abstention)
