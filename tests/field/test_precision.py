"""16 bits on a device that has no bf16: the loss has to be scaled, and the answer says so."""

from __future__ import annotations

import pytest

from stepscope.core.trace import DeviceProperties
from stepscope.rules.compute import fp32_matmul
from stepscope.rules.proposal import Proposal
from tests.rules import steps
from tests.rules.steps import case_of_steps, launch
from tests.wording import mentions

WIDE = "[[8192, 4096], [4096, 4096]]", '["float", "float"]'
V100 = DeviceProperties(
    index=0,
    name="Tesla V100-SXM2-16GB",
    memory_bytes=16 * 10**9,
    num_sms=80,
    compute_capability=(7, 0),
    warp_size=32,
)


def test_fp16_is_advised_with_a_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "H200", V100)
    proposal = fp32_matmul.propose(
        case_of_steps(*[launch("aten::mm", "volta_sgemm_128x64_nn", 20_000.0, *WIDE)] * 6)
    )
    assert isinstance(proposal, Proposal)
    assert mentions(proposal.action, "torch.float16", "GradScaler")


def test_bf16_needs_none() -> None:
    proposal = fp32_matmul.propose(
        case_of_steps(*[launch("aten::mm", "ampere_sgemm_128x64_nn", 5400.0, *WIDE)] * 6)
    )
    assert isinstance(proposal, Proposal)
    assert mentions(proposal.action, "torch.bfloat16")
    assert not mentions(proposal.action, "GradScaler")
