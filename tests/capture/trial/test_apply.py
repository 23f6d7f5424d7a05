"""Settings applied on top of real objects of torch, in this process, and taken off again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed import need

need("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.install import begin, forget_session
from stepscope.capture.session import Session
from stepscope.capture.trial.applied import ALREADY, Applied
from stepscope.capture.trial.apply_flags import Flags
from stepscope.capture.trial.apply_loader import apply_to_loaders
from stepscope.capture.trial.apply_model import apply_to_models
from stepscope.capture.trial.apply_optimizer import apply_to_optimizers
from stepscope.capture.trial.session import TrialSession
from stepscope.protocol.options import Options

Lay = Callable[..., Applied]
DATA = TensorDataset(torch.arange(32.0))


class Counted(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class Shared(Counted):
    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        return iter(range(8) if worker is None else range(worker.id, 8, worker.num_workers))


@pytest.fixture
def lay() -> Iterator[Lay]:
    guard = Guard()

    def lay_over(**settings: Any) -> Applied:
        applied = Applied(settings)
        for part in (apply_to_loaders, apply_to_optimizers, apply_to_models):
            part(guard, torch, applied)
        return applied

    yield lay_over
    guard.off()


def test_loaders_get_legal_combinations(lay: Lay) -> None:
    applied = lay(num_workers=0, prefetch_factor=4, batch_size=8)
    loader = DataLoader(
        DATA, 2, num_workers=3, persistent_workers=True, timeout=5, multiprocessing_context="fork"
    )
    assert (loader.num_workers, loader.batch_size, loader.prefetch_factor, loader.timeout) == (
        0,
        8,
        None,
        0,
    )
    assert [len(batch) for (batch,) in loader] == [8] * 4
    own = DataLoader(DATA, batch_sampler=[[0, 1], [2]])
    assert [len(batch) for (batch,) in own] == [2, 1]
    assert applied.counts == {"num_workers": 2, "prefetch_factor": 0, "batch_size": 1}
    assert "without workers" in applied.reasons["prefetch_factor"]
    # The second loader had no workers by itself, but the first had.
    assert "num_workers" not in applied.reasons


@pytest.mark.parametrize(
    ("own", "prefetch", "workers", "depth"),
    [(0, None, 4, 8), (2, None, 4, 8), (4, 8, 4, 8), (12, 4, 12, 8), (12, 16, 12, 16)],
)
def test_a_setting_that_is_to_raise_never_takes_a_job_down(
    own: int, prefetch: int | None, workers: int, depth: int
) -> None:
    guard, applied = (
        Guard(),
        Applied({"num_workers": 4, "prefetch_factor": 8}, {"num_workers", "prefetch_factor"}),
    )
    apply_to_loaders(guard, torch, applied)
    try:
        loader = DataLoader(DATA, 2, num_workers=own, prefetch_factor=prefetch)
    finally:
        guard.off()
    assert (loader.num_workers, loader.prefetch_factor) == (workers, depth)
    assert applied.counts == {"num_workers": int(own <= 4), "prefetch_factor": int(depth == 8)}
    if own > 4:
        assert (
            applied.reasons["num_workers"] == "the job has 12 of its own, and 4 would not be more"
        )


def test_a_setting_by_its_value_is_what_was_asked_for(lay: Lay) -> None:
    applied = lay(num_workers=1)
    assert DataLoader(DATA, 2, num_workers=12).num_workers == 1
    assert applied.counts == {"num_workers": 1}


def test_an_iterable_dataset_is_not_given_to_many_workers(lay: Lay) -> None:
    applied = lay(num_workers=3)
    assert DataLoader(Counted()).num_workers == 0
    assert applied.counts["num_workers"] == 0
    assert "once per worker" in applied.reasons["num_workers"]
    assert DataLoader(Counted(), num_workers=1).num_workers == 1, "one worker shares with nobody"
    # One that has several knows how to share, or asks which worker it is in.
    assert DataLoader(Counted(), num_workers=2).num_workers == 3
    assert DataLoader(Shared()).num_workers == 3


def test_a_loader_that_the_job_gets_wrong_raises_what_it_would(lay: Lay) -> None:
    lay(batch_size=4)
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(DATA, shuffle=True, sampler=[1, 2])
    with pytest.raises(TypeError):
        DataLoader()  # type: ignore[call-arg]


def test_a_loader_that_fails_at_its_end_is_made_as_the_job_asked(
    lay: Lay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch warns of many workers when all else is set; where warnings are errors, that is a
    failure."""
    applied = lay(num_workers=7)

    def check(loader: DataLoader[Any]) -> None:
        if loader.num_workers:
            raise UserWarning("too many workers")

    monkeypatch.setattr(DataLoader, "check_worker_number_rationality", check)
    loader = DataLoader(DATA, 2)
    assert (loader.num_workers, len(list(loader))) == (0, 16)
    assert applied.counts["num_workers"] == 0
    assert "too many workers" in applied.reasons["num_workers"]


