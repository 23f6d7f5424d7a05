"""A diagnosis on one screen: the verdict, the bar of the step, three findings, and what to do next.

What it leaves out is in the whole view (`-v`) and in the report.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from stepscope.core.diagnosis import FIXES, Diagnosis, Finding, unanswered_share, unjudged_fixes
from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.numbers import size_words
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.run import RunFacts, WholeRun
from stepscope.report.diagnosis.view import (
    BAR_PARTS,
    OF_TRAINING,
    OTHER_TRAINING,
    all_notes,
    change_code,
    damage_warnings,
    finding_title,
    headline,
    part_words,
    time_words,
    together_words,
)
from stepscope.report.document.blocks import (
    Action,
    Block,
    Card,
    Document,
    Facts,
    Line,
    Prose,
    Section,
    Segment,
    Stack,
    Warn,
)
from stepscope.report.document.terminal import num_lines
from stepscope.report.words import ms, plural, shorten
from stepscope.rules.headline import FEWER_WAITS

if TYPE_CHECKING:
    from stepscope.protocol.settings import Setting

MAX_LINES = 23
"""Lines of 80 cells: a terminal has 24 if nobody made it larger, and the last is the prompt's."""
MAX_FINDINGS = 3
MAX_LOCATION = 30
"""Cells, of the line of code that a finding is about."""
SHORTER = 0.8
"""Share of the known step below which the recorded ones lack a part of it: recording makes them
longer, not shorter. The other way round, recording made much of what the bar shows."""
MIN_SEGMENT = 0.01
"""Share of the step from which a part has its own place in the bar."""
MAX_STEADY = 0.8
"""Share of the whole run below which where the rest went is said on the first screen."""

Commands = tuple[tuple[str, str], ...]
"""What for, and the command."""


class _Detail(Struct, frozen=True):
    """How many lines the findings get, the first of them first."""

    reasons: tuple[int, int, int]
    actions: tuple[int, int, int]
    changes: int = 0
    """Findings that are shown with the lines of code that change, the first of them."""


DETAILS = (
    _Detail((9, 9, 9), (9, 9, 9), 3),
    _Detail((1, 1, 1), (2, 2, 2), 3),
    _Detail((1, 1, 1), (2, 1, 1), 1),
    _Detail((1, 1, 0), (1, 1, 1), 1),
    _Detail((1, 0, 0), (1, 1, 1), 1),
    _Detail((0, 0, 0), (1, 1, 1), 1),
    _Detail((1, 1, 1), (2, 1, 1)),
    _Detail((1, 1, 0), (2, 1, 1)),
    _Detail((1, 0, 0), (2, 1, 1)),
    _Detail((0, 0, 0), (2, 1, 1)),
    _Detail((0, 0, 0), (1, 1, 1)),
)
"""The first that fits on the screen is taken."""


def short_document(diagnosis: Diagnosis, commands: Commands = ()) -> Document:
    """One screen; `commands` end it."""
    for detail in DETAILS:
        document = tuple(_blocks(diagnosis, commands, detail))
        if num_lines(document) <= MAX_LINES:
            break
    return document


def _blocks(diagnosis: Diagnosis, commands: Commands, detail: _Detail) -> Iterator[Block]:
    facts = diagnosis.facts
    yield from damage_warnings(all_notes(diagnosis))
    yield from _end(diagnosis)
    yield headline(diagnosis, is_tight=True)
    yield Prose(time_words(diagnosis))
    if facts.ranks:
        if facts.comms is not None and len(facts.ranks) > 1:
            from stepscope.report.diagnosis.comms import late_ranks

            yield from late_ranks(diagnosis, facts.comms)
        yield from _step(facts.median_rank, diagnosis)
    elif facts.run is not None and not (facts.run.ranks or facts.run.exit_code):
        yield from map(Action, diagnosis.notes[-1:])
    yield from _faults(diagnosis, detail)
    if facts.whole_run is not None and facts.whole_run.productive_share < MAX_STEADY:
        yield from _whole_run(facts.whole_run)
    if commands:
        yield Section(title="Next", aside=_left_out(diagnosis), blocks=(Facts(commands),))


def _whole_run(run: WholeRun) -> Iterator[Section]:
    """Where the rest of the run went, and what to do about that: not what a step does."""
    from stepscope.report.diagnosis.whole_run import phases_words, price_words, whole_run_short

    blocks: list[Block] = []
    if run.phases:
        blocks.append(Line(text=phases_words(run.phases), tone="quiet"))
    for advice in run.advice[:1]:
        price = f"({price_words(advice)})"
        blocks.append(Line(text=advice.action, tail=price, most=2, is_action=True))
    yield Section(title="The whole run", aside=whole_run_short(run), blocks=tuple(blocks))


