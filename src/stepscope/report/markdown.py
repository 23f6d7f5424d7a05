"""The diagnosis as Markdown, for a comment on a pull request.

Names and notes come out of strangers' files. Every character of theirs that Markdown or HTML reads is written as an entity, and
what GitHub would still make a link, a mention or a reference of once it is drawn is parted by a space of no width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.core.diagnosis import Diagnosis, Finding, StepTime
from stepscope.core.facts import PARTS, Partition, RankFacts
from stepscope.core.gate import Gate
from stepscope.core.nccl import NcclLog
from stepscope.core.nccl_notes import notes_on
from stepscope.core.numbers import number_ranges
from stepscope.report.beside_view import weight_words
from stepscope.report.gate import STATUS_WORDS, reason
from stepscope.report.names import clean, shorten
from stepscope.report.nccl_view import MAX_NOTES as MAX_NCCL_NOTES
from stepscope.report.nccl_view import nccl_lines
from stepscope.report.step_view import PART_WORDS, UNSPLIT_COMMS
from stepscope.report.units import NBSP, digits_after_point, in_column, ms, percent, plural

MAX_CHARS = 60_000
"""GitHub refuses a comment of more than 65 536."""
MAX_FINDINGS = 8
MAX_NOTES = 12
MAX_CHECKS = 24
SOURCE_WORDS = {
    "given": "as given",
    "measured": "measured without the profiler",
    "log": "as the job's own log tells",
    "trace": "from the trace, while profiled",
}
NO_WIDTH = "&#8203;"
_READ = re.compile(r"[&<>\"'`*_{}\[\]|~\\$#@]")
_FIRST = re.compile(r"^(?:\d(?=\d*[.)])|[-+=:])")
"""At the start of a line a number, a sign or a dash may begin a list, a heading or a rule."""
_LINKED = re.compile(r"&#64;|&#35;(?=\d)|:(?=//)|\bwww(?=\.)|\bGH(?=-\d)", re.IGNORECASE)
"""Mentions and addresses of mail, issues, URLs: GitHub looks for them in the text that it has drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """How much a comment may hold."""

    chars: int
    """Of one sentence."""
    evidence: int
    """Lines of it for one finding."""


ROOMS = (_Room(chars=600, evidence=8), _Room(chars=200, evidence=2), _Room(chars=80, evidence=0))
"""The roomiest that stays under MAX_CHARS is taken."""


def to_markdown(diagnosis: Diagnosis, gate: Gate | None = None) -> str:
    """The comment; shortened where GitHub would not take it whole."""
    texts = (_text(diagnosis, gate, room) for room in ROOMS)
    text = next((text for text in texts if len(text) <= MAX_CHARS), None)
    assert text is not None, "the least room is too much for a comment"
    return text


def escape(text: str, most: int = ROOMS[0].chars) -> str:
    """A stranger's text as one line that means nothing but itself."""
    plain = shorten(clean(text).strip(), most)
    read = _READ.sub(_entity, plain)
    first = _FIRST.sub(_entity, read)
    return _LINKED.sub(lambda found: found[0] + NO_WIDTH, first)


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"


def _text(diagnosis: Diagnosis, gate: Gate | None, room: _Room) -> str:
    summary = diagnosis.verdict.summary.strip() or "What limits this run is not known."
    blocks = [f"## stepscope: {escape(summary, room.chars)}", _time_words(diagnosis)]
    if gate is not None:
        blocks += _gate(gate, room)
    if diagnosis.facts.ranks:
        blocks += _partition(diagnosis)
    blocks += _findings(diagnosis, room)
    if diagnosis.facts.nccl is not None:
        blocks += _nccl(diagnosis.facts.nccl, room)
    blocks += _advice(diagnosis, room)
    blocks += _notes(diagnosis, room)
    return "\n\n".join(block for block in blocks if block).replace(NBSP, " ") + "\n"


