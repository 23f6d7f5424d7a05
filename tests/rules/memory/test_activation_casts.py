"""activation-casts: casts of activations can go; those of weights, logits and small tensors are not
meant, but where a host launches them all."""

from __future__ import annotations

import pytest

from stepscope.rules.case import Case
from stepscope.rules.memory import activation_casts
from stepscope.rules.proposal import Proposal
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch

TO_FLOAT = '["float", "c10::BFloat16"]'
NORM = launch("aten::native_layer_norm", "vectorized_layer_norm_kernel", 100.0, "[[8192, 1024]]")


def cast(dims: str, us: float = 50.0, types: str = TO_FLOAT) -> Launch:
    return launch("aten::copy_", "unrolled_elementwise_kernel", us, f"[{dims}, {dims}]", types)


def test_casts_around_norms_are_gone() -> None:
    case = case_of_steps(*[cast("[8192, 1024]"), NORM] * 4)
    proposal = activation_casts.propose(case)
    assert isinstance(proposal, Proposal)
    assert proposal.changes_numerics
    assert "4 casts of activations a step" in proposal.evidence
    finding = finding_of(case, proposal)
    assert finding.predicted_speedup == pytest.approx(1.5, rel=0.05)
    assert finding.predicted_low < 1.3


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param(cast("[8192, 1024]", types='["float", "float"]'), id="no cast"),
        pytest.param(cast("[64, 64]"), id="small"),
        pytest.param(cast("[8192, 50304]"), id="logits"),
        pytest.param(cast("[8192, 1024]", us=0.5), id="short"),
    ],
)
def test_other_copies_are_not_meant(copy: Launch) -> None:
    assert activation_casts.propose(case_of_steps(*[copy, NORM] * 4)) is None


def under_autocast(*, us: float, host_us: float) -> Case:
    """A norm that asks for fp32, and a product whose weight is cast before it."""
    to_half = '["c10::BFloat16", "float"]'
    halves, turned = '["c10::BFloat16", "c10::BFloat16"]', "[[256, 1], [1, 256]]"
    dims = "[[64, 256], [256, 512]]"
    product = launch("aten::mm", "nvjet_sm90_tst_64x8", us, dims, halves, strides=turned)
    norm = launch("aten::native_layer_norm", "vectorized_layer_norm_kernel", us, "[[64, 256]]")
    weight = cast("[512, 256]", us=1.0, types=to_half)
    return case_of_steps(*[cast("[64, 256]", us=1.0), norm, weight, product] * 4, host_us=host_us)


def test_a_host_that_launches_the_casts_is_spared_those_of_the_weights_as_well() -> None:
    case = under_autocast(us=3.0, host_us=20.0)
    proposal = activation_casts.propose(case)
    assert isinstance(proposal, Proposal)
    assert proposal.bound == "host"
    assert "8 launches a step" in proposal.summary
    assert proposal.changes_numerics
    assert proposal.listed_last
    finding = finding_of(case, proposal)
    assert finding.predicted_speedup == pytest.approx(2, rel=0.1)
    assert finding.predicted_low < 1.5


def test_a_device_that_has_more_to_do_than_the_host_does_not_feel_their_launches() -> None:
    assert activation_casts.propose(under_autocast(us=300.0, host_us=20.0)) is None
