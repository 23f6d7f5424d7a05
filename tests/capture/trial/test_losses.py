"""The loss of every pass, as the capture keeps it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed import need

need("torch")

import torch
from torch import nn

from stepscope.capture.guard import Guard
from stepscope.capture.losses import loss_of as real_loss_of
from stepscope.capture.losses import remember_unscaled
from stepscope.capture.trial import losses as losses_module
from stepscope.capture.trial.losses import Losses
from stepscope.protocol.run_folder import LOSSES_FILE


@pytest.fixture
def losses(tmp_path: Path) -> Iterator[Losses]:
    guard = Guard()
    remember_unscaled(guard)
    made = Losses(guard, torch)
    made.began(tmp_path)
    was = torch.autograd.backward
    yield made
    assert guard.is_on
    guard.off()
    assert torch.autograd.backward is not was


def kept(losses: Losses, folder: Path) -> list[Any]:
    losses.ended()
    told = json.loads(
        (folder / LOSSES_FILE).read_text(encoding="utf-8"), parse_constant=pytest.fail
    )
    assert len(told["ns"]) == len(told["loss"])
    assert told["ns"] == sorted(told["ns"])
    return list(told["loss"])


def test_each_pass_is_kept_and_what_is_not_finite_is_a_word(losses: Losses, tmp_path: Path) -> None:
    weight = nn.Parameter(torch.tensor(2.0))
    for factor in (1.0, math.nan, math.inf, -math.inf, 0.5):
        torch.autograd.backward(weight * factor)
    assert kept(losses, tmp_path) == [2.0, "nan", "inf", "-inf", 1.0]


def test_a_scaled_loss_is_kept_unscaled_and_one_of_many_numbers_is_not(
    losses: Losses, tmp_path: Path
) -> None:
    weight = nn.Parameter(torch.ones(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    torch.autograd.backward(scaler.scale(weight.sum()))
    torch.autograd.backward(weight.mul(3), torch.ones(2))
    torch.autograd.backward([(weight * 2).sum(), weight.sum()])
    torch.autograd.backward(weight.sum().reshape(1, 1))
    assert kept(losses, tmp_path) == [2.0, 4.0, 2.0]


def test_a_number_on_a_device_is_copied_there_and_fetched_at_the_end(
    losses: Losses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fake devices' tensors stay where they are until the end: no pass asks for a number."""
    asked: list[str] = []

    class OnDevice:
        """A loss that says when somebody waits for it."""

        device = type("Device", (), {"type": "xpu"})()

        def __init__(self, value: float) -> None:
            self.value = value

        def to(self, *_: Any, copy: bool = False) -> torch.Tensor:
            assert copy
            return torch.tensor(self.value)

        def __float__(self) -> float:
            asked.append("waited")
            return self.value

    made = iter(range(1000))
    monkeypatch.setattr(losses_module, "loss_of", lambda *_: OnDevice(float(next(made))))
    monkeypatch.setattr(losses_module, "FOLD", 4)
    weight = nn.Parameter(torch.tensor(1.0))
    for _ in range(10):
        torch.autograd.backward(weight * 1)
    assert not asked
    assert losses._values == [None] * 10
    assert kept(losses, tmp_path) == [float(number) for number in range(10)]


def test_many_passes_are_thinned_and_keep_their_order(
    losses: Losses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses_module, "MAX_KEPT", 8)
    weight = nn.Parameter(torch.tensor(1.0))
    for number in range(40):
        torch.autograd.backward(weight * number)
    told = kept(losses, tmp_path)
    assert len(told) < 8
    assert told == sorted(told)
    assert told[0] == 0
    assert told[-1] > 30


def test_what_a_strange_tensor_raises_costs_one_number_alone(
    losses: Losses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was, strange = real_loss_of, [True]

    def loss_of(given: Any, roots: Any) -> Any:
        if strange.pop() if strange else False:
            raise RuntimeError("not yours")
        return was(given, roots)

    monkeypatch.setattr(losses_module, "loss_of", loss_of)
    weight = nn.Parameter(torch.tensor(3.0))
    torch.autograd.backward(weight * 1)
    torch.autograd.backward(weight * 2)
    assert kept(losses, tmp_path) == [6.0]
    assert weight.grad == 3.0
