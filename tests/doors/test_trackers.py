"""What the trackers are told, by stand-ins that write it down."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stepscope.core.facts import PARTS
from stepscope.doors.trackers import log_to_mlflow, log_to_tensorboard, log_to_wandb, scalars
from stepscope.errors import InputError, UsageError
from stepscope.tables.run import Run, load
from tests.installed import package
from tests.shared_data import DEMO, lab_trace


@pytest.fixture(scope="module")
def run() -> Run:
    return load(DEMO, 65.48, cache=False)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text("<p>hello</p>")
    return path


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    fake = ModuleType(name)
    vars(fake).update(contents)
    monkeypatch.setitem(sys.modules, name, fake)


def test_scalars_are_what_was_measured(run: Run) -> None:
    values = {(scalar.name, scalar.step): scalar.value for scalar in scalars(run)}
    rank = run.diagnosis.facts.ranks[0]
    assert values["stepscope/step_ms", None] == 65.48
    assert [values["stepscope/rank0/step_ms", n] for n in (1, 2)] == [
        ns / 1e6 for ns in rank.steps.step_intervals
    ]
    assert values["stepscope/rank0/mfu", None] == rank.roofline.mfu
    parts = [values[f"stepscope/rank0/partition_ms/{part}", None] for part in PARTS]
    assert sum(parts) == pytest.approx((rank.steps.step_interval_ns or 0) / 1e6)
    assert (
        values["stepscope/finding/serial-loader/predicted_step_ms", None]
        == run.diagnosis.findings[0].predicted_step_ms
    )
    assert list(scalars(run.diagnosis)) == list(scalars(run))


def test_what_was_not_measured_is_not_logged() -> None:
    path = lab_trace("ranks2/ddp_straggler.slow.rank0")
    names = {scalar.name for scalar in scalars(load(path, cache=False))}
    assert "stepscope/rank0/partition_ms/comms_transfer" in names
    assert "stepscope/rank0/partition_ms/comms_wait" not in names, (
        "one rank alone does not tell its waits"
    )


def test_tensorboard_gets_scalars_and_a_copy_of_the_report(
    run: Run, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []
    texts: list[tuple[str, str]] = []
    closed: list[bool] = []

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            Path(log_dir).mkdir()

        def add_scalar(self, tag: str, value: float, global_step: int) -> None:
            written.append((tag, value, global_step))

        def add_text(self, tag: str, text: str) -> None:
            texts.append((tag, text))

        def close(self) -> None:
            closed.append(True)

    module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    log_to_tensorboard(run, tmp_path / "logs", report=report)
    assert written == [(scalar.name, scalar.value, scalar.step or 0) for scalar in scalars(run)]
    assert texts == [("stepscope/verdict", run.diagnosis.verdict.summary)]
    assert closed == [True]
    assert (tmp_path / "logs" / "report.html").read_text() == "<p>hello</p>"


def test_tensorboardx_stands_in_for_torch(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags: list[str] = []
    writer = SimpleNamespace(
        add_scalar=lambda tag, value, step: tags.append(tag),
        add_text=lambda tag, text: None,
        close=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    module(monkeypatch, "tensorboardX", SummaryWriter=lambda log_dir: writer)
    log_to_tensorboard(run.diagnosis, tmp_path)
    assert "stepscope/step_ms" in tags


def test_tensorboard_files_can_be_read_back(run: Run, tmp_path: Path) -> None:
    loader = package("tensorboard.backend.event_processing.event_accumulator")
    log_to_tensorboard(run, tmp_path)
    events = loader.EventAccumulator(str(tmp_path)).Reload()
    assert [one.step for one in events.Scalars("stepscope/rank0/step_ms")] == [1, 2]


class FakeWandbRun:
    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []
        self.summary: dict[str, Any] = {}
        self.metrics: list[tuple[str, str | None]] = []
        self.artifacts: list[Any] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def log_artifact(self, path: str, name: str, type: str) -> None:  # noqa: A002
        self.artifacts.append((path, name, type))


def test_wandb_gets_steps_on_their_own_axis_a_summary_and_an_artifact(
    run: Run, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandbRun()
    module(monkeypatch, "wandb", run=fake)
    log_to_wandb(run, report=report)
    step_intervals = run.diagnosis.facts.ranks[0].steps.step_intervals
    assert fake.logged == [
        {"stepscope/step": i, "stepscope/rank0/step_ms": ns / 1e6}
        for i, ns in enumerate(step_intervals, 1)
    ]
    assert fake.metrics[-1] == ("stepscope/*", "stepscope/step")
    whole = {one.name: one.value for one in scalars(run) if one.step is None}
    verdict = run.diagnosis.verdict
    said = {"stepscope/verdict": verdict.summary, "stepscope/bound": verdict.bound}
    assert fake.summary == whole | said
    assert fake.artifacts == [(str(report), "stepscope-report", "report")]
    other = FakeWandbRun()
    log_to_wandb(run, other)
    assert other.logged == fake.logged
    assert other.artifacts == []


def test_mlflow_gets_metrics_and_an_artifact(
    run: Run, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics: list[tuple[str, float, int, str | None]] = []
    artifacts: list[tuple[str, str | None]] = []
    tags: list[str] = []
    client = SimpleNamespace(set_tag=lambda run_id, name, text: tags.append(f"{run_id} {name}"))
    module(
        monkeypatch,
        "mlflow",
        active_run=lambda: SimpleNamespace(info=SimpleNamespace(run_id="now")),
        MlflowClient=lambda: client,
        log_metric=lambda key, value, step, run_id: metrics.append((key, value, step, run_id)),
        log_artifact=lambda path, run_id: artifacts.append((path, run_id)),
    )
    log_to_mlflow(run, report=report)
    log_to_mlflow(run, "abc")
    wanted = [(scalar.name, scalar.value, scalar.step or 0) for scalar in scalars(run)]
    assert metrics == [(*scalar, "now") for scalar in wanted] + [
        (*scalar, "abc") for scalar in wanted
    ]
    assert artifacts == [(str(report), "now")]
    assert tags[:2] == ["now stepscope/verdict", "now stepscope/bound"]


def test_no_open_run_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "wandb", run=None)
    module(monkeypatch, "mlflow", active_run=lambda: None)
    with pytest.raises(UsageError, match=r"wandb\.init"):
        log_to_wandb(run)
    with pytest.raises(UsageError, match="start_run"):
        log_to_mlflow(run)


def test_a_missing_tracker_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "mlflow", "torch.utils.tensorboard", "tensorboardX"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="pip install wandb"):
        log_to_wandb(run)
    with pytest.raises(UsageError, match="pip install mlflow"):
        log_to_mlflow(run)
    with pytest.raises(UsageError, match="tensorboardX"):
        log_to_tensorboard(run, tmp_path)


def test_a_report_that_is_not_there_is_said_before_anything_is_logged(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandbRun()
    module(monkeypatch, "wandb", run=fake)
    with pytest.raises(InputError, match=r"nothing\.html"):
        log_to_wandb(run, report=tmp_path / "nothing.html")
    assert fake.logged == []
