"""The diagnosis in the terminal: one verdict, where the step goes, and what could not be judged.

Colour and block characters on a terminal; plain text anywhere else, ASCII where the encoding is not UTF-8. Names and notes come
out of strangers' files: none is read as markup, and none reaches the terminal with a control character in it.
"""

from __future__ import annotations

import io
import sys
from collections import Counter

from rich.console import Console

from stepscope.core.diagnosis import Diagnosis, Finding, StepTime
from stepscope.core.facts import Facts, RankFacts
from stepscope.core.numbers import number_ranges
from stepscope.report.beside_view import draw_beside
from stepscope.report.comms_view import draw_comms, draw_late_ranks
from stepscope.report.host_view import draw_host
from stepscope.report.kernel_view import draw_kernels
from stepscope.report.nccl_view import draw_nccl
from stepscope.report.ranks_view import draw_ranks
from stepscope.report.run_view import draw_run
from stepscope.report.sheet import Sheet
from stepscope.report.step_view import draw_device, draw_step
from stepscope.report.units import ms, percent, plural

PLAIN_WIDTH = 80
MIN_WIDTH = 40
MAX_WIDTH = 100
"""Wider than this and the eye loses the row."""
MAX_FINDINGS = 8
MAX_NOTES = 12
MAX_UNKNOWN = 6

BOUND_WORDS = {
    "data": "Waiting for input limits this run.",
    "host": "The host limits this run.",
    "transfer": "Copies between host and device limit this run.",
    "comms": "Communication limits this run.",
    "imbalance": "Waiting for other ranks limits this run.",
    "compute": "The device's arithmetic limits this run.",
    "memory": "The device's memory bandwidth limits this run.",
}
SOURCE_WORDS = {
    "given": "as given",
    "measured": "measured without the profiler",
    "log": "as the job's own log tells",
    "trace": "from the trace, while profiled",
}


