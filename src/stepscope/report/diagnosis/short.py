"""A diagnosis on one screen: the verdict, the bar of the step, three findings, and what to do next.

What it leaves out is in the whole view (`-v`) and in the report.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from stepscope.core.diagnosis import Diagnosis, Finding
from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.numbers import size_words
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.run import RunFacts
from stepscope.protocol.secrets import masked_words
from stepscope.protocol.settings import SETTINGS
from stepscope.report.diagnosis.auxiliary import weight_words
from stepscope.report.diagnosis.comms import late_ranks
from stepscope.report.diagnosis.out_of_memory import by_detail, failure_words
from stepscope.report.diagnosis.step import BAR_PARTS, part_words
from stepscope.report.diagnosis.view import (
    all_notes,
    damage_warnings,
    finding_title,
    headline,
    time_words,
    together_words,
)
from stepscope.report.diagnosis.whole_run import advice_words, whole_run_words
from stepscope.report.document.blocks import (
    Action,
    Block,
    Card,
    Document,
    Facts,
    Prose,
    Section,
    Segment,
    Stack,
    Warn,
)
from stepscope.report.units import ms, plural
from stepscope.rules.judge_job import FIXES

MOST_FINDINGS = 3
LEAST_SEGMENT = 0.01
"""Of the step, from which a part has its own place in the bar."""
MOST_STEADY = 0.8
"""Of the whole run, below which where the rest went is said on the first screen."""
FIXED_FROM_OUTSIDE = frozenset(code for setting in SETTINGS.values() for code in setting.fixes)

Commands = tuple[tuple[str, str], ...]
"""What for, and the command."""


def short_document(diagnosis: Diagnosis, commands: Commands = ()) -> Document:
    """One screen; `commands` end it."""
    return tuple(_blocks(diagnosis, commands))


def _blocks(diagnosis: Diagnosis, commands: Commands) -> Iterator[Block]:
    facts = diagnosis.facts
    yield from damage_warnings(all_notes(diagnosis))
    yield from _out_of_memory(diagnosis)
    yield headline(diagnosis)
    yield Prose(time_words(diagnosis.step))
    run = facts.whole_run
    if run is not None and run.productive_share < MOST_STEADY:
        yield Prose(f"The whole run: {whole_run_words(run)}", "quiet")
        for advice in run.advice[:1]:
            yield Action(advice_words(advice))
    if facts.ranks:
        if facts.comms is not None and len(facts.ranks) > 1:
            yield from late_ranks(diagnosis, facts.comms)
        yield from _step(facts.median_rank, is_alone=len(facts.ranks) == 1)
    elif facts.run is not None and not (facts.run.ranks or facts.run.exit_code):
        yield from map(Action, diagnosis.notes[-1:])
    yield from _faults(diagnosis)
    if commands:
        yield Section(title="Next", aside=_left_out(diagnosis), blocks=(Facts(commands),))


def _out_of_memory(diagnosis: Diagnosis) -> Iterator[Block]:
    """What ended the job comes before what makes it slow."""
    for report in by_detail(diagnosis.facts.out_of_memory)[:1]:
        yield Warn(f"Out of memory: {failure_words(report)}")
        for way in report.ways[:1]:
            frees = "" if way.frees_bytes is None else f": frees {size_words(way.frees_bytes)}"
            yield Action(f"{way.action}{frees}")


def _left_out(diagnosis: Diagnosis) -> str:
    num = len(all_notes(diagnosis))
    return f"{plural(num, 'note')} on what could not be judged: -v" if num else ""


def _step(rank: RankFacts, *, is_alone: bool) -> Iterator[Block]:
    """The median step as one bar."""
    parts = rank.typical_parts_ns
    total = 0 if parts is None else sum(parts.values())
    if rank.partition is None or parts is None or total <= 0:
        return
    on_host = rank.steps.where == "host"
    is_split = rank.partition.waits_split
    segments = [
        Segment(
            part_words(part, is_split=is_split, on_host=on_host), share, BAR_PARTS.get(part, "idle")
        )
        for part in PARTS
        if (share := parts[part] / total) >= LEAST_SEGMENT
    ]
    rest = 1.0 - sum(segment.share for segment in segments)
    if rest >= LEAST_SEGMENT / 2:
        segments.append(Segment("other", rest))
    whose = "The step" if is_alone else f"Rank {rank.rank}'s step"
    title = f"{whose}, {ms(total)} while profiled"
    if rank.steps.source == "whole trace":
        title = f"All that was recorded, {ms(total)}"
    yield Section(title=title, blocks=(Stack(tuple(segments)),))


def _faults(diagnosis: Diagnosis) -> Iterator[Section]:
    """The first findings; after them what other recordings show, as far as there is room."""
    faults: list[Finding | Advice] = [*diagnosis.findings, *diagnosis.advice]
    if not faults:
        yield from _no_faults(diagnosis)
        return
    many_ranks = len(diagnosis.facts.ranks) > 1
    blocks: list[Block] = [
        _card(number, fault, many_ranks=many_ranks)
        for number, fault in enumerate(faults[:MOST_FINDINGS], 1)
    ]
    if len(faults) > MOST_FINDINGS:
        codes = ", ".join(fault.code for fault in faults[MOST_FINDINGS : 2 * MOST_FINDINGS])
        dots = ", ..." if len(faults) > 2 * MOST_FINDINGS else ""
        num = plural(len(faults) - MOST_FINDINGS, "finding")
        blocks.append(Prose(f"and {num} more: {codes}{dots}", "quiet"))
    together = together_words(diagnosis)
    if together:
        blocks.append(Prose(together))
    aside = "predicted gain, with its range" if diagnosis.findings else ""
    yield Section(title="What to do", aside=aside, blocks=tuple(blocks))


def _no_faults(diagnosis: Diagnosis) -> Iterator[Section]:
    """That nothing was found, or why nothing could be."""
    unjudged = next((each for each in diagnosis.abstentions if each.code == FIXES), None)
    if unjudged is not None:
        words = f"{FIXES[:1].upper()}{FIXES[1:]} is not known: {unjudged.reason}."
        blocks: tuple[Block, ...] = (Prose(words, "warn"), Action(unjudged.needs))
    elif diagnosis.replay is not None:
        blocks = (Prose("No known fault costs more than 2 % of the step."),)
    else:
        return
    yield Section(title="What to do", blocks=blocks)


def _card(number: int, fault: Finding | Advice, *, many_ranks: bool) -> Card:
    blocks: list[Block] = [Prose(fault.summary), Action(fault.action)]
    if isinstance(fault, Advice):
        title = weight_words(fault)
        # No replay weighs it: what shows it stands for that.
        blocks[1:1] = [Prose(line, "quiet") for line in fault.evidence[:1]]
    else:
        title = finding_title(fault, many_ranks=many_ranks)
        cautions = []
        if fault.changes_numerics:
            cautions.append("it can change the numbers")
        if fault.excludes:
            cautions.append(f"not together with {' or '.join(fault.excludes)}")
        if cautions:
            words = "; ".join(cautions)
            blocks.append(Prose(f"{words[:1].upper()}{words[1:]}.", "warn"))
    return Card(number=number, code=fault.code, title=title, blocks=tuple(blocks))


def next_commands(diagnosis: Diagnosis, again: str, report: str | None = None) -> Commands:
    """What to do next, with real names. `again`: the command that diagnoses it once more;
    `report`: the page that is there already."""
    run = diagnosis.facts.run
    rows: list[tuple[str, str]] = []
    if run is not None:
        rows += _of_run(run, diagnosis)
    faults: list[Finding | Advice] = [*diagnosis.findings, *diagnosis.advice]
    if faults:
        rows.append(("what it means", f"stepscope explain {shlex.quote(faults[0].code)}"))
    rows.append(("all of it", f"{again} -v"))
    if report is not None:
        rows.append(("the report", report))
    return tuple(rows)


def _of_run(run: RunFacts, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    command = shlex.join(masked_words(run.command)) or "python train.py"
    if run.exit_code and not diagnosis.facts.ranks:
        yield "once it runs", f"stepscope run -- {command}"
    elif run.ranks and not diagnosis.facts.ranks:
        yield "record sooner", f"stepscope run --start-step 3 -- {command}"
    elif any(finding.code in FIXED_FROM_OUTSIDE for finding in diagnosis.findings):
        yield "try and prove it", f"stepscope fix {shlex.quote(run.path)} --verify"
    elif diagnosis.findings:
        yield "after the change", f"stepscope run -- {command}"
    elif any(each.code == FIXES for each in diagnosis.abstentions):
        yield "record again", f"stepscope run -- {command}"
