"""What `plan --emit TARGET` does: the layout as files that start it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepscope.cli.printing import put
from stepscope.cli.report import put_document, put_or_write
from stepscope.errors import UsageError
from stepscope.plan.catalog import find_model
from stepscope.plan.cli.answer import answer
from stepscope.plan.cli.job import cluster_of
from stepscope.plan.cli.options import ALL, Options
from stepscope.plan.contract.plan import Account
from stepscope.plan.estimate import choice_of
from stepscope.plan.framework import find_framework
from stepscope.plan.job import OPTIMIZERS, TrainingJob
from stepscope.plan.launch.check import check, framework_of
from stepscope.plan.launch.emit import TARGETS, launch_of
from stepscope.plan.launch.files import Launch
from stepscope.plan.launch.read import read_settings
from stepscope.plan.launch.settings import Settings
from stepscope.plan.report.account import Plan
from stepscope.plan.report.check import check_document, check_json
from stepscope.plan.report.launch import launch_document, launch_json
from stepscope.plan.report.text import plan_document

NOTHING_FITS = 1


def run_emit(options: Options, target: str) -> int:
    output = options.output
    if options.questions.recorded_memory is not None:
        raise UsageError("--emit writes files, --recorded-memory compares: give one of the two")
    if output.format == "html":
        raise UsageError("--emit has text and JSON: leave out --format html")
    framework = options.framework
    if framework in (None, ALL):
        framework = TARGETS[target].framework
    plan = answer(replace(options, framework=framework), target)
    if plan.best is None and plan.explained is None:
        put_document(plan_document(plan), None)
        return NOTHING_FITS
    account, launch, skipped = chosen(plan, target)
    folder = output.out
    if folder is not None:
        write_files(launch, folder)
    if output.format == "json":
        put(launch_json(plan.training, account, launch, folder, skipped) + "\n")
    else:
        put_document(launch_document(plan.training, account, launch, folder, skipped), None)
    return 0 if account.fits else NOTHING_FITS


def chosen(plan: Plan, target: str) -> tuple[Account, Launch, tuple[str, ...]]:
    """The layout that was named, or the fastest that can be written there; and why faster ones
    could not."""
    accounts = plan.layouts if plan.explained is None else (plan.explained,)
    skipped: list[str] = []
    for account in accounts:
        try:
            launch = launch_of(target, plan.training, choice_of(plan.training, account.layout))
        except UsageError as problem:
            skipped.append(str(problem))
            continue
        return account, launch, tuple(skipped)
    raise UsageError(skipped[0])


def write_files(launch: Launch, folder: Path) -> None:
    """All of them, or none where one is there already."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file. --emit writes several: name a folder with --out")
    there = [file.name for file in launch.files if (folder / file.name).exists()]
    if there:
        raise UsageError(
            f"{folder} has {', '.join(there)} already and nothing is overwritten: name another "
            "folder with --out"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in launch.files:
            path = folder / file.name
            path.write_text(file.text, encoding="utf-8")
            if file.is_executable:
                path.chmod(0o755)
    except OSError as problem:
        raise UsageError(
            f"cannot write {folder}: {problem.strerror}. Name another folder with --out"
        ) from None


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
