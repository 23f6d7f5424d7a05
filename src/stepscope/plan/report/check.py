"""A framework's configuration: what it will take and what is wrong with it, in words and as
JSON."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.codec import encode
from stepscope.plan.contract.launch import ERROR, CheckContract, Fault, Range
from stepscope.plan.launch.check import Checked
from stepscope.plan.layout_words import spelled_out
from stepscope.plan.report.text import name_section
from stepscope.plan.report.words import gib, job_words, seconds
from stepscope.report.document.blocks import Block, Facts, Headline, Items, Section, as_document
from stepscope.report.words import percent, plural

KINDS = {"deepspeed": "a DeepSpeed configuration", "torchtitan": "a torchtitan configuration",
         "megatron": "Megatron-LM's flags", "torch": "what --emit wrote for PyTorch",
         "transformers": "arguments of transformers' Trainer"}  # fmt: skip


@as_document
def check_document(checked: Checked, missing: tuple[str, ...]) -> Iterator[Block]:
    yield Headline(command="stepscope plan", text=_headline(checked), about=(_about(checked),))
    if checked.faults:
        lines = tuple(map(_line, checked.faults))
        aside = "prices are planned, one change at a time"
        yield Section(title="What is wrong", aside=aside, blocks=(Items(lines),))
    if checked.layout is not None:
        yield name_section(checked.layout)
    if checked.step is not None and checked.memory is not None:
        facts = (("step", _range(checked.step, seconds)), ("memory", _range(checked.memory, gib)))
        aside = "low and high hold four fifths of published results"
        yield Section(title="What it takes", aside=aside, blocks=(Facts(facts),))
    notes = list(checked.notes)
    if missing:
        notes.append(f"nothing is estimated: give {' and '.join(missing)}")
    if notes:
        yield Section(title="Notes", blocks=(Items(tuple(notes)),))


def _headline(checked: Checked) -> str:
    settings, job = checked.settings, checked.job
    errors = sum(fault.kind == "error" for fault in checked.faults)
    if errors and checked.step is None:
        return f"{settings.where} cannot run: {plural(errors, 'error')}."
    if checked.step is None or checked.memory is None or job is None:
        return f"{settings.where}: {plural(len(checked.faults), 'fault')} that can be seen in it."
    fit = f"{gib(checked.memory.value)} of {gib(job.cluster.memory_bytes)}"
    mfu = "" if checked.mfu is None else f", {percent(checked.mfu)} MFU"
    verdict = "" if checked.fits else " It does not fit."
    best = next((fault for fault in checked.faults if fault.seconds), None)
    gain = ""
    if best is not None and best.seconds is not None:
        gain = f" Most to gain: {best.code}, {seconds(best.seconds)} a step."
    return f"{checked.layout}: {seconds(checked.step.value)} a step{mfu}, {fit}.{verdict}{gain}"


def _about(checked: Checked) -> str:
    kind = KINDS[checked.settings.kind]
    where = f"{checked.settings.where}, {kind}"
    return f"{where}." if checked.job is None else f"{where}: {job_words(checked.job)}"


def _line(fault: Fault) -> str:
    price = ""
    if fault.seconds is not None:
        price = f" ({seconds(fault.seconds)} a step)"
    elif fault.num_bytes is not None:
        compared = "too much" if fault.kind == ERROR else "less"
        price = f" ({gib(fault.num_bytes)} {compared})"
    fix = f" -> {fault.fix}" if fault.fix else ""
    return f"{fault.code}: {fault.what}{price}{fix}"


def _range(figure: Range, unit: object) -> str:
    assert callable(unit)
    return f"{unit(figure.value)} ({unit(figure.low)} to {unit(figure.high)})"


def check_json(checked: Checked, missing: tuple[str, ...]) -> str:
    job, layout = checked.job, checked.layout
    return encode(
        CheckContract(
            runs=checked.runs,
            fits=checked.fits,
            mfu=checked.mfu,
            faults=checked.faults,
            notes=checked.notes,
            file=checked.settings.where,
            kind=checked.settings.kind,
            model=None if job is None else job.model.name,
            cluster=None if job is None else job.cluster.name,
            framework=checked.settings.framework,
            layout=None if layout is None else str(layout),
            layout_words=None if layout is None else spelled_out(layout),
            step_s=checked.step,
            memory_bytes=checked.memory,
            missing=missing,
        )
    )