def test_optimizers_are_fused_once_whatever_their_parameters_come_in(lay: Lay) -> None:
    applied = lay(fused_optimizer=True)
    model = nn.Linear(4, 4)
    adam = torch.optim.AdamW(model.parameters(), foreach=True)
    groups = torch.optim.SGD([{"params": model.parameters(), "lr": 0.5}])
    assert [optimizer.param_groups[0]["fused"] for optimizer in (adam, groups)] == [True, True]
    assert adam.param_groups[0]["foreach"] is False
    assert len(groups.param_groups[0]["params"]) == 2
    assert applied.counts["fused_optimizer"] == 2
    torch.optim.RMSprop(model.parameters())
    assert applied.counts["fused_optimizer"] == 2


def test_an_optimizer_that_loads_a_checkpoint_stays_as_it_was_laid(lay: Lay) -> None:
    def made(**more: Any) -> torch.optim.Adam:
        weight = nn.Parameter(torch.ones(3))
        adam = torch.optim.Adam([weight], **more)
        weight.grad = torch.ones(3)
        adam.step()
        return adam

    saved = made(fused=False, foreach=True).state_dict()
    lay(fused_optimizer=True)
    resumed = made()
    resumed.load_state_dict(saved)
    assert resumed.param_groups[0]["fused"] is True
    assert not resumed.param_groups[0]["foreach"]
    resumed.step()
    # What was saved is the job's, and stays.
    assert saved["param_groups"][0]["fused"] is False
    own = torch.optim.Adam([nn.Parameter(torch.ones(3))], differentiable=True)
    own.load_state_dict(saved)
    assert own.param_groups[0]["fused"] is False


def test_an_optimizer_that_cannot_be_fused_is_made_as_it_was_asked_for(lay: Lay) -> None:
    applied = lay(fused_optimizer=True)
    learned = nn.Parameter(torch.zeros(3))
    exact = torch.optim.Adam(iter([learned]), differentiable=True)
    assert not exact.param_groups[0]["fused"]
    assert exact.param_groups[0]["params"][0] is learned
    assert "RuntimeError" in applied.reasons["fused_optimizer"]
    whole = torch.optim.SGD(
        [nn.Parameter(torch.zeros(3, dtype=torch.int32), requires_grad=False)], lr=0.1
    )
    assert not whole.param_groups[0]["fused"]
    assert "that has no fused kernels" in applied.reasons["fused_optimizer"]
    assert applied.counts["fused_optimizer"] == 0


