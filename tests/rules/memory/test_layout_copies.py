"""layout-copies: a copy into another order can go; one in the same order, of another type, or that
repeats a side is not meant."""

from __future__ import annotations

import pytest

from stepscope.rules.memory import layout_copies
from stepscope.rules.proposal import Proposal
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch
from tests.wording import any_mentions

HALF = '["c10::BFloat16", "c10::BFloat16"]'
BMM = launch("aten::bmm", "nvjet_tst", 100.0, "[[512, 128, 64], [512, 64, 128]]", HALF)
PLAIN = "[524288, 65536, 64, 1]"
TURNED = "[524288, 64, 512, 1]"


def copy(made: str, read: str, types: str = HALF) -> Launch:
    dims = "[64, 8, 1024, 64]"
    return launch(
        "aten::copy_",
        "elementwise_kernel",
        50.0,
        f"[{dims}, {dims}]",
        types,
        strides=f"[{made}, {read}]",
    )


def test_a_copy_into_another_order_is_gone() -> None:
    case = case_of_steps(*[copy(PLAIN, TURNED), BMM] * 4)
    proposal = layout_copies.propose(case)
    assert isinstance(proposal, Proposal)
    assert any_mentions(proposal.evidence, "longest", "64 x 8 x 1024 x 64")
    finding = finding_of(case, proposal)
    assert finding.predicted_speedup == pytest.approx(1.5, rel=0.05)
    assert finding.predicted_low == 1.0


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param(copy(PLAIN, PLAIN), id="same order"),
        pytest.param(copy(PLAIN, TURNED, '["float", "c10::BFloat16"]'), id="cast"),
        pytest.param(copy(PLAIN, "[0, 65536, 64, 1]"), id="repeated"),
    ],
)
def test_other_copies_are_not_meant(copy: Launch) -> None:
    assert layout_copies.propose(case_of_steps(*[copy, BMM] * 4)) is None
