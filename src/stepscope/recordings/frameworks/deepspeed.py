"""Lines of DeepSpeed: wall_clock_breakdown, throughput, progress, the pipeline engine's; with its
two tables.

    [2024-04-04 09:09:53,313] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[...]
    [Rank 0] time (ms) | fwd_microstep: 27.4 | bwd_microstep: 77.7 | ... | step_microstep: 0.05
    [Rank 0] time (ms) | fwd: 109.8 | bwd: 310.9 | bwd_inner: 303.0 | ... | step: 22.1
    epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec=25.70,
        MemAllocated=4.32GB, MaxMemAllocated=...
    steps: 10 loss: 2.3012 iter time (s): 0.443 samples/sec: 72.2

The second kind of `time (ms)` line is of one optimizer step: its timers run on over the
micro-batches (deepspeed/runtime/engine.py). fwd + bwd + step leave out what happens outside the
engine, the loader above all; the times of the progress lines do not.
"""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec.structs import replace

from stepscope.core.recordings.training_log import CLOCK, STATED, SUM, Figure, FrameworkLog
from stepscope.readers.text_lines import NUMBER, fields, ns_of_ms, number
from stepscope.recordings.frameworks.deepspeed_tables import CommsTable, FlopsBlock
from stepscope.recordings.frameworks.parser import MEMORY, OF_JOB, FrameworkParser
from stepscope.recordings.frameworks.series import Series

PROGRESS = re.compile(r"\bstep=(?P<step>\d{1,12}), skipped=(?P<num_skipped>\d{1,12}), ")
SPEED = re.compile(
    rf"(?:global_step=|\b\d{{1,9}}/)(?P<step>\d{{1,12}}), "
    rf"(?:RunningAvg)?SamplesPerSec=(?P<mean>{NUMBER})"
    rf"(?:, CurrSamplesPerSec=(?P<current>{NUMBER}))?"
    rf"(?:, MemAllocated={NUMBER}GB, MaxMemAllocated=(?P<most_gib>{NUMBER})GB)?"
)
PIPE = re.compile(
    rf"\bsteps: (\d{{1,12}}) loss: (nan|inf|{NUMBER}) .{{0,200}}?iter time \(s\): ({NUMBER}) "
    rf"samples/sec: ({NUMBER})"
)
CONFIG = re.compile(
    r" (?:train_batch_size \.{2,60} (?P<global_batch>\d{1,12})"
    r"|world_size \.{2,60} (?P<world_size>\d{1,12}))\s*$"
)
TIMERS = re.compile(r"time \(ms\) \|")
ENGINE = ("fwd", "bwd", "step")
"""A step inside the engine; bwd has bwd_inner and bwd_allreduce in it."""
VERBOSE = re.compile(
    rf"comm op: ([\w.:<>-]{{1,80}}) \| time \(ms\): ({NUMBER}) \| "
    r"msg size: ([\d.]{1,20} ?[A-Z]?B)"
)


