"""The loss of a job, now and then: read where it is on the host, copied where it is not, and given
up before it could trouble anybody."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.installed import need

need("torch")

import torch

from stepscope.capture.guard import Guard
from stepscope.capture.losses import (
    EVERY_NS,
    MAX_FAILURES,
    NEVER,
    LossSampler,
    _unscaled,
    remember_unscaled,
)
from tests.capture.jobs import record


def test_a_loss_on_the_host_is_read() -> None:
    sampler = LossSampler()
    sampler.take(torch.tensor(2.5), 10)
    sampler.take((torch.tensor([math.nan]),), 20)
    assert sampler.taken() == [[10, 2.5], [20, "nan"]]
    assert sampler.taken() == []
    assert sampler.due_ns == 20 + EVERY_NS


@pytest.mark.parametrize("roots", [(), None, torch.ones(3), [torch.ones(2, 2)]])
def test_what_is_no_loss_is_passed_over(roots: Any) -> None:
    sampler = LossSampler()
    sampler.take(roots, 0)
    assert sampler.taken() == []


def test_a_tensor_that_raises_costs_the_loss_and_nothing_else() -> None:
    class Strange:
        def __iter__(self) -> Any:
            raise RuntimeError("not to be asked")

    sampler = LossSampler()
    for number in range(MAX_FAILURES):
        assert sampler.due_ns < NEVER
        sampler.take(Strange(), number)
    assert sampler.due_ns == NEVER


class Event:
    """Says that the device has passed it when asked for the third time."""

    def __init__(self) -> None:
        self.num_asked = 0

    def record(self, _stream: object) -> None:
        self.num_asked = 0

    def query(self) -> bool:
        self.num_asked += 1
        return self.num_asked > 2

    def synchronize(self) -> None:
        raise AssertionError("nothing may wait for the device")


def test_a_loss_on_a_device_is_read_when_it_has_come_and_never_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnDevice:
        device = torch.device("cuda", 0)

        def __init__(self, value: float) -> None:
            self.value = value

    class Pinned:
        value = 0.0

        def copy_(self, loss: OnDevice, *, non_blocking: bool) -> None:
            assert non_blocking
            self.value = loss.value

        def __float__(self) -> float:
            return self.value

    monkeypatch.setattr("stepscope.capture.losses.loss_of", lambda _torch, loss: loss)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: Pinned())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    is_capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing[0])
    sampler = LossSampler()
    for number in range(8):
        sampler.take(OnDevice(float(number)), number)
    assert sampler.taken() == [[0, 0.0], [3, 3.0]], "the others came while one was under way"
    is_capturing[0] = True
    sampler.take(OnDevice(9.0), 99)
    assert sampler.taken() == [], "a copy would become part of the graph"


def test_a_scaled_loss_is_told_as_it_was_before_the_scale() -> None:
    guard, sampler, is_due = Guard(), LossSampler(), [True]
    remember_unscaled(guard, lambda: is_due[0])
    try:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = torch.tensor(2.0, requires_grad=True)
        sampler.take(scaler.scale(loss), 1)
        is_due[0] = False
        assert id(scaler.scale(loss)) not in _unscaled, "nothing is kept in between"
    finally:
        guard.off()
    assert sampler.taken() == [[1, 2.0]]


def test_a_job_writes_its_losses_with_its_samples(tmp_path: Path) -> None:
    ended = record(tmp_path, "train(60, pause_s=0.05)")
    assert ended.code == 0, ended.err
    lines = (ended.folder / "rank-0" / "samples.jsonl").read_text().splitlines()
    losses = [pair for line in lines for pair in json.loads(line).get("losses", ())]
    assert len(losses) >= 2
    assert all(isinstance(loss, float) and loss > 0 for _, loss in losses)
    gaps = [after - before for (before, _), (after, _) in pairwise(losses)]
    assert min(gaps) >= EVERY_NS, "not every step"