def _advice(diagnosis: Diagnosis, room: _Room) -> list[str]:
    lines = []
    for one in diagnosis.advice[:MAX_FINDINGS]:
        weight = weight_words(one)
        told = f" ({escape(weight)})" if weight else ""
        lines.append(f"- **{escape(one.code)}**{told}: {escape(one.summary, room.chars)} {escape(one.action, room.chars)}")
    more = len(diagnosis.advice) - MAX_FINDINGS
    heading = "### Beside the trace" if diagnosis.facts.ranks else "### What the recordings show"
    return [heading, "\n".join(lines), f"and {more} more" if more > 0 else ""] if lines else []


def _nccl(log: NcclLog, room: _Room) -> list[str]:
    """What to think of it stands open, what it said is folded."""
    notes = notes_on(log)
    shown = [f"- {escape(note, room.chars)}" for note in notes[:MAX_NCCL_NOTES]]
    if len(notes) > MAX_NCCL_NOTES:
        shown.append(f"- and {plural(len(notes) - MAX_NCCL_NOTES, 'note')} more")
    told = [f"{label}: {text}" if label else text for label, text in nccl_lines(log)]
    return [f"### {escape(log.library.upper())}, from its log", "\n".join(shown), *_folded("What it said", told, len(told), room)]


def _time_words(diagnosis: Diagnosis) -> str:
    words = _step_words(diagnosis.step)
    rank = diagnosis.facts.median_rank if diagnosis.facts.ranks else None
    if rank is None:
        return words
    busy, step = rank.steps.typical(rank.busy_ns), rank.steps.step_interval_ns
    if rank.steps.where == "device" and busy is not None and step:
        words += f" The GPU is busy for {percent(busy / step)} of it while profiled."
    mfu = "not measured" if rank.roofline.mfu is None else percent(rank.roofline.mfu)
    return f"{words} MFU: {mfu}."


def _step_words(step: StepTime) -> str:
    if step.ms is None:
        return "The step time was not measured."
    words = f"A step takes **{ms(step.ms * 1e6)}** ({escape(SOURCE_WORDS.get(step.source, step.source))}"
    if step.profiled_ms is not None and step.source != "trace":
        words += f"; {ms(step.profiled_ms * 1e6)} while profiled"
    return f"{words})."


def _gate(gate: Gate, room: _Room) -> list[str]:
    rows = ["| check | | why |", "|:--|:--|:--|"]
    # What stopped it first: a long budget must not push it out of the table.
    ranked = sorted(gate.results, key=lambda result: result not in gate.stopped_by)
    for result in ranked[:MAX_CHECKS]:
        status = STATUS_WORDS[result.status]
        told = status if result not in gate.stopped_by else f"**{status}**"
        rows.append(f"| <code>{escape(result.check, room.chars)}</code> | {told} | {escape(reason(result), room.chars)} |")
    more = len(ranked) - MAX_CHECKS
    against = "" if gate.baseline is None else f"Baseline: <code>{escape(gate.baseline, room.chars)}</code>"
    left_out = f"and {plural(more, 'check')} more, none of which failed" if more > 0 else ""
    if more > 0 and len(gate.stopped_by) > MAX_CHECKS:
        left_out = f"and {plural(more, 'check')} more"
    return [f"### Gate {'passed' if gate.is_passed else 'failed'}", "\n".join(rows), left_out, against]


def _partition(diagnosis: Diagnosis) -> list[str]:
    rank, parts = diagnosis.facts.median_rank, diagnosis.facts.median_rank.typical_parts_ns
    if rank.partition is None or parts is None:
        return ["### Where the step goes", "Not measured: the trace has no whole step."]
    total = sum(parts.values())
    decimals = max(digits_after_point(total / 1e6), 1 if total < 1e9 else 0)
    rows = [f"| {_which(rank, len(diagnosis.facts.ranks))} | ms | % |", "|:--|--:|--:|"]
    for part in PARTS:
        if parts[part] > 0:
            cells = (_cell(parts[part] / 1e6, decimals), _cell(parts[part] / total * 100, 1))
            rows.append(f"| {_part_words(part, rank.partition)} | {' | '.join(cells)} |")
    rows.append(f"| **total** | **{_cell(total / 1e6, decimals)}** | {'**100.0**' if total else ''} |")
    return ["### Where the step goes", "\n".join(rows)]


