"""A diagnosis in an experiment tracker: the verdict, step times, the parts of a step and MFU.

stepscope.log_to(wandb.run)
stepscope.log_to(mlflow.active_run(), "traces/", report="report.html")

The tracker is known by what it can do, not by its package: none is imported that is not there.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from stepscope.core.diagnosis import Diagnosis, unjudged_fixes
from stepscope.core.facts import RankFacts
from stepscope.errors import InputError, UsageError
from stepscope.tables.run import Run, load

PREFIX = "stepscope"
VERDICT, BOUND = f"{PREFIX}/verdict", f"{PREFIX}/bound"
REPORT_NAME = f"{PREFIX}-report"


class Scalar(Struct, frozen=True, kw_only=True):
    """One number for a tracker."""

    name: str
    value: float
    step: int | None = None
    """The measured step it is of, counted from 1; None for a figure of the whole run."""


def scalars(subject: Run | Diagnosis) -> Iterator[Scalar]:
    """What was measured, in milliseconds and shares. What was not is left out, never 0."""
    diagnosis = subject.diagnosis if isinstance(subject, Run) else subject
    whole: dict[str, float | None] = {
        "step_ms": diagnosis.step.ms,
        "profiled_step_ms": diagnosis.step.profiled_ms,
        "num_findings": float(len(diagnosis.findings)) if _is_judged(diagnosis) else None,
        **{f"share/{bound}": share for bound, share in diagnosis.verdict.shares.items()},
        **{
            f"finding/{finding.code}/predicted_step_ms": finding.predicted_step_ms
            for finding in diagnosis.findings
        },
    }
    yield from (
        Scalar(name=f"{PREFIX}/{name}", value=value)
        for name, value in whole.items()
        if value is not None
    )
    for rank in diagnosis.facts.ranks:
        yield from _of_rank(rank)


def _is_judged(diagnosis: Diagnosis) -> bool:
    is_replayed = diagnosis.replay is not None
    is_told = is_replayed and unjudged_fixes(diagnosis.abstentions) is None
    return bool(diagnosis.findings) or is_told


def _of_rank(rank: RankFacts) -> Iterator[Scalar]:
    start = f"{PREFIX}/rank{rank.rank}"
    if rank.steps.is_step_interval:
        for number, ns in enumerate(rank.steps.step_intervals, 1):
            yield Scalar(name=f"{start}/step_ms", value=ns / 1e6, step=number)
    parts = rank.typical_parts_ns or {}
    unsplit = (
        rank.partition is not None
        and not rank.partition.waits_split
        and parts.get("comms_transfer", 0) > 0
    )
    for part, part_ns in parts.items():
        if part != "comms_wait" or not unsplit:
            yield Scalar(name=f"{start}/partition_ms/{part}", value=part_ns / 1e6)
    if rank.roofline.mfu is not None:
        yield Scalar(name=f"{start}/mfu", value=rank.roofline.mfu)


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
    file = _report(report)
    log = _logger(tracker)
    diagnosis = _diagnosis(run, step_ms)
    facts = diagnosis.facts
    if facts.run is not None and facts.run.exit_code is None and not facts.ranks:
        # Inside the job that is recorded an exception would end its training.
        warnings.warn(
            f"{facts.run.path}: nothing is logged: no step of it is recorded, and its end is not "
            "written. Call log_to when the job has ended.",
            stacklevel=2,
        )
        return
    log(tracker, diagnosis, file)


def log_to_tensorboard(
    subject: Run | Diagnosis, log_dir: str | Path, *, report: str | Path | None = None
) -> None:
    """The same as an event file in `log_dir`.

    A report is copied beside it, since TensorBoard has no artifacts.
    """
    file = _report(report)
    writer = _summary_writer()(log_dir=str(log_dir))
    try:
        log_to(writer, subject)
    finally:
        writer.close()
    if file is not None:
        shutil.copy(file, log_dir)


def log_to_wandb(
    subject: Run | Diagnosis, run: Any = None, *, report: str | Path | None = None
) -> None:
    """The same in a Weights & Biases run, the current one where none is given."""
    run = _tracker("wandb").run if run is None else run
    if run is None:
        raise UsageError(
            "no Weights & Biases run is open: call wandb.init() first, or give one with run="
        )
    log_to(run, subject, report=report)


def log_to_mlflow(
    subject: Run | Diagnosis, run_id: str | None = None, *, report: str | Path | None = None
) -> None:
    """The same in an MLflow run, the active one where none is named."""
    _to_mlflow(_tracker("mlflow"), _diagnosis(subject, None), _report(report), run_id)


def _report(path: str | Path | None) -> Path | None:
    """The report, looked for before anything is logged."""
    if path is None:
        return None
    if not Path(path).is_file():
        raise InputError(
            f"{path} is no file, so that it cannot be logged. `stepscope report` writes one"
        )
    return Path(path)


def _summary_writer() -> Any:
    """torch's writer, else tensorboardX's."""
    for module in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            return importlib.import_module(module).SummaryWriter
        except (ImportError, AttributeError):
            continue
    raise UsageError(
        "logging to TensorBoard needs a writer. Install one: pip install torch tensorboard, or "
        "pip install tensorboardX"
    )


def _tracker(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise UsageError(
            f"logging to {module} needs it to be installed: pip install {module}"
        ) from problem


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


def _to_wandb(tracker: Any, diagnosis: Diagnosis, file: Path | None) -> None:
    """Steps count on an axis of their own: the run's own has long gone past them."""
    tracker.define_metric(f"{PREFIX}/step")
    tracker.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
    tracker.summary.update(_whole(diagnosis))
    for step, figures in _by_step(diagnosis):
        tracker.log({f"{PREFIX}/step": step, **figures})
    if file is not None and _can(tracker, "log_artifact"):
        tracker.log_artifact(str(file), name=REPORT_NAME, type="report")


