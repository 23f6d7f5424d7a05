"""One line for an experiment tracker: the verdict and what was measured, into the run that is open.

stepscope.log_to(wandb.run)
stepscope.log_to(mlflow.active_run(), "traces/", report="report.html")

The tracker is known by what it can do, not by its package: none is imported that is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepscope.core.diagnosis import Diagnosis
from stepscope.errors import InputError, UsageError
from stepscope.notebook.run import Run, load
from stepscope.notebook.trackers import PREFIX, Scalar, scalars

VERDICT, BOUND = f"{PREFIX}/verdict", f"{PREFIX}/bound"
REPORT_NAME = f"{PREFIX}-report"


def log_to(
    tracker: Any,
    run: Run | Diagnosis | str | Path | Sequence[str | Path] = "last",
    *,
    step_ms: float | None = None,
    report: str | Path | None = None,
) -> None:
    """Logs the verdict and every measured figure of a run to a tracker's open run.

    `tracker` is a run of Weights & Biases, a run of MLflow or the package itself, a SummaryWriter,
    or whatever has a `log` that takes a dict. `run` is what `stepscope.load` takes, a Run or a
    Diagnosis; without one, the last run in stepscope-runs/. `report` is a file that goes along as
    an artifact, where the tracker has such. What was not measured is not logged.
    """
    file = None if report is None else Path(report)
    if file is not None and not file.is_file():
        raise InputError(
            f"{file} is no file, so that it cannot be logged. `stepscope report` writes one"
        )
    log = _logger(tracker)
    diagnosis = _diagnosis(run, step_ms)
    log(tracker, diagnosis, list(scalars(diagnosis)), file)


def _diagnosis(
    run: Run | Diagnosis | str | Path | Sequence[str | Path], step_ms: float | None
) -> Diagnosis:
    if isinstance(run, Diagnosis):
        return run
    if isinstance(run, Run):
        return run.diagnosis
    opened = load(run, step_ms)
    try:
        return opened.diagnosis
    finally:
        opened.close()


def _logger(tracker: Any) -> Any:
    if tracker is None:
        raise UsageError(
            "no run of a tracker is open: call wandb.init() or mlflow.start_run() first"
        )
    if _can(tracker, "log", "define_metric") and hasattr(tracker, "summary"):
        return _to_wandb
    if _can(tracker, "add_scalar", "add_text"):
        return _to_writer
    if _can(tracker, "log_metric", "set_tag"):
        return _to_mlflow
    if isinstance(getattr(getattr(tracker, "info", None), "run_id", None), str):
        return _to_mlflow_run
    if _can(tracker, "log"):
        return _to_log
    raise UsageError(
        f"{type(tracker).__name__} is no tracker that is known here: give a run of wandb or "
        "mlflow, a SummaryWriter, or something with a log(dict)"
    )


def _can(tracker: Any, *names: str) -> bool:
    return all(callable(getattr(tracker, name, None)) for name in names)


def _to_wandb(tracker: Any, diagnosis: Diagnosis, values: list[Scalar], file: Path | None) -> None:
    """Steps count on an axis of their own: the run's own has long gone past them."""
    tracker.define_metric(f"{PREFIX}/step")
    tracker.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
    tracker.summary.update(_whole(diagnosis, values))
    for step, figures in _by_step(values):
        tracker.log({f"{PREFIX}/step": step, **figures})
    if file is not None and _can(tracker, "log_artifact"):
        tracker.log_artifact(str(file), name=REPORT_NAME, type="report")


def _to_mlflow(
    tracker: Any,
    diagnosis: Diagnosis,
    values: list[Scalar],
    file: Path | None,
    run_id: str | None = None,
) -> None:
    given = {} if run_id is None else {"run_id": run_id}
    active = getattr(tracker, "active_run", None)
    if run_id is None and callable(active):
        open_run = active()
        if open_run is None:
            raise UsageError("no MLflow run is active: open one with mlflow.start_run()")
        given = {"run_id": open_run.info.run_id}
    for scalar in values:
        tracker.log_metric(scalar.name, scalar.value, step=scalar.step or 0, **given)
    # A tag goes to the active run; one that is another's is set by MLflow's client.
    client = getattr(tracker, "MlflowClient", None)
    for name, text in ((VERDICT, diagnosis.verdict.summary), (BOUND, diagnosis.verdict.bound)):
        if client is not None and given:
            client().set_tag(given["run_id"], name, text)
        else:
            tracker.set_tag(name, text)
    if file is not None and _can(tracker, "log_artifact"):
        tracker.log_artifact(str(file), **given)


def _to_mlflow_run(
    tracker: Any, diagnosis: Diagnosis, values: list[Scalar], file: Path | None
) -> None:
    """A run of MLflow writes nothing by itself: the package that made it does."""
    package = sys.modules.get("mlflow")
    if package is None:
        raise UsageError(
            "this is a run of MLflow, and mlflow is not imported here: import it first"
        )
    _to_mlflow(package, diagnosis, values, file, tracker.info.run_id)


def _to_writer(tracker: Any, diagnosis: Diagnosis, values: list[Scalar], _: Path | None) -> None:
    for scalar in values:
        tracker.add_scalar(scalar.name, scalar.value, scalar.step or 0)
    tracker.add_text(VERDICT, diagnosis.verdict.summary)


def _to_log(tracker: Any, diagnosis: Diagnosis, values: list[Scalar], _: Path | None) -> None:
    tracker.log(_whole(diagnosis, values))


def _whole(diagnosis: Diagnosis, values: list[Scalar]) -> dict[str, float | str]:
    """The verdict, and the figures that are of the run and not of one step."""
    figures = {scalar.name: scalar.value for scalar in values if scalar.step is None}
    return {VERDICT: diagnosis.verdict.summary, BOUND: diagnosis.verdict.bound, **figures}


def _by_step(values: list[Scalar]) -> Iterable[tuple[int, dict[str, float]]]:
    by_step: dict[int, dict[str, float]] = {}
    for scalar in values:
        if scalar.step is not None:
            by_step.setdefault(scalar.step, {})[scalar.name] = scalar.value
    return sorted(by_step.items())
