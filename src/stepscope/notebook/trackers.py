"""A diagnosis in an experiment tracker: step times, the parts of a step and MFU as scalars, a
report beside them.

from stepscope.notebook.trackers import log_to_wandb
log_to_wandb(stepscope.load("traces/"), report="report.html")
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import RankFacts
from stepscope.errors import InputError, UsageError
from stepscope.notebook.run import Run

PREFIX = "stepscope"


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
        "num_findings": float(len(diagnosis.findings)),
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


def log_to_tensorboard(
    subject: Run | Diagnosis, log_dir: str | Path, *, report: str | Path | None = None
) -> None:
    """Scalars as an event file in `log_dir`.

    A report is copied beside it, since TensorBoard has no artifacts.
    """
    file = _report(report)
    writer = _summary_writer()(log_dir=str(log_dir))
    try:
        for scalar in scalars(subject):
            writer.add_scalar(scalar.name, scalar.value, scalar.step or 0)
    finally:
        writer.close()
    if file is not None:
        shutil.copy(file, log_dir)


def log_to_wandb(
    subject: Run | Diagnosis, run: Any = None, *, report: str | Path | None = None
) -> None:
    """Scalars in a Weights & Biases run, the current one where none is given; a report as an
    artifact.

    Steps count on an axis of their own, `stepscope/step`: the run's own has long gone past them.
    """
    file, wandb = _report(report), _tracker("wandb")
    run = wandb.run if run is None else run
    if run is None:
        raise UsageError(
            "no Weights & Biases run is open: call wandb.init() first, or give one with run="
        )
    run.define_metric(f"{PREFIX}/step")
    run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
    by_step: dict[int, dict[str, float]] = {}
    for scalar in scalars(subject):
        if scalar.step is None:
            run.summary[scalar.name] = scalar.value
        else:
            by_step.setdefault(scalar.step, {})[scalar.name] = scalar.value
    for step, values in sorted(by_step.items()):
        run.log({f"{PREFIX}/step": step, **values})
    if file is not None:
        artifact = wandb.Artifact(f"{PREFIX}-report", type="report")
        artifact.add_file(str(file))
        run.log_artifact(artifact)


def log_to_mlflow(
    subject: Run | Diagnosis, run_id: str | None = None, *, report: str | Path | None = None
) -> None:
    """Metrics in an MLflow run, the active one where none is named; a report as an artifact."""
    file, mlflow = _report(report), _tracker("mlflow")
    if run_id is None and mlflow.active_run() is None:
        raise UsageError(
            "no MLflow run is active: open one with mlflow.start_run(), or name one with run_id="
        )
    for scalar in scalars(subject):
        mlflow.log_metric(scalar.name, scalar.value, step=scalar.step or 0, run_id=run_id)
    if file is not None:
        mlflow.log_artifact(str(file), run_id=run_id)


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
