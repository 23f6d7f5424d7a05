"""Lines of Megatron-LM, and of what descends from it (Megatron-DeepSpeed, Megatron Bridge).

     [2026-04-27 00:00:01] iteration       10/    1000 | consumed samples:    2560 |
        elapsed time per iteration (ms): 4000.0 | throughput per GPU (TFLOP/s/GPU): 240.4 |
        learning rate: 1.5E-06 | global batch size:   256 | lm loss: 1.19E+01 | ...
    (min, max) time across ranks (ms):
        forward-backward ...............................: (1234.50, 1240.10)

The elapsed time is the mean of the iterations since the line before, with a barrier at both ends
(megatron/training/training.py). Timers are divided by the log interval (megatron/core/timers.py):
they are times of one iteration too.
"""

from __future__ import annotations

import re
from typing import ClassVar

from stepscope.core.recordings.training_log import Figure, FrameworkLog
from stepscope.readers.text_lines import NUMBER, fields, ns_of_ms, number
from stepscope.recordings.frameworks.parser import (
    LOSS,
    MAX_RESERVED,
    MEMORY,
    OF_JOB,
    STEP_MS,
    FrameworkParser,
)

ITERATION = re.compile(r"iteration\s{1,16}(?P<step>\d{1,12})\s{0,8}/\s{0,16}\d{1,12}\s{0,4}\|")
TIMER = re.compile(
    r"(?<![\w/-])(?P<name>[A-Za-z][\w/-]{1,79}) \.{1,60}: "
    rf"(?:\((?P<least>{NUMBER}), (?P<most>{NUMBER})\)|(?P<only>{NUMBER}))\s*$"
)
OLD_TIMERS = re.compile(r"time \(ms\) \|")
"""All in one line, as Megatron wrote them before it gathered ranks."""
ALL_RANKS = re.compile(r"times across ranks \(ms\)")
ALL_NAME = re.compile(r"(?:^|:)\s{2,4}([A-Za-z][\w/-]{1,79}):\s*$")
ALL_RANK = re.compile(rf"\srank\s{{1,6}}(\d{{1,7}}): ({NUMBER})\s*$")
MAX_MEMORY = re.compile(rf" memory \(MB\) \|.{{0,200}}?max (?:reserved|allocated): ({NUMBER})")
RESERVED = re.compile(rf"max reserved: ({NUMBER})")
WORLD = re.compile(r"using world size: (?P<world_size>\d{1,8}), (?P<layout>data-parallel.{0,300})")
SEQUENCE = re.compile(r"\bseq_length \.{2,60} (?P<sequence>\d{1,9})\s*$")
NOT_A_STEP = ("setup", "checkpoint", "eval", "load", "initial")
"""Timers of what happens now and then: none of them is a part of a step."""


