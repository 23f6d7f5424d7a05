"""Lines of Megatron-LM, and of what descends from it (Megatron-DeepSpeed, Megatron Bridge).

     [2026-04-27 00:00:01] iteration       10/    1000 | consumed samples:    2560 | elapsed time per iteration (ms): 4000.0 |
        throughput per GPU (TFLOP/s/GPU): 240.4 | learning rate: 1.5E-06 | global batch size:   256 | lm loss: 1.19E+01 | ...
    (min, max) time across ranks (ms):
        forward-backward ...............................: (1234.50, 1240.10)

The elapsed time is the mean of the iterations since the line before, with a barrier at both ends
(megatron/training/training.py). Timers are divided by the log interval (megatron/core/timers.py):
they are times of one iteration too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepscope.core.recordings.training_log import TOLD, Figure, FrameworkLog
from stepscope.readers.frameworks.lines import (
    NUMBER,
    fields,
    ns_of_ms,
    number,
    positive_ns,
    rank_of,
    whole,
)
from stepscope.readers.frameworks.parser import MAX_RANKS_KEPT, Most, Phases, Series

NAME = "Megatron"
SIGN = re.compile(
    rb"iteration +\d{1,12} */ *\d{1,12} *\|[^\n]{0,400}?elapsed time per iteration \(ms\):"
    rb"|using world size: \d{1,8}, data-parallel"
)
SIGN_MARKS = (b"elapsed time per iteration (ms):", b"using world size: ")
"""One of them is in whatever SIGN finds; they are sought faster."""
MARKS = (
    "elapsed time per iteration",
    "times across ranks (ms)",
    "time (ms) |",
    " memory (MB) |",
    " ..",
    "using world size:",
)
ITERATION = re.compile(r"iteration\s{1,16}(\d{1,12})\s{0,8}/\s{0,16}(\d{1,12})\s{0,4}\|")
TIMER = re.compile(
    rf"(?<![\w/-])([A-Za-z][\w/-]{{1,79}}) \.{{1,60}}: (?:\(({NUMBER}), "
    rf"({NUMBER})\)|({NUMBER}))\s*$"
)
ALL_NAME = re.compile(r"(?:^|:)\s{2,4}([A-Za-z][\w/-]{1,79}):\s*$")
ALL_RANK = re.compile(rf"\srank\s{{1,6}}(\d{{1,7}}): ({NUMBER})\s*$")
MEMORY = re.compile(rf" memory \(MB\) \|.{{0,200}}?max (?:reserved|allocated): ({NUMBER})")
RESERVED = re.compile(rf"max reserved: ({NUMBER})")
WORLD = re.compile(r"using world size: (\d{1,8}), (data-parallel.{0,300})")
SEQUENCE = re.compile(r"\bseq_length \.{2,60} (\d{1,9})\s*$")
NOT_A_STEP = ("setup", "checkpoint", "eval", "load", "initial")
"""Timers of what happens now and then: none of them is a part of a step."""
LOSSES = ("lm loss", "loss", "reduced_train_loss", "train loss")


@dataclass(slots=True)
class Draft:
    series: Series = field(default_factory=Series)
    phases: Phases = field(default_factory=Phases)
    tflops: Most = field(default_factory=Most)
    samples_per_s: Most = field(default_factory=Most)
    memory: Most = field(default_factory=Most)
    batch: int | None = None
    total: int | None = None
    world_size: int | None = None
    layout: str | None = None
    sequence: int | None = None
    ranks: set[int] = field(default_factory=set)
    num_skipped: int = 0
    num_nan: int = 0
    is_open: bool = False
    timer: str | None = None
    """Whose ranks' times follow, one in a line."""
    spread: tuple[int, int] | None = None

    def take(self, line: str) -> None:
        if self.is_open and self._take_rank(line):
            return
        if "elapsed time per iteration" in line and (found := ITERATION.search(line)):
            self._take_iteration(line, found)
        elif " .." in line:
            self._take_timer(line)
        elif "time (ms) |" in line:
            self._take_old_timers(line)
        elif "times across ranks (ms)" in line:
            self.is_open = True
        elif "memory (MB) |" in line and MEMORY.search(line):
            told = RESERVED.search(line) or MEMORY.search(line)
            value = number(told[1]) if told else None
            self.memory.add(None if value is None or value < 0 else value * 2**20)
        elif found := WORLD.search(line):
            self.world_size, self.layout = int(found[1]), found[2].strip()[:200]

    def _take_iteration(self, line: str, found: re.Match[str]) -> None:
        ns, loss = None, None
        for name, value in fields(line[found.end() :]):
            if name == "elapsed time per iteration (ms)":
                ns = positive_ns(value)
            elif name.startswith("throughput per GPU") or name == "TFLOPs":
                self.tflops.add(number(value))
            elif name == "samples per second":
                self.samples_per_s.add(number(value))
            elif name == "global batch size":
                self.batch = whole(value)
            elif name == "number of skipped iterations":
                self.num_skipped += min(whole(value) or 0, 10**9)
            elif name == "number of nan iterations":
                self.num_nan += min(whole(value) or 0, 10**9)
            elif name in LOSSES and loss is None:
                loss = number(value)
        if ns is not None:
            self.series.add(int(found[1]), ns, loss)
            self.total = int(found[2])
            rank = rank_of(line, found.start())
            if rank is not None and len(self.ranks) < MAX_RANKS_KEPT:
                self.ranks.add(rank)

    def _take_timer(self, line: str) -> None:
        found = TIMER.search(line)
        if found is None:
            told = SEQUENCE.search(line)
            self.sequence = int(told[1]) if told else self.sequence
            return
        if any(word in found[1] for word in NOT_A_STEP):
            return
        least, most = (
            (ns_of_ms(found[2]), ns_of_ms(found[3])) if found[3] else (None, ns_of_ms(found[4]))
        )
        if most is not None:
            self.phases.add(found[1], most, least)

    def _take_old_timers(self, line: str) -> None:
        """All in one line, as Megatron wrote them before it gathered ranks. DeepSpeed's look alike,
        with other names."""
        told = list(fields(line.partition("time (ms) |")[2]))
        if any("-" in name for name, _ in told):
            for name, value in told:
                ns = ns_of_ms(value)
                if ns is not None and not any(word in name for word in NOT_A_STEP):
                    self.phases.add(name[:80], ns)

    def _take_rank(self, line: str) -> bool:
        """`--timing-log-option all`: a timer's name, then a line for each rank."""
        told, name = ALL_RANK.search(line), ALL_NAME.search(line)
        if told is not None and self.timer is not None:
            ns = ns_of_ms(told[2])
            if ns is not None:
                low, high = self.spread or (ns, ns)
                self.spread = (min(low, ns), max(high, ns))
            return True
        self._end_timer()
        if name is not None:
            self.timer = name[1]
        else:
            self.is_open = False
        return name is not None

    def _end_timer(self) -> None:
        if (
            self.timer is not None
            and self.spread is not None
            and not any(word in self.timer for word in NOT_A_STEP)
        ):
            self.phases.add(self.timer, self.spread[1], self.spread[0])
        self.timer = self.spread = None

    def finished(self, path: str) -> FrameworkLog | None:
        self._end_timer()
        if not self.series.num and not self.phases.samples:
            return None
        step_ns, num = self.series.steady()
        rates = None if step_ns is None or not self.batch else self.batch / step_ns * 1e9
        said = self.samples_per_s.steady()
        tflops = self.tflops.steady()
        return FrameworkLog(
            framework=NAME,
            path=path,
            step_ns=step_ns,
            step_source=None if step_ns is None else TOLD,
            num_steps=num,
            first_step=self.series.first_step,
            last_step=self.series.last_step,
            steps=self.series.logged(),
            num_lines=self.series.num,
            phases=self.phases.phases(),
            tokens_per_s=None
            if rates is None or not self.sequence
            else Figure(
                value=rates * self.sequence,
                convention="of the job: global batch x seq_length / step time",
            ),
            samples_per_s=Figure(value=said, convention="of the job, as it is written")
            if said is not None
            else None
            if rates is None
            else Figure(value=rates, convention="of the job: global batch / step time"),
            tflops=None
            if tflops is None
            else Figure(
                value=tflops,
                convention="TFLOP/s of one GPU, by Megatron's own count of the model's FLOPs",
            ),
            memory_bytes=None
            if self.memory.most is None
            else Figure(
                value=self.memory.most,
                convention="most reserved by the allocator, of the ranks that wrote it",
            ),
            first_loss=self.series.first_loss,
            last_loss=self.series.last_loss,
            global_batch=self.batch,
            world_size=self.world_size,
            ranks=tuple(sorted(self.ranks)),
            remarks=() if self.layout is None else (("layout", self.layout),),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        notes = list(self.series.notes())
        if self.num_skipped:
            notes.append(
                f"{self.num_skipped} iteration(s) were skipped (an overflow of the loss scale, or "
                "a NaN)"
            )
        if self.num_nan:
            notes.append(f"{self.num_nan} iteration(s) had a NaN in their loss")
        return tuple(notes)
