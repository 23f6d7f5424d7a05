"""The parser of a framework's lines, driven by its table: kinds of lines, the metrics in a line
about a step, and the convention of each figure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from stepscope.core.recordings.training_log import CLOCK, STATED, Figure, FrameworkLog
from stepscope.readers.text_lines import (
    fields,
    milliseconds_to_ns,
    number,
    rank_of,
    seconds_of,
    whole,
    whole_number,
)
from stepscope.recordings.frameworks.series import Clocks, FigureSamples, Phases, Series

MAX_RANKS_KEPT = 4096
MAX_FACT = 200
MAX_COUNT = 10**9
STEP_MS, LOSS = "step_ms", "loss"
MEMORY = "memory_bytes"
OF_JOB = "of the job, as it is written"
MAX_RESERVED = "most reserved by the allocator, of the ranks that wrote it"


LineKind: TypeAlias = tuple[str, re.Pattern[str], Callable[[Any, str, re.Match[str]], None]]
"""What is in every such line (it is sought faster than the pattern), its pattern, and the method
that takes it."""


class FrameworkParser:
    """What is gathered of one framework. A subclass is its table, and functions for what is its
    alone."""

    NAME: ClassVar[str]
    SIGN: ClassVar[re.Pattern[bytes]]
    """A line of the framework's, with its numbers."""
    SIGN_MARKS: ClassVar[tuple[bytes, ...]]
    """One of them is in whatever SIGN matches: they are sought faster."""
    LINES: ClassVar[tuple[LineKind, ...]] = ()
    MARKS: ClassVar[tuple[str, ...]] = ()
    """Marks of further lines that `take` must see."""
    METRICS: ClassVar[Mapping[str, str]] = {}
    """What the numbers in a line about a step are, by their name as it is written, with its unit or
    without: STEP_MS, LOSS, a figure of FrameworkLog, a count, or else a fact."""
    COUNTS: ClassVar[tuple[str, ...]] = ()
    """What of METRICS is added up over the lines."""
    CONVENTIONS: ClassVar[Mapping[str, str]] = {}
    """Convention of each figure that is gathered."""
    STEP_SOURCE: ClassVar[str] = STATED
    RESOLUTION_S: ClassVar[float] = 0.001
    MICRO: ClassVar[str | None] = None
    """How the name of a micro-batch's timer ends."""

    def __init__(self) -> None:
        self.series = Series()
        self.clocks = Clocks(self.RESOLUTION_S)
        self.phases = Phases()
        self.figures = {name: FigureSamples() for name in self.CONVENTIONS}
        self.facts: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.ranks: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Inside a table, whose lines have no mark of their own."""
        return False

    def wants(self, text: str) -> bool:
        """Whether some line in a text is one to take."""
        return (
            self.is_open
            or any(mark in text for mark, _, _ in self.LINES)
            or any(mark in text for mark in self.MARKS)
        )

    def take(self, line: str) -> None:
        for mark, pattern, take in self.LINES:
            if mark in line and (match := pattern.search(line)):
                take(self, line, match)
                return

    def take_facts(self, _line: str, match: re.Match[str]) -> None:
        """A line whose named groups are facts."""
        for name, text in match.groupdict().items():
            if text is not None:
                self.facts[name] = text.strip()[:MAX_FACT]

    def take_step(self, line: str, match: re.Match[str]) -> None:
        """A line about a step: its pattern has the groups `step`, perhaps `loss`, and `rest` where
        the metrics do not stand behind it."""
        groups = match.groupdict()
        ns, loss = None, number(groups.get("loss", ""))
        for name, text in self.pairs(groups.get("rest", line[match.end() :])):
            field = self.METRICS.get(name) or self.METRICS.get(name.partition(" (")[0], "")
            value = self.number(text)
            if field == STEP_MS:
                ns = milliseconds_to_ns(value) or None
            elif field == LOSS:
                loss = value if loss is None else loss
            elif field in self.COUNTS:
                self.counts[field] += min(whole_number(value) or 0, MAX_COUNT)
            elif field in self.figures:
                self.figures[field].add(value)
            elif field:
                self.facts[field] = text
        if self.STEP_SOURCE == CLOCK:
            self.add_clock(None, line, match)
        elif ns is None:
            return
        self.add_rank(line, match.start())
        self.series.add(int(groups["step"]), ns, loss)

    def pairs(self, text: str) -> Iterable[tuple[str, str]]:
        """Names and values of the metrics in a line."""
        return fields(text)

    def number(self, text: str) -> float | None:
        """A number as this framework writes it."""
        return number(text)

    def add_clock(self, kind: str | None, line: str, match: re.Match[str]) -> None:
        """The time at which a line about a step was written."""
        rank, seconds = self.add_rank(line, match.start()), seconds_of(line, match.start())
        if seconds is not None:
            self.clocks.add((kind, rank), int(match["step"]), seconds)

    def add_rank(self, line: str, end: int) -> int | None:
        rank = rank_of(line, end)
        if rank is not None and len(self.ranks) < MAX_RANKS_KEPT:
            self.ranks.add(rank)
        return rank

    def count(self, name: str) -> int | None:
        """A fact that is a whole number."""
        return whole(self.facts.get(name, ""))

    def figure(self, name: str) -> Figure | None:
        samples = self.figures.get(name)
        if samples is None:
            return None
        value = samples.most if name == MEMORY else samples.steady()
        return None if value is None else Figure(value=value, convention=self.CONVENTIONS[name])

    def is_empty(self) -> bool:
        return not self.series.num

    def step_time(self) -> tuple[int | None, int, str | None]:
        """Step time of the steady steps, of how many it is, and how it is known."""
        times = self.clocks if self.STEP_SOURCE == CLOCK else self.series
        return (*times.steady(), self.STEP_SOURCE)

    def remarks(self) -> tuple[tuple[str, str], ...]:
        return ()

    def notes(self) -> tuple[str, ...]:
        return self.series.notes() if self.STEP_SOURCE == STATED else ()

    def finished(self, path: str) -> FrameworkLog | None:
        if self.is_empty():
            return None
        step_ns, num, source = self.step_time()
        return FrameworkLog(
            framework=self.NAME,
            path=path,
            step_ns=step_ns,
            step_source=None if step_ns is None else source,
            num_steps=num,
            first_step=self.series.first_step,
            last_step=self.series.last_step,
            steps=self.series.logged(),
            num_lines=self.series.num,
            phases=self.phases.phases(self.MICRO),
            tokens_per_s=self.figure("tokens_per_s"),
            samples_per_s=self.figure("samples_per_s"),
            tflops=self.figure("tflops"),
            mfu=self.figure("mfu"),
            memory_bytes=self.figure(MEMORY),
            first_loss=self.series.first_loss,
            last_loss=self.series.last_loss,
            global_batch=self.count("global_batch"),
            world_size=self.count("world_size"),
            ranks=tuple(sorted(self.ranks)),
            remarks=self.remarks(),
            notes=self.notes(),
        )