def _cell(value: float, decimals: int) -> str:
    return in_column(value, decimals).replace("<", "&lt;")


def _which(rank: RankFacts, num_ranks: int) -> str:
    of = f"rank {rank.rank} of {num_ranks}, " if num_ranks > 1 else ""
    if not rank.steps.is_pitch:
        return f"{of}what was recorded"
    num = len(rank.steps.windows)
    return f"{of}{'the only whole step' if num == 1 else f'the median step of {num}'}, while profiled"


def _part_words(part: str, partition: Partition) -> str:
    return UNSPLIT_COMMS if part == "comms_transfer" and not partition.waits_split else PART_WORDS[part]


def _findings(diagnosis: Diagnosis, room: _Room) -> list[str]:
    if not diagnosis.findings:
        return []
    blocks = ["### What to do"]
    many_ranks = len(diagnosis.facts.ranks) > 1
    for number, finding in enumerate(diagnosis.findings[:MAX_FINDINGS], start=1):
        blocks += _finding(number, finding, room, many_ranks=many_ranks)
    more = len(diagnosis.findings) - MAX_FINDINGS
    blocks.append(f"and {plural(more, 'finding')} more" if more > 0 else "")
    if diagnosis.together is not None:
        blocks.append(f"All of them together: {diagnosis.together:.2f}x; they do not multiply.")
    if diagnosis.replay is not None:
        error = diagnosis.replay.error
        side = "above" if error > 0 else "below"
        told = percent(abs(error)).replace("<", "&lt;")
        blocks.append(f"<sub>Gains come from replaying the step; the replay is {told} {side} the real one.</sub>")
    return blocks


def _finding(number: int, finding: Finding, room: _Room, *, many_ranks: bool) -> list[str]:
    gain = f"{finding.predicted_speedup:.2f}x ({finding.predicted_low:.2f} to {finding.predicted_high:.2f})"
    ranks = f", ranks {escape(number_ranges(finding.ranks), room.chars)}" if many_ranks and finding.ranks else ""
    after = f"{ms(finding.predicted_step_ms * 1e6)} a step"
    blocks = [
        f"#### {number}. <code>{escape(finding.code, room.chars)}</code> {gain}, {after}{ranks}",
        escape(finding.summary, room.chars),
        f"&rarr; {escape(finding.action, room.chars)}",
    ]
    if finding.changes_numerics:
        blocks.append("It can change the numbers: compare the loss before and after.")
    told = [*finding.evidence, *(f"{percent(place.share)} at {place.words}" for place in finding.places)]
    return blocks + _folded("Evidence", told, room.evidence, room)


def _notes(diagnosis: Diagnosis, room: _Room) -> list[str]:
    facts = diagnosis.facts
    told = [*diagnosis.notes, *facts.notes] + ([facts.unknown_note] if facts.unknown_note else [])
    return _folded("Notes: what could not be judged, and why", list(dict.fromkeys(told)), MAX_NOTES, room)


def _folded(title: str, lines: list[str], most: int, room: _Room) -> list[str]:
    """A list that opens with a click. The blank lines around it are what makes GitHub read it as Markdown."""
    if not lines:
        return []
    shown = [f"- {escape(line, room.chars) or '(empty)'}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"- and {len(lines) - most} more" if most else f"- {len(lines)}, left out: there is no room for them here")
    return [f"<details><summary>{title} ({len(lines)})</summary>", "\n".join(shown), "</details>"]
