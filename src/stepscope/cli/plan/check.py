"""What `plan --check FILE` does: a framework's configuration, priced."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepscope.cli.plan.options import Output
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.planner.job import TrainingJob
    from stepscope.planner.launch.settings import Settings

WRONG = 1
"""Exit code where the configuration cannot run or does not fit."""


def run_check(arguments: argparse.Namespace, output: Output) -> int:
    from stepscope.cli.report import put_document, put_or_write
    from stepscope.planner.launch.check import check
    from stepscope.planner.launch.read import read_settings
    from stepscope.report.plan.check import check_document, check_json

    if arguments.emit is not None or arguments.recorded_memory is not None:
        raise UsageError("--check reads one configuration: leave out --emit and --recorded-memory")
    if output.format == "html":
        raise UsageError("--check has text and JSON: leave out --format html")
    settings = read_settings(arguments.check)
    job, missing = job_of_settings(arguments, settings)
    checked = check(settings, job)
    if output.format == "json":
        put_or_write(check_json(checked, missing) + "\n", output.out)
    else:
        put_document(check_document(checked, missing), output.out)
    return 0 if checked.runs else WRONG


def job_of_settings(
    arguments: argparse.Namespace, settings: Settings
) -> tuple[TrainingJob | None, tuple[str, ...]]:
    """The job that the file and the options describe; None with what is missing of it."""
    from stepscope.cli.plan.job import cluster_of
    from stepscope.planner.catalog import find_model
    from stepscope.planner.framework import find_framework
    from stepscope.planner.job import TrainingJob
    from stepscope.planner.launch.check import framework_of
    from stepscope.planner.optimizers import OPTIMIZERS

    model, word = settings.model, arguments.model or settings.model_word
    if word is not None:
        model = find_model(word)
    seq = arguments.seq or settings.seq_len
    needed = {"--model": model, "--cluster": arguments.cluster, "--seq": seq}
    missing = tuple(name for name, value in needed.items() if value is None)
    if model is None or arguments.cluster is None or seq is None:
        return None, missing
    cluster, _ = cluster_of(arguments.cluster, arguments.hardware)
    framework = find_framework(arguments.framework or settings.framework)
    assert framework is not None
    batch = settings.global_batch or arguments.global_batch
    return TrainingJob(
        model=model,
        cluster=cluster,
        seq_len=seq,
        global_batch=batch or cluster.num_devices,
        precision=settings.precision or arguments.precision,
        framework=framework_of(settings, framework),
        optimizer=OPTIMIZERS[settings.optimizer or arguments.optimizer],
        is_adapter=arguments.adapters,
    ), ()