def test_what_the_job_has_already_is_told(lay: Lay) -> None:
    applied = lay(fused_optimizer=True)
    torch.optim.SGD(nn.Linear(2, 2).parameters(), fused=True)
    assert applied.counts["fused_optimizer"] == 1
    assert applied.reasons["fused_optimizer"] == ALREADY


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What torch.compile is told, in place of what it would do."""
    told: list[dict[str, Any]] = []

    def compile_(model: Any = None, **more: Any) -> Any:
        told.append(more)
        return model

    monkeypatch.setattr(torch, "compile", compile_)
    return told


def test_models_are_compiled_where_the_job_does_not(
    lay: Lay, compiled: list[dict[str, Any]]
) -> None:
    applied = lay(compile_mode="reduce-overhead")
    model: Any = nn.Sequential(nn.Linear(4, 4))
    untrained: Any = nn.Linear(4, 4)
    torch.optim.SGD(model.parameters())
    assert compiled == [{"mode": "reduce-overhead"}]
    assert model._compiled_call_impl is not None
    assert untrained._compiled_call_impl is None
    assert model(torch.ones(1, 4)).shape == (1, 4)
    # The job compiles after all, and then it alone says what.
    torch.compile(model, mode="default", options=None)
    assert compiled[1] == {"mode": "reduce-overhead"}
    assert model._compiled_call_impl is None
    torch.optim.SGD(untrained.parameters())
    assert len(compiled) == 2
    assert applied.counts["compile_mode"] == 2


def test_a_job_that_compiles_can_be_kept_from_it(lay: Lay, compiled: list[dict[str, Any]]) -> None:
    applied = lay(compile_mode="off")
    assert applied.reasons == {"compile_mode": ALREADY}
    torch.compile(nn.Linear(2, 2), mode="max-autotune")
    assert compiled == [{"mode": "max-autotune", "disable": True}]
    assert applied.reasons == {}


def test_amp_casts_inside_the_model_alone(lay: Lay) -> None:
    applied = lay(amp="bf16")
    model = nn.Linear(8, 8, bias=False)
    exact = nn.functional.linear(torch.full((1, 8), 1.001), model.weight)
    torch.optim.SGD(model.parameters())
    seen = []
    handle = model.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    out = model(torch.full((1, 8), 1.001))
    handle.remove()
    assert seen == [torch.bfloat16]
    assert out.dtype == torch.float32
    assert not torch.equal(out, exact)
    assert torch.allclose(out, exact, atol=0.05)
    assert applied.counts["amp"] == 1


def test_amp_took_hold_of_no_model_that_is_never_called(lay: Lay) -> None:
    applied = lay(amp="bf16")
    model = nn.Sequential(nn.Linear(8, 8))
    torch.optim.SGD(model.parameters())
    assert model[0](torch.ones(1, 8)).dtype == torch.float32
    assert applied.counts["amp"] == 0
    assert "never called" in applied.reasons["amp"]
    model(torch.ones(1, 8))
    model(torch.ones(1, 8))
    assert (applied.counts["amp"], applied.reasons) == (1, {})


def test_convolutions_are_laid_out_in_channels_last(lay: Lay) -> None:
    applied = lay(channels_last=True)
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 3))
    weight = model[0].weight
    torch.optim.SGD(model.parameters())
    assert model[0].weight is weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert applied.counts["channels_last"] == 1


@pytest.fixture
def flags() -> Iterator[Callable[..., tuple[Flags, Applied]]]:
    guard = Guard()

    def lay_flags(**settings: Any) -> tuple[Flags, Applied]:
        applied = Applied(settings)
        session: Any = None
        laid = Flags(session, torch, applied)
        laid.apply(guard, torch, applied)
        return laid, applied

    yield lay_flags
    guard.off()
    torch.set_anomaly_enabled(False)


@pytest.mark.parametrize(("wanted", "was"), [(True, False), (False, False), (True, True)])
def test_anomaly_mode_is_told_by_what_the_job_had(
    wanted: bool, was: bool, flags: Callable[..., tuple[Flags, Applied]]
) -> None:
    torch.set_anomaly_enabled(was)
    laid, applied = flags(anomaly_mode=wanted)
    laid.settle()
    assert torch.is_anomaly_enabled() is wanted
    assert applied.counts["anomaly_mode"] == 1
    assert applied.reasons == ({} if wanted != was else {"anomaly_mode": ALREADY})


def test_a_variable_that_the_job_sets_itself_did_not_take_hold(
    flags: Callable[..., tuple[Flags, Applied]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    laid, applied = flags(launch_blocking=False)
    laid.settle()
    assert applied.counts["launch_blocking"] == 0
    assert (
        applied.reasons["launch_blocking"]
        == "CUDA_LAUNCH_BLOCKING was set to something else in the job"
    )
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    laid.settle()
    assert (applied.counts["launch_blocking"], applied.reasons) == (1, {})


def test_all_hooks_go_when_the_capture_does() -> None:
    held = [
        DataLoader.__init__,
        torch.optim.AdamW.__init__,
        torch.optim.Optimizer.__init__,
        torch.compile,
    ]
    guard, applied = (
        Guard(),
        Applied({"num_workers": 1, "fused_optimizer": True, "compile_mode": "default"}),
    )
    for part in (apply_to_loaders, apply_to_optimizers, apply_to_models):
        part(guard, torch, applied)
    mine = [
        DataLoader.__init__,
        torch.optim.AdamW.__init__,
        torch.optim.Optimizer.__init__,
        torch.compile,
    ]
    assert not any(one is other for one, other in zip(held, mine, strict=True))
    guard.off()
    assert [
        DataLoader.__init__,
        torch.optim.AdamW.__init__,
        torch.optim.Optimizer.__init__,
        torch.compile,
    ] == held


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (Options(), Session),
        (Options(max_steps=4), TrialSession),
        (Options(trial=True), TrialSession),
    ],
)
def test_a_plain_run_has_nothing_of_a_trial(
    options: Options, kind: type[Session], tmp_path: Path
) -> None:
    session = begin(tmp_path, options)
    try:
        assert type(session) is kind
    finally:
        session.guard.off()
        forget_session(session)