def _to_mlflow(
    tracker: Any, diagnosis: Diagnosis, file: Path | None, run_id: str | None = None
) -> None:
    given = {} if run_id is None else {"run_id": run_id}
    active = getattr(tracker, "active_run", None)
    if run_id is None and callable(active):
        open_run = active()
        if open_run is None:
            raise UsageError("no MLflow run is active: open one with mlflow.start_run()")
        given = {"run_id": open_run.info.run_id}
    for scalar in scalars(diagnosis):
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


def _to_mlflow_run(tracker: Any, diagnosis: Diagnosis, file: Path | None) -> None:
    """A run of MLflow writes nothing by itself: the package that made it does."""
    package = sys.modules.get("mlflow")
    if package is None:
        raise UsageError(
            "this is a run of MLflow, and mlflow is not imported here: import it first"
        )
    _to_mlflow(package, diagnosis, file, tracker.info.run_id)


def _to_writer(tracker: Any, diagnosis: Diagnosis, _: Path | None) -> None:
    for scalar in scalars(diagnosis):
        tracker.add_scalar(scalar.name, scalar.value, scalar.step or 0)
    tracker.add_text(VERDICT, diagnosis.verdict.summary)


def _to_log(tracker: Any, diagnosis: Diagnosis, _: Path | None) -> None:
    tracker.log(_whole(diagnosis))


def _whole(diagnosis: Diagnosis) -> dict[str, float | str]:
    """The verdict, and the figures that are of the run and not of one step."""
    values = scalars(diagnosis)
    figures = {scalar.name: scalar.value for scalar in values if scalar.step is None}
    return {VERDICT: diagnosis.verdict.summary, BOUND: diagnosis.verdict.bound, **figures}


def _by_step(diagnosis: Diagnosis) -> Iterable[tuple[int, dict[str, float]]]:
    by_step: dict[int, dict[str, float]] = {}
    for scalar in scalars(diagnosis):
        if scalar.step is not None:
            by_step.setdefault(scalar.step, {})[scalar.name] = scalar.value
    return sorted(by_step.items())