def _end(diagnosis: Diagnosis) -> Iterator[Block]:
    """What ended the job comes before what makes it slow; without a recording the verdict says
    it."""
    facts = diagnosis.facts
    if facts.run is not None and facts.run.exit_code and facts.ranks and not facts.out_of_memory:
        code = facts.run.exit_code
        yield Warn(f"The job ended with exit code {code}: this is of the steps until then.")
    if not facts.out_of_memory:
        return
    from stepscope.report.diagnosis.out_of_memory import by_detail, failure_words

    for report in by_detail(facts.out_of_memory)[:1]:
        yield Warn(f"Out of memory: {failure_words(report)}")
        for way in report.ways[:1]:
            frees = "" if way.frees_bytes is None else f": frees {size_words(way.frees_bytes)}"
            yield Action(f"{way.action}{frees}")


def _left_out(diagnosis: Diagnosis) -> str:
    num = len(all_notes(diagnosis))
    return f"{plural(num, 'note')} on what could not be judged: -v" if num else ""


def _step(rank: RankFacts, diagnosis: Diagnosis) -> Iterator[Block]:
    """The median step as one bar, named where the lines above do not say what it is."""
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
        if (share := parts[part] / total) >= MIN_SEGMENT
    ]
    rest = 1.0 - sum(segment.share for segment in segments)
    if rest >= MIN_SEGMENT / 2:
        segments.append(Segment("other", rest))
    words = _bar_words(rank, diagnosis, total, parts["idle_input"] / total)
    if words:
        yield Prose(words)
    yield Stack(tuple(segments))


def _bar_words(rank: RankFacts, diagnosis: Diagnosis, total: float, waits: float) -> str:
    """What the bar is of, where that is not the step that the lines above speak of; `waits` is the
    share of it that waits for input."""
    if rank.steps.source == "whole trace":
        return f"All that was recorded, {ms(total)}:"
    if len(diagnosis.facts.ranks) > 1:
        return f"Rank {rank.rank}'s step, {ms(total)} while profiled:"
    if diagnosis.verdict.shares.get("data", 0.0) - waits > FEWER_WAITS:
        return "The recorded steps, which wait for input less than most steps do:"
    if diagnosis.step.ms is not None and total / 1e6 < SHORTER * diagnosis.step.ms:
        return f"The recorded steps, {ms(total)}, which lack what makes others longer:"
    if diagnosis.step.ms is not None and SHORTER * total / 1e6 > diagnosis.step.ms:
        return f"The recorded steps, {ms(total)}, which the profiler lengthens:"
    return ""


def _faults(diagnosis: Diagnosis, detail: _Detail) -> Iterator[Section]:
    """The first findings; after them what other recordings show, as far as there is room."""
    faults: list[Finding | Advice] = [*diagnosis.findings, *diagnosis.advice]
    if not faults:
        yield from _no_faults(diagnosis)
        return
    shown = faults[:MAX_FINDINGS]
    cards = {
        number: Card(
            number=number,
            code=fault.code,
            title=_title(fault, diagnosis),
            blocks=tuple(_lines(fault, number, detail)),
        )
        for number, fault in enumerate(shown, 1)
    }
    others = {
        number
        for number, fault in enumerate(shown, 1)
        if isinstance(fault, Finding) and fault.changes_training
    }
    blocks: list[Block] = [card for number, card in cards.items() if number not in others]
    if len(faults) > MAX_FINDINGS:
        codes = ", ".join(fault.code for fault in faults[MAX_FINDINGS : 3 * MAX_FINDINGS])
        num = plural(len(faults) - MAX_FINDINGS, "finding")
        blocks.append(Line(text=f"and {num} more: {codes}", tone="quiet"))
    together = together_words(diagnosis)
    if together:
        blocks.append(Prose(together))
    blocks += _unjudged(diagnosis) or _unanswered(diagnosis)
    aside = "predicted gain, with its range" if diagnosis.findings else ""
    if any(isinstance(fault, Finding) and fault.changes_numerics for fault in shown):
        aside += "; * can change the numbers"
    training: tuple[Block, ...] = tuple(card for number, card in cards.items() if number in others)
    if len(training) < len(shown):
        yield Section(title="What to do", aside=aside, blocks=tuple(blocks))
    else:
        training = (*training, *blocks)
    if training:
        yield Section(title=OTHER_TRAINING, aside=OF_TRAINING, blocks=training)


def _title(fault: Finding | Advice, diagnosis: Diagnosis) -> str:
    if isinstance(fault, Advice):
        from stepscope.report.diagnosis.auxiliary import weight_words

        return weight_words(fault)
    codes = [each.code for each in diagnosis.findings[:MAX_FINDINGS]]
    before = codes[: codes.index(fault.code)]
    others = [str(before.index(code) + 1) for code in fault.excludes if code in before]
    instead = f"instead of {' or '.join(others)}: " if others else ""
    title = finding_title(fault, diagnosis)
    return f"{instead}{title}{' *' if fault.changes_numerics else ''}"