class DeepSpeedParser(FrameworkParser):
    NAME = "DeepSpeed"
    SIGN = re.compile(
        rb"time \(ms\) \| (?:fwd|bwd|step|optimizer)\w{0,40}: \d|SamplesPerSec=[\d.]"
        rb"|Comm\. Op +Message Size +Count|-{10,40} DeepSpeed Flops Profiler -{10,40}"
        rb"|steps: \d{1,12} loss: [^\n]{1,200}iter time \(s\): \d"
        rb"|\[INFO\] \[logging\.py:\d{1,5}:log_dist\] \[Rank -?\d{1,6}\] "
    )
    SIGN_MARKS = (
        b"time (ms) | ", b"SamplesPerSec=", b"Comm. Op", b" DeepSpeed Flops Profiler ",
        b"iter time (s): ", b":log_dist] [Rank ",
    )  # fmt: skip
    CONVENTIONS: ClassVar = {
        "samples_per_s": OF_JOB,
        MEMORY: "most allocated (MaxMemAllocated), of the ranks that wrote it",
    }
    MARKS = ("Comm. Op", "Flops Profiler")
    MICRO = "_microstep"

    def __init__(self) -> None:
        super().__init__()
        self.engine = Series()
        """Sums of the engine's timers; `series` is the pipeline engine's lines."""
        self.comms = CommsTable()
        self.flops = FlopsBlock()

    @property
    def is_open(self) -> bool:
        return self.comms.mode is not None or self.flops.is_open

    def take(self, line: str) -> None:
        if not self.comms.take(line) and not self.flops.take(line):
            super().take(line)

    def _take_collective(self, _line: str, match: re.Match[str]) -> None:
        ns = ns_of_ms(match[2])
        if ns is not None:
            self.comms.count(match[1], match[3], ns)

    def _take_timers(self, line: str, match: re.Match[str]) -> None:
        timers = list(fields(line[match.end() :]))
        if any("-" in name for name, _ in timers):
            return  # Megatron's old timers.
        self.add_rank(line, match.start())
        times = {}
        for name, value in timers:
            ns = ns_of_ms(value)
            if ns is not None and name:
                times[name[:80]] = ns
        for name, ns in times.items():
            self.phases.add(name, ns)
        engine = [times[name] for name in ENGINE if name in times]
        if len(engine) == len(ENGINE) and any(engine):
            self.engine.add(self.engine.num + 1, sum(engine), None)

    def _take_speed(self, line: str, match: re.Match[str]) -> None:
        self.add_clock("speed", line, match)
        self.figures["samples_per_s"].add(number(match["current"] or match["mean"]))
        most = number(match["most_gib"] or "")
        # Without a device the accelerator writes 0.
        self.figures[MEMORY].add(most * 2**30 if most else None)

    def _take_progress(self, line: str, match: re.Match[str]) -> None:
        self.take_facts(line, match)
        self.add_clock("progress", line, match)

    def _take_pipe(self, _line: str, match: re.Match[str]) -> None:
        seconds = number(match[3])
        self.figures["samples_per_s"].add(number(match[4]))
        if seconds is not None and 0 < seconds < 1e7:
            self.series.add(int(match[1]), round(seconds * 1e9), number(match[2]))

    LINES = (
        ("comm op: ", VERBOSE, _take_collective),
        ("time (ms) |", TIMERS, _take_timers),
        ("SamplesPerSec=", SPEED, _take_speed),
        ("skipped=", PROGRESS, _take_progress),
        (" iter time (s): ", PIPE, _take_pipe),
        (" train_batch_size ", CONFIG, FrameworkParser.take_facts),
        (" world_size ", CONFIG, FrameworkParser.take_facts),
    )

    def step_time(self) -> tuple[int | None, int, str | None]:
        for steady, source in ((self.series, STATED), (self.clocks, CLOCK), (self.engine, SUM)):
            step_ns, num = steady.steady()
            if step_ns is not None:
                return step_ns, num, source
        return None, 0, None

    def is_empty(self) -> bool:
        return not (
            self.series.num
            or self.phases.samples
            or self.clocks.by_key
            or self.figures["samples_per_s"].values
            or self.comms.rows()
            or self.flops.remarks()
        )

    def figure(self, name: str) -> Figure | None:
        if name == "tflops":
            return self.flops.tflops()
        figure = super().figure(name)
        return None if figure is None or figure.value < 0 else figure

    def finished(self, path: str) -> FrameworkLog | None:
        log = super().finished(path)
        if log is None:
            return None
        steps = self.series if self.series.num else self.engine
        return replace(
            log,
            last_step=log.last_step or self.count("step"),
            steps=steps.logged(),
            num_lines=steps.num,
            comms=self.comms.rows(),
            world_size=log.world_size or self.flops.world_size,
        )

    def remarks(self) -> tuple[tuple[str, str], ...]:
        return self.flops.remarks()

    def notes(self) -> tuple[str, ...]:
        notes = list(super().notes())
        (step_ns, _, source), (engine_ns, _) = self.step_time(), self.engine.steady()
        if source == SUM:
            notes.append(
                "the step is fwd + bwd + step: what happens outside the engine (the loader, "
                "logging) is not in it"
            )
        elif step_ns is not None and engine_ns is not None and engine_ns < 0.95 * step_ns:
            outside = 1 - engine_ns / step_ns
            notes.append(
                f"{outside:.0%} of the step is outside the engine's fwd, bwd and step: the "
                "loader, logging, evaluation"
            )
        if num_skipped := self.count("num_skipped"):
            notes.append(f"{num_skipped} step(s) were skipped for an overflow of the loss scale")
        if self.phases.num_left_out:
            notes.append(f"{self.phases.num_left_out} time(s) of further timers were left out")
        return (*notes, *self.comms.notes())
