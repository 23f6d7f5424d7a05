"""Lines of DeepSpeed: wall_clock_breakdown, throughput, progress, the pipeline engine's; with its
two tables.

    [2024-04-04 09:09:53,313] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0003], mom=[(0.9, 0.999)]
    [Rank 0] time (ms) | fwd_microstep: 27.4 | bwd_microstep: 77.7 | bwd_inner_microstep: ... | step_microstep: 0.05
    [Rank 0] time (ms) | fwd: 109.8 | bwd: 310.9 | bwd_inner: 303.0 | bwd_allreduce: 7.8 | step: 22.1
    epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec=25.70, MemAllocated=4.32GB, MaxMemA...
    steps: 10 loss: 2.3012 iter time (s): 0.443 samples/sec: 72.2

The second kind of `time (ms)` line is of one optimizer step: its timers run on over the
micro-batches (deepspeed/runtime/engine.py). fwd + bwd + step leave out what happens outside the
engine, the loader above all; the times of the progress lines do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepscope.core.recordings.training_log import CLOCK, SUM, TOLD, Figure, FrameworkLog
from stepscope.readers.frameworks.deepspeed_tables import CommsTable, FlopsBlock
from stepscope.readers.frameworks.lines import NUMBER, fields, ns_of_ms, number, rank_of, seconds_of
from stepscope.readers.frameworks.parser import MAX_RANKS_KEPT, Clocks, Most, Phases, Series

NAME = "DeepSpeed"
SIGN = re.compile(
    rb"time \(ms\) \| (?:fwd|bwd|step|optimizer)\w{0,40}: \d|SamplesPerSec=[\d.]|Comm\. Op "
    rb"+Message Size +Count"
    rb"|-{10,40} DeepSpeed Flops Profiler -{10,40}|steps: \d{1,12} loss: [^\n]{1,200}iter time "
    rb"\(s\): \d"
    rb"|\[INFO\] \[logging\.py:\d{1,5}:log_dist\] \[Rank -?\d{1,6}\] "
)
SIGN_MARKS = (
    b"time (ms) | ",
    b"SamplesPerSec=",
    b"Comm. Op",
    b" DeepSpeed Flops Profiler ",
    b"iter time (s): ",
    b":log_dist] [Rank ",
)
"""One of them is in whatever SIGN finds; they are sought faster."""
MARKS = (
    "time (ms)",
    "SamplesPerSec=",
    "Comm. Op",
    " iter time (s): ",
    "skipped=",
    "Flops Profiler",
    " train_batch_size ",
    " world_size ",
)
PROGRESS = re.compile(r"\bstep=(\d{1,12}), skipped=(\d{1,12}), ")
SPEED = re.compile(
    rf"(?:global_step=|\b\d{{1,9}}/)(\d{{1,12}}), (?:RunningAvg)?SamplesPerSec=({NUMBER})(?:, "
    rf"CurrSamplesPerSec=({NUMBER}))?"
    rf"(?:, MemAllocated={NUMBER}GB, MaxMemAllocated=({NUMBER})GB)?"
)
PIPE = re.compile(
    rf"\bsteps: (\d{{1,12}}) loss: (nan|inf|{NUMBER}) .{{0,200}}?iter time \(s\): ({NUMBER}) "
    rf"samples/sec: ({NUMBER})"
)
CONFIG = re.compile(r" (train_batch_size|world_size) \.{2,60} (\d{1,12})\s*$")
MICRO = "_microstep"
ENGINE = ("fwd", "bwd", "step")
"""A step inside the engine; bwd has bwd_inner and bwd_allreduce in it."""
VERBOSE = re.compile(
    rf"comm op: ([\w.:<>-]{{1,80}}) \| time \(ms\): ({NUMBER}) \| msg size: ([\d.]{{1,20}} "
    r"?[A-Z]?B)"
)


@dataclass(slots=True)
class Draft:
    engine: Series = field(default_factory=Series)
    pipe: Series = field(default_factory=Series)
    clocks: Clocks = field(default_factory=lambda: Clocks(resolution_s=0.001))
    phases: Phases = field(default_factory=Phases)
    speed: Most = field(default_factory=Most)
    memory: Most = field(default_factory=Most)
    batch: int | None = None
    world_size: int | None = None
    num_skipped: int | None = None
    last_step: int | None = None
    ranks: set[int] = field(default_factory=set)
    comms: CommsTable = field(default_factory=CommsTable)
    flops: FlopsBlock = field(default_factory=FlopsBlock)

    @property
    def is_open(self) -> bool:
        """Inside a table, whose lines have no mark of their own."""
        return self.comms.mode is not None or self.flops.is_open

    def take(self, line: str) -> None:
        if self.comms.take(line) or self.flops.take(line):
            return
        if "comm op: " in line and (found := VERBOSE.search(line)):
            ns = ns_of_ms(found[2])
            if ns is not None:
                self.comms.count(found[1], found[3], ns)
        elif "time (ms) |" in line:
            self._take_timers(line)
        elif "SamplesPerSec=" in line and (found := SPEED.search(line)):
            self._take_speed(line, found)
        elif "skipped=" in line and (found := PROGRESS.search(line)):
            self.last_step, self.num_skipped = int(found[1]), int(found[2])
            self._clock("progress", line, found)
        elif " iter time (s): " in line and (found := PIPE.search(line)):
            seconds = number(found[3])
            self.speed.add(number(found[4]))
            if seconds is not None and 0 < seconds < 1e7:
                self.pipe.add(int(found[1]), round(seconds * 1e9), number(found[2]))
        elif found := CONFIG.search(line):
            if found[1] == "world_size":
                self.world_size = int(found[2])
            else:
                self.batch = int(found[2])

    def _take_timers(self, line: str) -> None:
        told = [(name, ns_of_ms(value)) for name, value in fields(line.partition("time (ms) |")[2])]
        if any("-" in name for name, _ in told):
            return  # Megatron's old timers.
        self._rank(line, line.find("time (ms) |"))
        times = {name[:80]: ns for name, ns in told if ns is not None and name}
        for name, ns in times.items():
            self.phases.add(name, ns)
        engine: list[int] = [times[name] for name in ENGINE if name in times]
        if len(engine) == len(ENGINE) and any(engine):
            self.engine.add(self.engine.num + 1, sum(engine), None)

    def _take_speed(self, line: str, found: re.Match[str]) -> None:
        self._clock("speed", line, found)
        self.speed.add(number(found[3] or found[2]))
        most = number(found[4]) if found[4] else None
        # No device: the accelerator tells 0.
        self.memory.add(most * 2**30 if most else None)

    def _clock(self, kind: str, line: str, found: re.Match[str]) -> None:
        seconds = seconds_of(line, found.start())
        rank = self._rank(line, found.start())
        if seconds is not None:
            self.clocks.add((kind, rank), int(found[1]), seconds)

    def _rank(self, line: str, end: int) -> int | None:
        rank = rank_of(line, end)
        if rank is not None and len(self.ranks) < MAX_RANKS_KEPT:
            self.ranks.add(rank)
        return rank

    def _step(self) -> tuple[int | None, int, str | None]:
        for (step_ns, num), source in (
            (self.pipe.steady(), TOLD),
            (self.clocks.steady(), CLOCK),
            (self.engine.steady(), SUM),
        ):
            if step_ns is not None:
                return step_ns, num, source
        return None, 0, None

    def finished(self, path: str) -> FrameworkLog | None:
        comms, remarks = self.comms.rows(), self.flops.remarks()
        is_empty = not (
            self.phases.samples or self.pipe.num or self.clocks.by_key or self.speed.values
        )
        if is_empty and not comms and not remarks:
            return None
        step_ns, num, source = self._step()
        speed = self.speed.steady()
        return FrameworkLog(
            framework=NAME,
            path=path,
            step_ns=step_ns,
            step_source=source,
            num_steps=num,
            first_step=self.pipe.first_step,
            last_step=self.pipe.last_step or self.last_step,
            steps=(self.pipe if self.pipe.num else self.engine).logged(),
            num_lines=(self.pipe if self.pipe.num else self.engine).num,
            phases=self.phases.phases(MICRO),
            comms=comms,
            samples_per_s=None
            if speed is None or speed < 0
            else Figure(value=speed, convention="of the job, as it is written"),
            tflops=self.flops.tflops(),
            memory_bytes=None
            if self.memory.most is None
            else Figure(
                value=self.memory.most,
                convention="most allocated (MaxMemAllocated), of the ranks that wrote it",
            ),
            first_loss=self.pipe.first_loss,
            last_loss=self.pipe.last_loss,
            global_batch=self.batch,
            world_size=self.world_size or self.flops.world_size,
            ranks=tuple(sorted(self.ranks)),
            remarks=remarks,
            notes=self._notes(step_ns, source),
        )

    def _notes(self, step_ns: int | None, source: str | None) -> tuple[str, ...]:
        notes = list(self.pipe.notes())
        engine_ns, _ = self.engine.steady()
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
        if self.num_skipped:
            notes.append(
                f"{self.num_skipped} step(s) were skipped for an overflow of the loss scale"
            )
        if self.phases.num_left_out:
            notes.append(f"{self.phases.num_left_out} time(s) of further timers were left out")
        return (*notes, *self.comms.notes())