class MegatronParser(FrameworkParser):
    NAME = "Megatron"
    SIGN = re.compile(
        rb"iteration +\d{1,12} */ *\d{1,12} *\|[^\n]{0,400}?elapsed time per iteration \(ms\):"
        rb"|using world size: \d{1,8}, data-parallel"
    )
    SIGN_MARKS = (b"elapsed time per iteration (ms):", b"using world size: ")
    METRICS: ClassVar = {
        "elapsed time per iteration (ms)": STEP_MS, "throughput per GPU": "tflops",
        "TFLOPs": "tflops", "samples per second": "samples_per_s",
        "global batch size": "global_batch", "number of skipped iterations": "num_skipped",
        "number of nan iterations": "num_nan", "lm loss": LOSS, "loss": LOSS,
        "reduced_train_loss": LOSS, "train loss": LOSS,
    }  # fmt: skip
    COUNTS = ("num_skipped", "num_nan")
    CONVENTIONS: ClassVar = {
        "samples_per_s": OF_JOB,
        "tflops": "TFLOP/s of one GPU, by Megatron's own count of the model's FLOPs",
        MEMORY: MAX_RESERVED,
    }

    def __init__(self) -> None:
        super().__init__()
        self._lists_ranks = False
        self._timer: str | None = None
        """Timer whose ranks' times follow, one in a line."""
        self._rank_times: list[int] = []
        """The least and the most of them so far."""

    @property
    def is_open(self) -> bool:
        return self._lists_ranks

    def take(self, line: str) -> None:
        if not self._lists_ranks or not self._take_rank(line):
            super().take(line)

    def _take_timer(self, _line: str, match: re.Match[str]) -> None:
        self._add_phase(match["name"], match["most"] or match["only"], match["least"])

    def _take_old_timers(self, line: str, match: re.Match[str]) -> None:
        timers = list(fields(line[match.end() :]))
        # DeepSpeed's look alike, with other names.
        if any("-" in name for name, _ in timers):
            for name, value in timers:
                self._add_phase(name[:80], value)

    def _add_phase(self, name: str, most: str, least: str | None = None) -> None:
        ns = ns_of_ms(most)
        if ns is not None and not any(word in name for word in NOT_A_STEP):
            self.phases.add(name, ns, None if least is None else ns_of_ms(least))

    def _take_memory(self, line: str, match: re.Match[str]) -> None:
        value = number((RESERVED.search(line) or match)[1])
        self.figures[MEMORY].add(None if value is None or value < 0 else value * 2**20)

    def _start_ranks(self, _line: str, _match: re.Match[str]) -> None:
        self._lists_ranks = True

    LINES = (
        ("elapsed time per iteration", ITERATION, FrameworkParser.take_step),
        (" ..", TIMER, _take_timer),
        (" ..", SEQUENCE, FrameworkParser.take_facts),
        ("time (ms) |", OLD_TIMERS, _take_old_timers),
        ("times across ranks (ms)", ALL_RANKS, _start_ranks),
        (" memory (MB) |", MAX_MEMORY, _take_memory),
        ("using world size:", WORLD, FrameworkParser.take_facts),
    )

    def _take_rank(self, line: str) -> bool:
        """`--timing-log-option all`: a timer's name, then a line for each rank."""
        rank, name = ALL_RANK.search(line), ALL_NAME.search(line)
        if rank is not None and self._timer is not None:
            ns = ns_of_ms(rank[2])
            if ns is not None:
                times = (*self._rank_times, ns)
                self._rank_times = [min(times), max(times)]
            return True
        self._end_timer()
        self._timer = name[1] if name else None
        self._lists_ranks = name is not None
        return name is not None

    def _end_timer(self) -> None:
        name, times = self._timer, self._rank_times
        if name is not None and times and not any(word in name for word in NOT_A_STEP):
            self.phases.add(name, times[1], times[0])
        self._timer, self._rank_times = None, []

    def is_empty(self) -> bool:
        return super().is_empty() and not self.phases.samples

    def finished(self, path: str) -> FrameworkLog | None:
        self._end_timer()
        return super().finished(path)

    def figure(self, name: str) -> Figure | None:
        figure = super().figure(name)
        step_ns = self.step_time()[0]
        batch = self.count("global_batch")
        sequence = self.count("sequence")
        if figure is not None or step_ns is None or not batch:
            return figure
        rate = batch / step_ns * 1e9
        if name == "samples_per_s":
            return Figure(value=rate, convention="of the job: global batch / step time")
        if name == "tokens_per_s" and sequence:
            convention = "of the job: global batch x seq_length / step time"
            return Figure(value=rate * sequence, convention=convention)
        return None

    def remarks(self) -> tuple[tuple[str, str], ...]:
        return (("layout", self.facts["layout"]),) if "layout" in self.facts else ()

    def notes(self) -> tuple[str, ...]:
        notes = list(super().notes())
        if num := self.counts["num_skipped"]:
            notes.append(
                f"{num} iteration(s) were skipped (an overflow of the loss scale, or a NaN)"
            )
        if num := self.counts["num_nan"]:
            notes.append(f"{num} iteration(s) had a NaN in their loss")
        return tuple(notes)
