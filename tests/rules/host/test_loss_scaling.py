"""loss-scaling: a scaler's checks and the read of their answer, on a device that has bf16."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.hardware.lookup import find_spec_by_key
from stepscope.rules.case import Case, case_of
from stepscope.rules.host import loss_scaling
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import Recorder, gain
from tests.wording import mentions

CHECK = "aten::_amp_foreach_non_finite_check_and_unscale_"


def training(*, scaled: bool, device: str | None = "h200-sxm") -> Case:
    run = Recorder()
    for number in range(4):
        start = run.now
        for _ in range(20):
            run.launch("aten::mm", kernel_us=60)
        if scaled:
            run.launch(CHECK, kernel_us=20)
            run.item()
        for _ in range(20):
            run.launch("aten::add_", kernel_us=2)
        run.step(number, start)
    spec = None if device is None else find_spec_by_key(device)
    return case_of(build_context(run.trace, spec), 0, None)


def test_the_wait_for_the_scalers_answer_is_gone() -> None:
    case = training(scaled=True)
    said = loss_scaling.propose(case)
    assert isinstance(said, Proposal)
    assert said.changes_numerics
    assert mentions(said.summary, "1 checks", "bf16")
    assert mentions(said.evidence[0], "1 reads")
    assert gain(case, said) > 1.05


@pytest.mark.parametrize(
    ("scaled", "device"), [(False, "h200-sxm"), (True, "v100-sxm2-16gb"), (True, None)]
)
def test_without_a_scaler_or_without_bf16_nothing_is_said(scaled: bool, device: str | None) -> None:
    assert loss_scaling.propose(training(scaled=scaled, device=device)) is None
