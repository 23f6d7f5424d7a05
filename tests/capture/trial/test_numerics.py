"""Digests and norms, against ones made another way."""

from __future__ import annotations

import hashlib
import importlib
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
from stepscope.capture.losses import remember_unscaled
from stepscope.capture.trial.numerics import Numerics, digest, total_norm
from stepscope.capture.trial.same_start import add_digest
from stepscope.experiments.trials.record import _numerics
from stepscope.protocol.run_folder import NUMERICS_FILE


def of(batch: object) -> str:
    into = hashlib.sha256()
    add_digest(torch, into, batch)
    return into.hexdigest()


def test_batches_differ_by_values_order_shape_and_kind() -> None:
    x = torch.arange(6.0)
    batches = [
        [x, 1], [1, x], [x, 2], [x.view(2, 3), 1], [x.double(), 1], {"x": x}, {"y": x},
        [x.flip(0), 1], [x], ["a"], [b"a"], [None],
    ]  # fmt: skip
    assert len({of(batch) for batch in batches}) == len(batches)
    assert of([x.view(2, 3).t().contiguous().t(), 1]) == of([x.view(2, 3), 1])
    assert of({"a": [x, (x, "name")]}) == of({"a": [x.clone(), (x.clone(), "name")]})


def test_a_batch_within_itself_comes_to_an_end() -> None:
    batch: list[object] = []
    batch.extend([batch, batch])
    assert of(batch) == of(batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_a_digest_sees_one_bit_and_differences_that_cancel(dtype: torch.dtype) -> None:
    tensor = torch.linspace(1, 2, 64).to(dtype)

    def bits(of: torch.Tensor) -> torch.Tensor:
        plain = torch.view_as_real(of).view(-1) if of.is_complex() else of
        return plain.view({4: torch.int32, 2: torch.int16, 8: torch.int64}[plain.element_size()])

    base = digest(torch, [tensor])
    assert digest(torch, [tensor.clone()]) == base
    moved = tensor.clone()
    bits(moved)[5] += 1
    assert digest(torch, [moved]) != base
    bits(moved)[9] -= 1
    assert digest(torch, [moved]) != base
    assert digest(torch, [tensor[:32], tensor[32:]]) != base


def test_the_norm_is_that_of_all_together() -> None:
    torch.manual_seed(3)
    tensors = [torch.randn(5, 7), torch.randn(11).bfloat16(), torch.randn(3, dtype=torch.float64)]
    expected = torch.cat([tensor.double().flatten() for tensor in tensors]).norm()
    assert float(total_norm(torch, tensors)) == pytest.approx(float(expected), rel=1e-6)
    assert total_norm(torch, []) is None


@pytest.fixture
def numerics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Numerics]:
    monkeypatch.delenv("RANK", raising=False)
    guard = Guard()
    remember_unscaled(guard)
    made = Numerics(guard, torch)
    yield made
    assert guard.is_on
    guard.off()


def test_a_step_of_several_passes_has_their_mean(numerics: Numerics, tmp_path: Path) -> None:
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    numerics.began(tmp_path)
    for scale in (1.0, 3.0):
        torch.autograd.backward(scale * weight.sum())
    optimizer.step()
    numerics.stepped(1)
    numerics.stepped(2)
    numerics.ended()
    one, two = [
        json.loads(line)
        for line in (tmp_path / NUMERICS_FILE).read_text(encoding="utf-8").splitlines()
    ]
    assert one == [1, pytest.approx((7 + 21) / 2), pytest.approx(32**0.5), None, None]
    # A step without a pass has no loss, which is not a loss of 0.
    assert two[:3] == [2, None, None]
    assert two[4] == pytest.approx(5.0)


def test_a_scaled_loss_is_told_unscaled(numerics: Numerics, tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    numerics.began(tmp_path)
    torch.autograd.backward(scaler.scale(weight.sum()))
    scaler.step(optimizer)
    numerics.stepped(0)
    row = json.loads((tmp_path / NUMERICS_FILE).read_text(encoding="utf-8"))
    assert row[1] == 2.0
    assert row[2] == pytest.approx(2**0.5)


def test_a_loss_that_is_no_number_is_told_and_is_still_json(
    numerics: Numerics, tmp_path: Path
) -> None:
    """Training that diverged is what the check of numerics is there to find: null would be "no loss
    was seen"."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    numerics.began(tmp_path)
    for step, scale in enumerate((math.nan, math.inf, -math.inf)):
        weight.data.fill_(1.0)
        torch.autograd.backward(scale * weight.sum())
        optimizer.step()
        optimizer.zero_grad()
        numerics.stepped(step)
    numerics.ended()
    text = (tmp_path / NUMERICS_FILE).read_text(encoding="utf-8")
    written = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [row[1] for row in written] == ["nan", "inf", "-inf"]
    read = _numerics(tmp_path / NUMERICS_FILE)
    assert [str(row.loss) for row in read] == ["nan", "inf", "-inf"]


def test_rows_of_numerics_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / NUMERICS_FILE
    lines = [
        '["x", 1.0, 1.0, null, null]',
        '[1, {}, "much", 7, true]',
        "[2, NaN, 1e999, null, -1]",
        "[3,",
        "7",
        "[" * 9999,
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    first, second = _numerics(path)
    assert (first.loss, first.grad_norm, first.parameters) == (None, None, None)
    assert math.isnan(second.loss or 0.0)
    assert second.grad_norm == math.inf


def test_compiled_code_is_told_to_draw_as_uncompiled_code_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else dropout makes every loss of a compiled model another one."""
    config: Any = importlib.import_module("torch._inductor.config")
    assert not config.fallback_random
    plain = lambda model: model  # noqa: E731 - what torch.compile does is not asked here
    monkeypatch.setattr(torch, "compile", plain)
    guard = Guard()
    Numerics(guard, torch)
    try:
        model = nn.Linear(2, 2)
        assert torch.compile(model) is model
        assert config.fallback_random
    finally:
        guard.off()
        config.fallback_random = False
    assert torch.compile is plain