def _lines(fault: Finding | Advice, number: int, detail: _Detail) -> Iterator[Block]:
    """Why, and what to do; with the line of code that most of it comes from."""
    action, where = fault.action, ""
    locations = fault.source_locations if isinstance(fault, Finding) else ()
    if locations and locations[0].line is not None:
        line = locations[0].line
        words, _, last = action.rpartition(". ")
        action = words if line in last else action
        if len(line) > MAX_LOCATION:
            line = line.partition(" in ")[0]
        where = f"({shorten(line, MAX_LOCATION)})"
    most = detail.reasons[number - 1]
    if most:
        yield Line(text=fault.summary, tail=where, most=most)
        where = ""
        if isinstance(fault, Advice):
            # No replay weighs it: what shows it stands for that.
            yield from (Line(text=line, tone="quiet") for line in fault.evidence[:1])
    yield Line(text=action, tail=where, most=detail.actions[number - 1], is_action=True)
    change = fault.code_change if isinstance(fault, Finding) else None
    if change is not None and number <= detail.changes:
        yield change_code(change)


def _no_faults(diagnosis: Diagnosis) -> Iterator[Section]:
    """Section that says that nothing was found, or why nothing could be."""
    unjudged = _unjudged(diagnosis)
    if unjudged:
        blocks: tuple[Block, ...] = unjudged
    elif diagnosis.replay is not None:
        blocks = (
            Prose("No known fix gives more than 2 % of the step."),
            *_unanswered(diagnosis),
        )
    else:
        blocks = tuple(_unanswered(diagnosis))
    if blocks:
        yield Section(title="What to do", blocks=blocks)


def _unjudged(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """Why no fix could be weighed, where none could."""
    unjudged = unjudged_fixes(diagnosis.abstentions)
    if unjudged is None:
        return ()
    words = f"{FIXES[:1].upper()}{FIXES[1:]} is not known: {unjudged.reason}."
    return Prose(words, "warn"), Action(unjudged.needs)


def _unanswered(diagnosis: Diagnosis) -> Iterator[Block]:
    """The largest share of the step that no finding is about."""
    share = unanswered_share(diagnosis.abstentions, diagnosis.ladder)
    if share is not None:
        yield Prose(f"{share.reason[:1].upper()}{share.reason[1:]}.", "quiet")
        yield Action(share.needs)


def next_commands(diagnosis: Diagnosis, whole: str, report: str | None = None) -> Commands:
    """What to do next, with real names. `whole`: the command that shows all of it; `report`: the
    page that is there already."""
    run = diagnosis.facts.run
    rows: list[tuple[str, str]] = []
    if run is not None:
        rows += _of_run(run, diagnosis)
    faults: list[Finding | Advice] = [*diagnosis.findings, *diagnosis.advice]
    if faults:
        rows.append(("what it means", f"stepscope explain {shlex.quote(faults[0].code)}"))
    rows.append(("all of it", whole))
    if report is not None:
        rows.append(("the report", report))
    return tuple(rows)


def _setting_of(finding: Finding) -> Setting | None:
    """What fixes it from outside; None where nothing does."""
    from stepscope.protocol.settings import SETTINGS

    met = [setting for setting in SETTINGS.values() if finding.code in setting.fixes]
    return met[-1] if met else None


def _can_be_tried(finding: Finding, run: RunFacts) -> bool:
    """Whether its fix can be set from outside, on the loader that the job has."""
    if _setting_of(finding) is None:
        return False
    from stepscope.experiments.fixing import settings_for
    from stepscope.experiments.preflight import unable_with

    settings = settings_for(finding)
    loader = next((rank.loader for rank in run.ranks if rank.loader is not None), None)
    return settings is not None and not settings.keys() <= unable_with(loader, settings).keys()


def _of_run(run: RunFacts, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """How to start it again; nothing where no one command did."""
    if not run.command:
        return
    from stepscope.protocol.secrets import masked_words

    command = shlex.join(masked_words(run.command))
    if run.exit_code and not diagnosis.facts.ranks:
        yield "once it runs", f"stepscope run -- {command}"
    elif run.ranks and not diagnosis.facts.ranks:
        problem = next((rank.problem for rank in run.ranks if rank.problem), None)
        if run.is_kept_off and problem is None:
            yield "without it", f"stepscope run -- {command}"
        elif problem is None:
            yield "record sooner", f"stepscope run --start-step 3 -- {command}"
        else:
            elsewhere = " --out FOLDER" if "--out" in problem else ""
            yield "record again", f"stepscope run{elsewhere} -- {command}"
    elif tried := [each for each in diagnosis.findings if _can_be_tried(each, run)]:
        # What stands first is to be tried, whatever it changes.
        setting = _setting_of(tried[0])
        allowed = " --allow-numerics" if setting is not None and setting.changes_numerics else ""
        yield "try and prove it", f"stepscope fix {shlex.quote(run.path)} --verify{allowed}"
        if any(each.code_change is not None for each in diagnosis.findings):
            yield "as a patch", f"stepscope fix {shlex.quote(run.path)} --patch out.diff"
    elif diagnosis.findings:
        yield "after the change", f"stepscope run -- {command}"
    elif unjudged_fixes(diagnosis.abstentions) is not None:
        yield "record again", f"stepscope run -- {command}"
