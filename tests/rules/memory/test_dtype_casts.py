from stepscope.analyses.rank_context import build_context
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import OpInputs, TraceMeta
from stepscope.hardware.lookup import find_spec
from stepscope.rules.case import Case, case_of
from stepscope.rules.memory import dtype_casts
from stepscope.rules.memory.dtype_casts import weight_casts
from stepscope.rules.proposal import Proposal
from tests.ranges import left_open
from tests.rules.judging import finding_of
from tests.rules.steps import H200, Launch, case_of_steps, launch, recomputed
from tests.tracing import Event, call, kernel, mark, op, trace_of

WEIGHT, CASTS = "[[16384, 4096], [16384, 4096], []]", '["c10::BFloat16", "float", "Scalar"]'
BACK = '["float", "c10::BFloat16", "Scalar"]'
US = 1000


def cast(us: float = 100.0, dims: str = WEIGHT) -> Launch:
    return launch("aten::copy_", "bfloat16_copy_kernel_cuda", us, dims, CASTS)


def product(us: float = 200.0) -> Launch:
    dims, types = "[[1024, 4096], [4096, 16384]]", '["c10::BFloat16", "c10::BFloat16"]'
    return launch(
        "aten::mm", "nvjet_sm90_tst_256x128_64x4", us, dims, types, strides="[[4096, 1], [1, 4096]]"
    )


def back(us: float = 200.0) -> Launch:
    return launch(
        "aten::copy_", "direct_copy_kernel_cuda", us, WEIGHT, BACK, node="ToCopyBackward0"
    )


def gathering(launches: list[Launch], gathers: int, shape: str = "[[16384, 4096]]") -> Case:
    """Steps whose end has `gathers` gradients of that shape gathered."""
    events: list[Event] = []
    host = free = number = 0
    for step in range(4):
        began = host
        for one in launches:
            number += 1
            if one.node is not None:
                events.append(
                    op(f"autograd::engine::evaluate_function: {one.node}", host, host + US)
                )
            events.append(op(one.op, host + 10, host + US - 10, detail=one.detail))
            events.append(call("cudaLaunchKernel", host + 20, host + US - 20, number))
            free = max(free, host + US) + int(one.us * US)
            events.append(kernel(one.kernel, free - int(one.us * US), free, number))
            host += US
        for _ in range(gathers):
            grad = OpInputs(dims=shape, types='["float"]', strides=None, concrete=None)
            events.append(op("torch::autograd::AccumulateGrad", host + 10, host + 20, detail=grad))
            host += 50
        number += 1
        events.append(call("cudaLaunchKernel", host + 1, host + 50, number))
        free += US
        events.append(kernel("adam", free - US, free, number))
        host += 100
        events.append(mark(f"ProfilerStep#{step}", began, host - 1))
    meta = TraceMeta(path="built", devices=(H200,), has_shapes=True)
    return case_of(build_context(trace_of(*events, meta=meta), find_spec(H200)), 0, None)


def test_dtype_casts_keeps_one_cast_of_a_weight_used_again_and_again() -> None:
    case = gathering([cast(), product()] * 8 + [back()] * 8, gathers=1)
    proposal = dtype_casts.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert (
        1.9 < finding.predicted_speedup < 2.2
    )  # 4000 us; 7 of 8 casts (700) and of their gradients' (1400) go
    assert left_open(finding)[1] > finding.predicted_speedup  # weights in 16 bits


def test_dtype_casts_is_silent_when_each_weight_is_cast_once() -> None:
    case = gathering([cast(), product()] * 8 + [back()] * 8, gathers=8)
    assert dtype_casts.propose(case) is None


def test_dtype_casts_removes_every_cast_of_a_frozen_weight() -> None:
    case = gathering([cast(), product()] * 4, gathers=2, shape="[[64, 4096]]")
    proposal = dtype_casts.propose(case)
    assert isinstance(proposal, Proposal)
    assert "frozen" in proposal.action
    assert 1.4 < finding_of(case, proposal).predicted_speedup < 1.6  # 1200 us without 400


def test_dtype_casts_calls_nothing_frozen_where_no_gradient_is_seen() -> None:
    assert dtype_casts.propose(gathering([cast(), product()] * 4, gathers=0)) is None


def test_dtype_casts_leaves_activations_alone() -> None:
    activations = "[[1024, 4096], [1024, 4096], []]"
    case = gathering([cast(dims=activations), product()] * 8, gathers=1)
    assert dtype_casts.propose(case) is None


def test_dtype_casts_takes_no_activation_that_gathers_a_gradient_for_a_weight() -> None:
    """As the embeddings before frozen layers do, so that recomputation has one."""
    activations = "[[4, 256, 4096], [4, 256, 4096], []]"
    case = gathering([cast(dims=activations), product()] * 8, gathers=1, shape="[[4, 256, 4096]]")
    assert not weight_casts(case).again.any()


def test_dtype_casts_removes_those_of_a_frozen_weight_and_bias_from_recomputation_too() -> None:
    bias = cast(us=5.0, dims="[[16384], [16384], []]")
    dims = "[[16384], [1024, 4096], [4096, 16384]]"
    layer = launch(
        "aten::addmm",
        "nvjet_sm90_tst_256x128_64x4",
        200.0,
        dims,
        '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]',
        strides="[[1], [4096, 1], [1, 4096]]",
    )
    trained = launch("torch::autograd::AccumulateGrad", "add", 2.0, "[[64, 4096]]", '["float"]')
    casts = weight_casts(case_of_steps(*recomputed(cast(), bias, layer), trained))
    assert casts.frozen[:7].tolist() == [True, True, False, True, True, False, False]


def test_dtype_casts_cannot_spare_a_trained_weights_cast_in_recomputation() -> None:
    trained = launch("torch::autograd::AccumulateGrad", "add", 2.0, "[[16384, 4096]]", '["float"]')
    casts = weight_casts(case_of_steps(*recomputed(cast(), product()), trained))
    assert casts.once[:5].tolist() == [True, False, True, False, False]
    assert not casts.again.any()


def test_dtype_casts_asks_for_shapes() -> None:
    word = dtype_casts.propose(
        case_of_steps(*[launch("aten::copy_", "direct_copy_kernel", 500.0)] * 4, shapes=False)
    )
    assert isinstance(word, Abstention)