def render(diagnosis: Diagnosis, *, width: int | None = None, color: bool | None = None) -> str:
    """The report as text. Width and colour are those of standard output where they are not said."""
    wanted = sys.stdout.isatty() if color is None else color
    if width is None:
        width = Console().width if sys.stdout.isatty() else PLAIN_WIDTH
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=wanted,
        color_system="standard" if wanted else None,
        no_color=not wanted,
        legacy_windows=False,
    )
    with console.capture() as captured:
        show(diagnosis, console)
    return captured.get()


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print the report."""
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
    _draw(sheet, diagnosis)
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _draw(sheet: Sheet, diagnosis: Diagnosis) -> None:
    ranks, comms = diagnosis.facts.ranks, diagnosis.facts.comms
    sheet.prose(_what_was_read(sheet, diagnosis.facts), style="dim")
    sheet.blank()
    _draw_verdict(sheet, diagnosis)
    if ranks:
        rank = diagnosis.facts.median_rank
        if len(ranks) > 1:
            draw_ranks(sheet, ranks, comms)
            if comms is not None:
                draw_late_ranks(sheet, comms)
            sheet.blank()
            sheet.prose(f"From here on: rank {rank.rank}, the one with the median step.", style="dim")
        draw_step(sheet, rank)
        _draw_findings(sheet, diagnosis)
        if comms is not None:
            draw_comms(sheet, comms)
        draw_device(sheet, rank)
        draw_kernels(sheet, rank)
        draw_host(sheet, rank)
    if diagnosis.facts.run is not None:
        draw_run(sheet, diagnosis.facts.run)
    if diagnosis.facts.nccl is not None:
        draw_nccl(sheet, diagnosis.facts.nccl)
    draw_beside(sheet, diagnosis)
    _draw_notes(sheet, diagnosis)


def _what_was_read(sheet: Sheet, facts: Facts) -> str:
    """File or folder, device, steps: `trace.json.gz, NVIDIA H100: 4 steps detected by ProfilerStep, 3 whole ones measured`."""
    ranks = facts.ranks
    if not ranks and facts.run is None and facts.beside is not None:
        # A job's output is read for several things, and is one file.
        files = {path for one in facts.beside.recordings for path in one.paths} | set(
            () if facts.nccl is None else facts.nccl.files
        )
        return f"{plural(len(files), 'recording')}, no trace"
    if not ranks:
        return "No rank was read." if facts.run is None else f"{sheet.clean(facts.run.path)}: the profiler recorded no step"
    if len(ranks) == 1:
        read = sheet.shorten(sheet.clean(ranks[0].path), sheet.width - 4)
    else:
        folder = sheet.shorten(sheet.clean(_common_folder([rank.path for rank in ranks])), sheet.width - 24)
        read = f"{len(ranks)} ranks" + (f" in {folder}" if folder else "")
    names = Counter(rank.device_name for rank in ranks if rank.device_name)
    devices = " and ".join(sheet.shorten(sheet.clean(name), 40) for name, _ in names.most_common(2))
    if len(names) > 2:
        devices += f" and {len(names) - 2} other kinds of device"
    if not devices:
        devices = "no device named" if any(rank.steps.where == "device" for rank in ranks) else "no device"
    return f"{read}, {devices}: {_step_words(sheet, facts.median_rank)}"


def _step_words(sheet: Sheet, rank: RankFacts) -> str:
    steps = rank.steps
    if steps.source == "whole trace":
        return "no steps could be detected" if rank.num_events else "no events"
    source = sheet.shorten(sheet.clean(steps.source), 30)
    seen = f"{plural(steps.num_seen, 'step')} detected by {source}"
    if not steps.windows:
        return f"{seen}, none of them whole"
    return f"{seen}, {len(steps.windows)} measured" if len(steps.windows) != steps.num_seen else seen


def _common_folder(paths: list[str]) -> str:
    """The folder all paths begin with; they may be addresses in object storage."""
    first, last = min(paths), max(paths)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: first.rfind("/", 0, same) + 1]


def _draw_verdict(sheet: Sheet, diagnosis: Diagnosis) -> None:
    verdict = diagnosis.verdict
    color = {"compute": "bold green", "unknown": "bold"}.get(verdict.bound, "bold yellow")
    sheet.prose(verdict.summary.strip() or BOUND_WORDS.get(verdict.bound, "What limits this run is not known."), style=color)
    sheet.prose(_time_words(diagnosis.step))


def _time_words(step: StepTime) -> str:
    if step.ms is None:
        return "The step time was not measured."
    words = f"A step takes {ms(step.ms * 1e6)} ({SOURCE_WORDS.get(step.source, step.source)}"
    if step.profiled_ms is not None and step.source != "trace":
        words += f"; {ms(step.profiled_ms * 1e6)} while profiled"
    return f"{words})."


def _draw_findings(sheet: Sheet, diagnosis: Diagnosis) -> None:
    if not diagnosis.findings:
        return
    sheet.heading("What to do", "predicted gain, with its range")
    for number, finding in enumerate(diagnosis.findings[:MAX_FINDINGS], start=1):
        _draw_finding(sheet, number, finding, many_ranks=len(diagnosis.facts.ranks) > 1)
    more = len(diagnosis.findings) - MAX_FINDINGS
    if more > 0:
        sheet.prose(f"and {plural(more, 'finding')} more", indent=2, style="dim")
    if diagnosis.together is not None:
        first = diagnosis.findings[0]
        left = ms(first.predicted_step_ms * first.predicted_speedup / diagnosis.together * 1e6)
        words = f"All of them together: {diagnosis.together:.2f}x, which leaves {left} a step; they do not multiply."
        sheet.prose(words, indent=2)
    if diagnosis.replay is not None:
        error = diagnosis.replay.error
        side = "above" if error > 0 else "below"
        sheet.prose(
            f"Gains come from replaying the step; the replay is {percent(abs(error))} {side} the real one.", indent=2, style="dim"
        )


def _draw_finding(sheet: Sheet, number: int, finding: Finding, *, many_ranks: bool) -> None:
    gain = f"{finding.predicted_speedup:.2f}x ({finding.predicted_low:.2f}-{finding.predicted_high:.2f})"
    ranks = f", ranks {number_ranges(finding.ranks)}" if many_ranks and finding.ranks else ""
    after = f"{ms(finding.predicted_step_ms * 1e6)} a step"
    sheet.prose(f"{finding.code}  {gain}, {after}{ranks}", style="bold", indent=5, lead=f"  {number}.")
    sheet.prose(finding.summary, indent=5)
    sheet.prose(finding.action, indent=8, lead="     ->", style="green")
    if finding.changes_numerics:
        sheet.prose("It can change the numbers: compare the loss before and after.", indent=8, style="yellow")


def _draw_notes(sheet: Sheet, diagnosis: Diagnosis) -> None:
    notes = _all_notes(diagnosis)
    if not notes:
        return
    sheet.heading("Notes", "what could not be judged, and why")
    for note in notes[:MAX_NOTES]:
        sheet.prose(note, indent=4, lead="  -")
    if len(notes) > MAX_NOTES:
        sheet.prose(f"and {plural(len(notes) - MAX_NOTES, 'note')} more", indent=4, style="dim")


def _all_notes(diagnosis: Diagnosis) -> list[str]:
    """The run's notes, then those of its ranks that are not among them."""
    facts = diagnosis.facts
    told = [*diagnosis.notes, *facts.notes] + ([facts.unknown_note] if facts.unknown_note else [])
    return list(dict.fromkeys(told))
