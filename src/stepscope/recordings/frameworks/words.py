"""Frameworks' logs in words: what the report shows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from stepscope.api import Table, table
from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.training_log import (
    CLOCK,
    RATE,
    STATED,
    SUM,
    Figure,
    FrameworkLog,
    TrainingRecording,
)

MAX_NAME = 80
MAX_FILES = 64
MAX_ROWS = 64
SLOW = 1.5
"""Times the median from which a line's steps are slow."""
HOW = {
    STATED: "the median of {num} steps as the log tells them, the first ones left out",
    CLOCK: "by the times of its lines, over {num} steps",
    RATE: "from the rate it tells, over {num} steps, the first ones too",
    SUM: "the sum of the phases it times, over {num} steps",
}


def _shown(recording: TrainingRecording) -> FrameworkLog:
    """Log of the rank whose steps are slowest: of several it is shown whole, as the others wait for
    it."""
    return max(
        recording.logs, key=lambda log: (log.step_ns is not None, log.step_ns or 0, log.num_lines)
    )


def lines(recording: TrainingRecording) -> Iterator[tuple[str, str]]:
    log = _shown(recording)
    yield "framework", log.framework
    if log.step_ns is not None and log.step_source is not None:
        yield "step", f"{_ms(log.step_ns)} ms, {HOW[log.step_source].format(num=log.num_steps)}"
    else:
        yield "step", "not known: no line gives the time of an optimizer step, or too few do"
    if log.first_step is not None and log.last_step is not None:
        yield "steps", f"{log.first_step} to {log.last_step}, {log.num_lines} line(s)"
    slow = _slowest(log)
    if slow is not None:
        yield "slowest", slow
    yield from _figure("tokens/s", log.tokens_per_s)
    yield from _figure("samples/s", log.samples_per_s)
    yield from _figure("TFLOP/s", log.tflops)
    if log.mfu is not None:
        yield "MFU", f"{log.mfu.value:.1%}, {log.mfu.convention}"
    if log.memory_bytes is not None:
        yield "memory", f"{log.memory_bytes.value / 1e9:.4g} GB, {log.memory_bytes.convention}"
    if log.first_loss is not None and log.last_loss is not None:
        yield "loss", f"{log.first_loss:.5g} at first, {log.last_loss:.5g} at last"
    if log.global_batch is not None:
        yield "global batch", f"{log.global_batch}"
    if log.world_size is not None:
        yield (
            "ranks",
            f"{log.world_size}" + (f" (lines of {number_ranges(log.ranks)})" if log.ranks else ""),
        )
    elif log.ranks:
        yield "ranks", f"lines of {number_ranges(log.ranks)}"
    yield from log.remarks


def _figure(name: str, figure: Figure | None) -> Iterator[tuple[str, str]]:
    if figure is not None:
        yield (
            name,
            f"{figure.value:,.4g}, {figure.convention}"
            if figure.value < 1e4
            else f"{figure.value:,.0f}, {figure.convention}",
        )


def _slowest(log: FrameworkLog) -> str | None:
    """A slow line that is not the first."""
    timed = [(step.ns, step.step) for step in log.steps[1:] if step.ns is not None]
    if len(timed) < 3:
        return None
    usual, (ns, step) = median(ns for ns, _ in timed), max(timed)
    if ns > SLOW * usual:
        return f"{_ms(ns)} ms at step {step}, {ns / usual:.1f} times the median"
    return None


def tables(recording: TrainingRecording) -> Iterator[Table]:
    log = _shown(recording)
    if len(recording.logs) > 1:
        yield _files(recording.logs)
    if log.phases:
        yield _phases(log)
    if log.actions:
        yield _actions(log)
    if log.comms:
        yield _comms(log)


def _files(logs: Sequence[FrameworkLog]) -> Table:
    rows = [
        (
            log.path,
            "" if log.step_ns is None else _ms(log.step_ns),
            f"{log.num_steps}" if log.num_steps else "",
        )
        for log in logs[:MAX_FILES]
    ]
    return table("by file", "file|>step ms|>steps", rows)


def _phases(log: FrameworkLog) -> Table:
    has_least = any(phase.least_ns is not None for phase in log.phases)
    rows = []
    for phase in log.phases[:MAX_ROWS]:
        share = "" if phase.is_micro or not log.step_ns else f"{phase.ns / log.step_ns:.1%}"
        least = (("" if phase.least_ns is None else _ms(phase.least_ns)),) if has_least else ()
        rows.append((phase.name[:MAX_NAME], _ms(phase.ns), *least, share))
    columns = ("timer", "ms", *(("fastest rank",) if has_least else ()), "of the step")
    title = "phases of a step; they may stand inside one another" + (
        "; ms of the slowest rank" if has_least else ""
    )
    return Table(
        title=title, columns=columns, rows=tuple(rows), right=tuple(range(1, len(columns)))
    )


def _actions(log: FrameworkLog) -> Table:
    rows = tuple(
        (
            action.name[:MAX_NAME],
            "" if action.num_calls is None else f"{action.num_calls}",
            "" if action.mean_ns is None else _ms(action.mean_ns),
            f"{action.total_ns / 1e9:.4g}",
        )
        for action in log.actions[:MAX_ROWS]
    )
    return table(
        "actions over the run; they may stand inside one another",
        "action|>calls|>mean ms|>total s",
        rows,
    )


def _comms(log: FrameworkLog) -> Table:
    has_stragglers = any(row.straggler_ns is not None for row in log.comms)
    rows = []
    for row in log.comms[:MAX_ROWS]:
        waited = (
            (("" if row.straggler_ns is None else _ms(row.straggler_ns)),) if has_stragglers else ()
        )
        bandwidth = "" if row.busbw_gbit_s is None else f"{row.busbw_gbit_s / 8:.4g}"
        rows.append(
            (
                row.op[:MAX_NAME],
                row.size,
                f"{row.num}",
                _ms(row.total_ns),
                _ms(row.mean_ns),
                bandwidth,
                *waited,
            )
        )
    columns = (
        "collective",
        "size",
        "count",
        "total ms",
        "mean ms",
        "bus GB/s",
        *(("straggler ms",) if has_stragglers else ()),
    )
    title = "collectives over the run, each waited for (the comms logger makes it so)"
    return Table(
        title=title, columns=columns, rows=tuple(rows), right=tuple(range(2, len(columns)))
    )


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.4g}" if ns < 1e10 else f"{ns / 1e6:.0f}"
