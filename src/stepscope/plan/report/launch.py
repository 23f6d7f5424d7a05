"""A layout's launch: what was written, the line that starts it, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import asdict

from stepscope.core.codec import encode
from stepscope.plan.contract.launch import LaunchContract
from stepscope.plan.contract.plan import Account
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.files import Launch, broken
from stepscope.plan.layout_words import spelled_out
from stepscope.plan.report.text import name_section
from stepscope.plan.report.words import gib, job_words, seconds
from stepscope.report.document.blocks import Block, Code, Headline, Items, Section, as_document


@as_document
def launch_document(
    job: TrainingJob,
    account: Account,
    launch: Launch,
    folder: Path | None,
    skipped: tuple[str, ...],
) -> Iterator[Block]:
    """Files in full where they were not written anywhere."""
    where = "" if folder is None else f" Written to {folder}."
    fit = f"{gib(account.memory_bytes)} of {gib(job.cluster.memory_bytes)}"
    fault = "" if account.fits else " It does not fit."
    text = f"{launch.layout} for {launch.target}: {seconds(account.step_s)} a step, {fit}."
    yield Headline(command="stepscope plan", text=f"{text}{fault}{where}", about=(job_words(job),))
    yield name_section(account.layout)
    yield Section(title="Launch", blocks=(Code(broken(launch.command)),))
    if folder is None:
        for file in launch.files:
            yield Section(title=file.name, blocks=(Code(tuple(file.text.splitlines())),))
    notes = (*launch.notes, *(f"faster, but {reason}" for reason in skipped))
    if notes:
        yield Section(title="Left to do", blocks=(Items(notes),))


def launch_json(
    job: TrainingJob,
    account: Account,
    launch: Launch,
    folder: Path | None,
    skipped: tuple[str, ...],
) -> str:
    return encode(
        LaunchContract(
            **asdict(launch),
            model=job.model.name,
            cluster=job.cluster.name,
            framework=job.framework.name,
            layout_words=spelled_out(account.layout),
            step_s=account.step_s,
            memory_bytes=account.memory_bytes,
            fits=account.fits,
            folder=None if folder is None else str(folder),
            skipped=skipped,
        )
    )
