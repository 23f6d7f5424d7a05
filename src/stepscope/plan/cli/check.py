"""What `plan --check FILE` does: a framework's configuration, priced."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.report import put_document, put_or_write
from stepscope.errors import UsageError
from stepscope.plan.catalog import find_model
from stepscope.plan.cli.job import cluster_of
from stepscope.plan.cli.options import Options
from stepscope.plan.framework import find_framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.check import check, framework_of
from stepscope.plan.launch.read import read_settings
from stepscope.plan.launch.settings import Settings
from stepscope.plan.optimizers import OPTIMIZERS
from stepscope.plan.report.check import check_document, check_json

WRONG = 1
"""Exit code where the configuration cannot run or does not fit."""


def run_check(options: Options, path: Path) -> int:
    output = options.output
    if options.launched.emit is not None or options.questions.recorded_memory is not None:
        raise UsageError("--check reads one configuration: leave out --emit and --recorded-memory")
    if output.format == "html":
        raise UsageError("--check has text and JSON: leave out --format html")
    settings = read_settings(path)
    job, missing = job_of_settings(options, settings)
    checked = check(settings, job)
    if output.format == "json":
        put_or_write(check_json(checked, missing) + "\n", output.out)
    else:
        put_document(check_document(checked, missing), output.out)
    return 0 if checked.runs else WRONG


def job_of_settings(
    options: Options, settings: Settings
) -> tuple[TrainingJob | None, tuple[str, ...]]:
    """The job that the file and the options describe; None with what is missing of it."""
    model, word = settings.model, options.model or settings.model_word
    if word is not None:
        model = find_model(word)
    seq = options.seq or settings.seq_len
    needed = {"--model": model, "--cluster": options.cluster, "--seq": seq}
    missing = tuple(name for name, value in needed.items() if value is None)
    if model is None or options.cluster is None or seq is None:
        return None, missing
    cluster, _ = cluster_of(options.cluster, options.hardware)
    framework = find_framework(options.framework or settings.framework)
    assert framework is not None
    batch = settings.global_batch or options.global_batch
    return TrainingJob(
        model=model,
        cluster=cluster,
        seq_len=seq,
        global_batch=batch or cluster.num_devices,
        precision=settings.precision or options.precision,
        framework=framework_of(settings, framework),
        optimizer=OPTIMIZERS[settings.optimizer or options.optimizer],
        is_adapter=options.adapters,
    ), ()
