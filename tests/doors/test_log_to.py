"""One line for a tracker: what each is told, by stand-ins, and by MLflow and W&B themselves."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import stepscope
from stepscope.core.run import RunFacts
from stepscope.doors.trackers import scalars
from stepscope.errors import InputError, UsageError
from stepscope.rules.without_trace import diagnose_without_trace
from stepscope.tables.run import Run, load
from tests.installed import once_unless, package
from tests.shared_data import DEMO, ROOT

BLOCK = 32 * 1024


@pytest.fixture(scope="module")
def run() -> Run:
    return load(DEMO, 65.48, cache=False)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text("<p>hello</p>")
    return path


class FakeWandbRun:
    """What a run of Weights & Biases can do, as far as it is asked."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.axes: list[tuple[str, str | None]] = []
        self.artifacts: list[tuple[str, str, str]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def log_artifact(self, path: str, name: str, type: str) -> None:  # noqa: A002
        self.artifacts.append((path, name, type))


def test_a_run_that_goes_on_is_not_logged_as_one_without_faults() -> None:
    """Right after `wandb.init()`, inside the job that is recorded, there is nothing to tell yet."""
    begun = RunFacts(path="runs/now", command=("train",), exit_code=None, ranks=())
    diagnosis = diagnose_without_trace(begun)
    fake = FakeWandbRun()
    with pytest.warns(UserWarning, match=r"runs/now: nothing is logged.*\bended\b"):
        stepscope.log_to(fake, diagnosis)
    assert (fake.summary, fake.logged) == ({}, [])
    ended = diagnose_without_trace(replace(begun, exit_code=0))
    stepscope.log_to(fake, ended)
    assert "stepscope/verdict" in fake.summary
    assert "stepscope/num_findings" not in fake.summary


def test_a_run_of_wandb_gets_verdict_figures_and_report(run: Run, report: Path) -> None:
    fake = FakeWandbRun()
    stepscope.log_to(fake, run, report=report)
    whole = {scalar.name: scalar.value for scalar in scalars(run) if scalar.step is None}
    verdict = run.diagnosis.verdict
    said = {"stepscope/verdict": verdict.summary, "stepscope/bound": verdict.bound}
    assert fake.summary == whole | said
    assert [values["stepscope/step"] for values in fake.logged] == [1, 2]
    assert fake.axes[-1] == ("stepscope/*", "stepscope/step")
    assert fake.artifacts == [(str(report), "stepscope-report", "report")]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of an offline file: a header, then LevelDB's log of 32 KiB blocks, in which a
    record is whole (1) or in pieces (2, 3, 4)."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        size, piece = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if piece in (1, 4):
            yield whole
            whole = b""


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_what_it_was_told(
    run: Run, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb, kind = package("wandb"), package("wandb.proto.wandb_internal_pb2").Record
    monkeypatch.chdir(tmp_path)
    with wandb.init(mode="offline", dir=tmp_path) as tracked:
        stepscope.log_to(tracked, run, report=report)
    # Its service writes the file, and has written all of it when it has ended.
    wandb.teardown()
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = [kind.FromString(data) for data in wandb_records(path.read_bytes())]
    summary, logged, artifacts = {}, [], []
    for record in records:
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        figures = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        if "stepscope/step" in figures:
            logged.append((figures["stepscope/step"], figures["stepscope/rank0/step_ms"]))
        artifacts += [record.artifact.name, record.request.log_artifact.artifact.name]
    whole = {scalar.name: scalar.value for scalar in scalars(run) if scalar.step is None}
    verdict = run.diagnosis.verdict
    said = {"stepscope/verdict": verdict.summary, "stepscope/bound": verdict.bound}
    assert {name: summary.get(name) for name in whole | said} == whole | said
    steps = [each for each in scalars(run) if each.name == "stepscope/rank0/step_ms"]
    assert logged == [(each.step, each.value) for each in steps]
    assert "stepscope-report" in artifacts


def test_a_writer_and_a_plain_log_are_known_by_what_they_can(run: Run) -> None:
    figures: list[tuple[str, float, int]] = []
    texts: list[tuple[str, str]] = []
    writer = SimpleNamespace(
        add_scalar=lambda name, value, step: figures.append((name, value, step)),
        add_text=lambda name, text: texts.append((name, text)),
    )
    stepscope.log_to(writer, run.diagnosis)
    assert figures == [(each.name, each.value, each.step or 0) for each in scalars(run)]
    assert texts == [("stepscope/verdict", run.diagnosis.verdict.summary)]
    told: list[dict[str, Any]] = []
    stepscope.log_to(SimpleNamespace(log=told.append), run)
    assert told[0]["stepscope/bound"] == "data"
    assert told[0]["stepscope/step_ms"] == 65.48


def test_it_takes_paths_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tests" / "kept" / "run", tmp_path / "stepscope-runs" / "first")
    told: list[dict[str, Any]] = []
    stepscope.log_to(SimpleNamespace(log=told.append))
    stepscope.log_to(SimpleNamespace(log=told.append), tmp_path / "stepscope-runs" / "first")
    assert told[0] == told[1]
    assert told[0]["stepscope/step_ms"] > 0


@pytest.mark.parametrize("tracker", [None, object(), 3, "wandb", SimpleNamespace(info=None)])
def test_what_is_no_tracker_is_said_before_anything_is_read(tracker: Any) -> None:
    with pytest.raises(UsageError, match="tracker"):
        stepscope.log_to(tracker, "no-such-trace.json")


def test_a_report_that_is_not_there_is_said_before_anything_is_logged(
    run: Run, tmp_path: Path
) -> None:
    fake = FakeWandbRun()
    with pytest.raises(InputError, match=r"nothing\.html"):
        stepscope.log_to(fake, run, report=tmp_path / "nothing.html")
    assert fake.logged == []
    assert fake.summary == {}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", once_unless("mlflow", ["run", "package"]))
def test_mlflow_keeps_what_it_was_told(
    run: Run, report: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = package("mlflow")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with mlflow.start_run() as active:
        stepscope.log_to(active if kind == "run" else mlflow, run, report=report)
    client = mlflow.MlflowClient()
    kept = client.get_run(active.info.run_id)
    assert kept.data.metrics["stepscope/step_ms"] == 65.48
    assert kept.data.tags["stepscope/verdict"] == run.diagnosis.verdict.summary
    history = client.get_metric_history(active.info.run_id, "stepscope/rank0/step_ms")
    assert [each.step for each in history] == [1, 2]
    assert [each.path for each in client.list_artifacts(active.info.run_id)] == ["report.html"]
    with mlflow.start_run() as other:
        stepscope.log_to(active, run)
    assert "stepscope/step_ms" not in client.get_run(other.info.run_id).data.metrics


def test_a_run_of_mlflow_without_mlflow_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    with pytest.raises(UsageError, match="import it first"):
        stepscope.log_to(SimpleNamespace(info=SimpleNamespace(run_id="abc")), run)
