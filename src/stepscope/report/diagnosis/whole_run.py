"""The run from its start to its end: where its time went, and what would shorten it."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.numbers import ordinal, times
from stepscope.core.run import RunAdvice, RunPart, RunPhase, SlowSteps, WholeRun
from stepscope.report.document.blocks import (
    Bar,
    Block,
    Cell,
    Column,
    Items,
    Part,
    Prose,
    Section,
    Table,
    numbers,
)
from stepscope.report.words import NBSP, fixed, in_column, ms, number, percent, plural, shorten

PART_WORDS = {
    "start_up": "start-up", "first_batch": "first batch", "compile": "compiling",
    "warm_up": "warm-up", "steady": "steady steps", "waits": "waiting for other ranks",
    "saves": "saves", "evaluation": "evaluation", "epoch_start": "epoch starts",
    "gc": "garbage collection", "logging": "logging", "stalls": "slow steps", "idle": "idle",
    "recording": "stepscope's recording", "shutdown": "after the last step",
    "other": "cause not seen",
}  # fmt: skip
BAR_PARTS: dict[str, Part] = {
    "steady": "compute",
    "waits": "comms",
    "first_batch": "input",
    "epoch_start": "input",
}
MIN_NAMED = 0.01
"""Share of the run from which a part is named in the line."""
MIN_SHOWN = 0.0005
"""Share of the run from which a part has a row; the JSON has all."""
MIN_OF_PART = 0.1
MAX_LINE = 70


def whole_run_section(run: WholeRun) -> Section:
    """The line, a bar for each part, and what to do."""
    blocks: list[Block] = [Prose(whole_run_words(run)), _table(run)]
    lines = whole_run_lines(run)
    if lines:
        blocks.append(Items(tuple(lines)))
    until = "its end" if run.is_over else "the last that was seen"
    return Section(title="The whole run", aside=f"from its start to {until}", blocks=tuple(blocks))


def whole_run_lines(run: WholeRun) -> list[str]:
    """Lines of its phases, its slow steps, and what to do."""
    phases = [phases_words(run.phases)] if run.phases else []
    return [*phases, *map(stall_words, run.stalls), *map(advice_words, run.advice)]


def whole_run_words(run: WholeRun) -> str:
    """Words in one line: `22.8 s, 24 % of them in steady steps; slow steps 26 %, start-up 24 %`."""
    steady = percent(run.productive_share)
    others = sorted(
        (part for part in run.parts if part.what != "steady" and part.share >= MIN_NAMED),
        key=lambda part: -part.seconds,
    )
    rest = ", ".join(
        f"{PART_WORDS.get(part.what, part.what)} {percent(part.share)}" for part in others
    )
    words = f"{seconds(run.seconds)}, {steady} in steady steps"
    return f"{words}; {rest}." if rest else f"{words}."


def whole_run_short(run: WholeRun) -> str:
    """`106 s: steady steps 57 %, start-up 38 %, all else 5 %`: its two largest parts."""
    first, *others = sorted(run.parts, key=lambda part: -part.seconds)
    named = [first, *others[:1]] if first.share < 1 else [first]
    words = [f"{PART_WORDS.get(part.what, part.what)} {percent(part.share)}" for part in named]
    rest = 1.0 - sum(part.share for part in named)
    if rest >= MIN_NAMED:
        words.append(f"all else {percent(rest)}")
    return f"{seconds(run.seconds)}: {', '.join(words)}"


def _table(run: WholeRun) -> Table:
    decimals = 1 if run.seconds >= 100 else 2
    rows: list[tuple[str | Cell | Bar, ...]] = [
        (
            PART_WORDS[part.what],
            in_column(part.seconds, decimals),
            in_column(100 * part.share, 1),
            Bar(part.share, BAR_PARTS.get(part.what, "idle")),
            part_note(run, part),
        )
        for part in shown_parts(run)
    ]
    total = Cell(in_column(run.seconds, decimals), "strong")
    rows.append((Cell("total", "strong"), total, "100.0", "", ""))
    columns = (Column(), *numbers("s", "%"), Column(), Column(fit="wrap", tone="quiet"))
    return Table(columns=columns, rows=tuple(rows))


def shown_parts(run: WholeRun) -> list[RunPart]:
    return [part for part in run.parts if part.share >= MIN_SHOWN]


def part_note(run: WholeRun, part: RunPart) -> str:
    if part.what == "steady":
        words = f"{plural(run.num_clean_steps, 'clean step')} of {ms(run.step_ms * 1e6)}"
        return f"{words} in the mean of {len(run.phases)} phases" if run.phases else words
    if part.num:
        words = f"{part.num} x {ms(part.seconds * 1e9 / part.num)}"
        seen = next(iter(part.of_it), None)
        return words if seen is None else f"{words}, seen at {shorten(seen, MAX_LINE)}"
    known = [(name, s) for name, s in part.of_it.items() if s >= MIN_OF_PART * part.seconds]
    return ", ".join(f"{seconds(s)} {name}" for name, s in known)


def phases_words(phases: Sequence[RunPhase]) -> str:
    """`2 phases, each steady: 30.0 ms a step, 60.1 ms from step 101 on`."""
    first, *later = phases
    lengths = [f"{ms(first.step_ms * 1e6)} a step"]
    lengths += [f"{ms(phase.step_ms * 1e6)} from step {phase.first_step} on" for phase in later]
    return f"{plural(len(phases), 'phase')}, each steady: {', '.join(lengths)}."


def stall_words(stall: SlowSteps) -> str:
    """`Every 20th step takes 600 ms longer (10 times, 6.01 s); seen at train.py(28)`."""
    which, how_often = "A step now and then", f" ({times(stall.num)}, {seconds(stall.seconds)})"
    if stall.every_steps is not None:
        which = f"Every {ordinal(stall.every_steps)} step"
    elif stall.num == 1:
        which, how_often = "One step", ""
    words = f"{which} takes {ms(stall.once_seconds * 1e9)} longer{how_often}"
    if stall.cause == "input":
        words += ", waiting for input"
    if stall.lines:
        words += f"; seen at {shorten(next(iter(stall.lines)), MAX_LINE)}"
    return f"{words}."


def advice_words(advice: RunAdvice) -> str:
    return f"{advice.action}: {price_words(advice)}."


def price_words(advice: RunAdvice) -> str:
    """`up to 10.5 s of this run, 8.93 h of a day`; `1.20 s (0.61 s to 1.90 s) of this run`."""
    likely, hours = advice.likely, advice.hours_a_day
    price = f"up to {seconds(advice.seconds)} of this run"
    if likely is not None:
        between = f"{seconds(likely.low_seconds)} to {seconds(likely.high_seconds)}"
        price, hours = f"{seconds(likely.seconds)} ({between}) of this run", likely.hours_a_day
    if hours is not None:
        price += f", {number(hours)}{NBSP}h of a day"
    return price


def seconds(whole: float) -> str:
    """`22.8 s`, `35 min 10 s`, `12 h 05 min`."""
    if whole < 120:
        return f"{number(whole)}{NBSP}s"
    minutes, rest = divmod(round(whole), 60)
    if minutes < 120:
        return f"{minutes}{NBSP}min {rest:02d}{NBSP}s"
    return f"{fixed(minutes // 60, 0)}{NBSP}h {minutes % 60:02d}{NBSP}min"
