"""activation-casts: casts of activations can go; those of weights, logits and small tensors are not
meant."""

from __future__ import annotations

import pytest

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
