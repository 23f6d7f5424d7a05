"""activation-casts: what autocast casts can go; the model's own casts, those of logits, and what
costs too little are not meant."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.rules.case import Case
from stepscope.rules.memory import activation_casts
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.casts import made_by_autocast
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch
from tests.wording import any_mentions

TO_FLOAT, TO_HALF = '["float", "c10::BFloat16"]', '["c10::BFloat16", "float"]'
STREAM = "vectorized_elementwise_kernel"
NORM = launch("aten::native_layer_norm", "vectorized_layer_norm_kernel", 100.0, "[[8192, 1024]]")


def cast(
    dims: str,
    us: float = 50.0,
    types: str = TO_FLOAT,
    *,
    within: str | None = "aten::layer_norm",
    sequence: int = -1,
    node: str | None = None,
) -> Launch:
    return launch(
        "aten::copy_",
        "unrolled_elementwise_kernel",
        us,
        f"[{dims}, {dims}]",
        types,
        within=within,
        sequence=sequence,
        node=node,
    )


def test_casts_around_norms_are_gone() -> None:
    case = case_of_steps(*[cast("[8192, 1024]"), NORM] * 4)
    proposal = activation_casts.propose(case)
    assert isinstance(proposal, Proposal)
    assert proposal.changes_numerics
    assert proposal.changes_training
    assert proposal.bound == ""
    assert any_mentions(proposal.evidence, "4 casts of activations")
    finding = finding_of(case, proposal)
    assert finding.predicted_speedup == pytest.approx(1.5, rel=0.05)
    assert finding.predicted_low < 1.3


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param(cast("[8192, 1024]", types='["float", "float"]'), id="no cast"),
        pytest.param(cast("[8192, 1024]", within=None), id="the model's own"),
        pytest.param(cast("[8192, 50304]"), id="logits"),
        pytest.param(cast("[8192, 1024]", us=0.5), id="short"),
    ],
)
def test_other_copies_are_not_meant(copy: Launch) -> None:
    assert activation_casts.propose(case_of_steps(*[copy, NORM] * 4)) is None


def test_a_gradients_cast_is_as_its_forward_one() -> None:
    """And one to the type of what was added to an fp32 residual is autocast's too."""
    case = case_of_steps(
        cast("[8192, 1024]", types=TO_HALF, within="aten::linear", sequence=7),
        cast("[8192, 1024]", within=None, sequence=8),
        NORM,
        cast("[8192, 1024]", within=None, sequence=8, node="ToCopyBackward0"),
        cast("[8192, 1024]", within=None, sequence=7, node="ToCopyBackward0"),
        cast("[8192, 1024]", within="autograd::engine::evaluate_function: AddBackward0"),
    )
    made = made_by_autocast(case)[:6]
    assert made.tolist() == [True, False, False, False, True, True]


def residual(types: str = '["float", "float"]') -> Launch:
    dims = "[[8192, 1024], [8192, 1024]]"
    return launch("aten::add", STREAM, 50.0, dims, types)


def test_residuals_are_half_as_wide() -> None:
    """101 MB in 50 us is what its bytes take; the casts alone are the least it gives."""
    case = case_of_steps(*[cast("[8192, 1024]", us=10.0), residual()] * 8)
    proposal = activation_casts.propose(case)
    assert isinstance(proposal, Proposal)
    assert proposal.cautious is not None
    graph = case.graph
    adds = np.arange(len(graph)) % 16 == 1
    assert proposal.change(graph).task_ns[adds] == pytest.approx(38_000, rel=0.05)
    assert (proposal.cautious(graph).task_ns[adds] == graph.task_ns[adds]).all()


def test_a_norm_spelled_out_casts_what_becomes_narrow() -> None:
    wide, rows = "[8192, 1024]", "[8192, 1]"
    root = launch("aten::rsqrt", STREAM, 2.0, f"[{rows}]", '["float"]')
    scaling = launch("aten::mul", STREAM, 50.0, f"[{wide}, {rows}]", '["float", "float"]')
    into = cast(wide, us=20.0, types=TO_HALF, within="aten::linear")
    native = case_of_steps(*[into, NORM] * 8)
    spelled = case_of_steps(*[into, root, scaling, launch("aten::neg", STREAM, 48.0)] * 8)
    proposal = activation_casts.propose(native)
    assert isinstance(proposal, Proposal)
    assert finding_of(native, proposal).predicted_speedup > 1.15
    assert activation_casts.propose(spelled) is None


def under_autocast(*, us: float, host_us: float) -> Case:
    """A norm that asks for fp32, and a product whose weight is cast before it."""
    halves, turned = '["c10::BFloat16", "c10::BFloat16"]', "[[256, 1], [1, 256]]"
    dims = "[[64, 256], [256, 512]]"
    product = launch("aten::mm", "nvjet_sm90_tst_64x8", us, dims, halves, strides=turned)
    norm = launch("aten::native_layer_norm", "vectorized_layer_norm_kernel", us, "[[64, 256]]")
    weight = cast("[512, 256]", us=1.0, types=TO_HALF, within="aten::linear")
    return case_of_steps(*[cast("[64, 256]", us=1.0), norm, weight, product] * 4, host_us=host_us)


def test_a_host_that_launches_the_casts_is_spared_those_of_the_weights_as_well() -> None:
    case = under_autocast(us=3.0, host_us=20.0)
    proposal = activation_casts.propose(case)
    assert isinstance(proposal, Proposal)
    assert proposal.bound == "host"
    assert "8 launches a step" in proposal.summary
    assert any_mentions(proposal.evidence, "4 casts of weights")
    finding = finding_of(case, proposal)
    assert finding.predicted_speedup == pytest.approx(2, rel=0.1)


def test_a_device_that_has_more_to_do_than_the_host_does_not_feel_their_launches() -> None:
    assert activation_casts.propose(under_autocast(us=300.0, host_us=20.0)) is None
