"""A recording of torch.compile in words: what the report shows of it. The same for logs, counters
and structured traces."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.api import Table, table
from stepscope.core.recordings.compiler import CompiledFunction, CompilerRecording, CompilerReport

MAX_ROWS = 100
MAX_CELL = 160
MAX_LOCATION = 40


def lines(recording: CompilerRecording) -> Iterator[tuple[str, str]]:
    report = CompilerReport(recordings=(recording,))
    functions, breaks = report.functions(), report.break_counts()
    if report.num_processes > 1:
        yield "processes", f"{report.num_processes}; counts are those of the one with most"
    if report.seconds is not None:
        counts = [function.compiles for function in functions if function.compiles is not None]
        yield (
            "compiling",
            (
                f"{report.seconds:.1f} s, {_number(sum(counts), 'compilation')} of "
                f"{_number(len(counts), 'function')}"
            ),
        )
    again = [function for function in functions if function.recompiles]
    if recording.compiles:
        times = sum(function.recompiles for function in again)
        yield (
            "compiled again",
            f"{_number(len(again), 'function')}, {_number(times, 'time')}" if again else "nothing",
        )
    for function in functions:
        if function.limit:
            eager = f"{function.limit} was hit; calls that fit no compiled version run eagerly"
            yield "given up", f"{function.name} ({function.location}): {eager}"
    if breaks:
        yield (
            "graph breaks",
            f"{sum(each.count for each in breaks)} at {_number(len(breaks), 'place')}",
        )
    if recording.origins:
        yield "compiled kernels", f"{len(recording.origins)}, with the lines they are of"
    for counted in recording.counted:
        numbers = [
            f"{number} {word}"
            for number, word in (
                (counted.frames, "frames"),
                (counted.frames_ok, "compiled"),
                (counted.graphs, "graphs"),
            )
            if number is not None
        ]
        if numbers:
            yield "counted", ", ".join(numbers)
        if counted.limit_hits:
            yield (
                "given up",
                f"the limit on recompilations was hit {_number(counted.limit_hits, 'time')}",
            )
    for use in recording.caches:
        bypassed = f", bypassed {use.bypassed}" if use.bypassed else ""
        yield f"{use.cache} cache", f"{use.hits} hits, {use.misses} misses{bypassed}"


def tables(recording: CompilerRecording) -> Iterator[Table]:
    report = CompilerReport(recordings=(recording,))
    functions, breaks = report.functions(), report.break_counts()
    rows = tuple(
        _function_row(each)
        for each in functions
        if each.recompiles or each.limit or each.seconds is not None
    )
    if rows:
        yield table("compiled functions", "what changed|>again|>seconds|function", rows[:MAX_ROWS])
    if breaks:
        yield table(
            "graph breaks",
            "reason|>times|place",
            (
                (
                    _cut(each.graph_break.reason),
                    str(each.count),
                    short(each.graph_break.location) or "not recorded",
                )
                for each in breaks[:MAX_ROWS]
            ),
        )
    if recording.hints:
        yield table(
            "performance hints",
            "hint|>times",
            ((_cut(text), str(count)) for text, count in recording.hints[:MAX_ROWS]),
        )
    if recording.origins:
        yield table(
            "compiled kernels, and the lines they are of",
            "kernel|line|operators",
            (
                (
                    _cut(origin.kernel),
                    _cut("; ".join(origin.lines)) or "not recorded",
                    _cut(", ".join(origin.nodes)) or "not recorded",
                )
                for origin in recording.origins[:MAX_ROWS]
            ),
        )
    # Every count as it was recorded, for what no line has.
    counts = tuple(
        (f"{section}: {name.split(chr(10))[0]}"[:MAX_CELL], str(count))
        for section, name, count in recording.counters
        if section not in ("graph_break", "resumes")
    )
    if counts:
        yield table("counters", "counter|>count", counts[:MAX_ROWS])


def _function_row(function: CompiledFunction) -> tuple[str, str, str, str]:
    guards = function.guards or function.resumed_guards
    seconds = "-" if function.seconds is None else f"{function.seconds:.1f}"
    changed = _cut(guards[0].words) if guards else "-"
    return (
        changed,
        str(function.recompiles),
        seconds,
        f"{function.name or 'not recorded'}, {short(function.location) or 'line not recorded'}",
    )


def short(location: str) -> str:
    """The end of a source location: `.../models/attention.py:61`."""
    return location if len(location) <= MAX_LOCATION else "..." + location[-MAX_LOCATION:]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
