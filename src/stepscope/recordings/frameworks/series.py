"""What is gathered of one framework's lines, bounded, and the steady step in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median

from stepscope.core.recordings.training_log import LoggedStep, Phase

MAX_STEPS = 4096
"""Lines about steps that are kept: the last ones."""
MAX_SAMPLES = 512
"""Samples of one phase that are kept."""
MAX_PHASES = 64
MAX_CLOCKS = 64
FIRST_SHARE = 10
"""A tenth of the lines is left out at the beginning, and at most as many lines: there steps warm
up."""
MIN_STEPS = 3
"""Steps from which a time is given."""
MIN_MEAN_STEPS = 50
"""Steps from which the mean over a whole run is its pace: a first step that takes five times as
long moves it by less than a tenth."""
FINE = 20
"""How many times a clock's resolution a stretch must last: then its length is known to a
twentieth."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: a step's number, its time, and how many steps that is the mean of."""

    step: int
    ns: int | None
    num: int
    run: int = 0
    """How often the steps had begun anew before it."""


@dataclass(slots=True)
class Series:
    """The lines about steps, in order."""

    entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    num: int = 0
    first_step: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None

    def add(self, step: int, ns: int | None, loss: float | None) -> None:
        last = self.entries[-1] if self.entries else None
        if last is not None and last.step == step:
            # Another rank's word on the same step: the others wait for the slowest.
            if ns is not None and ns > (last.ns or 0):
                self.entries[-1] = replace(last, ns=ns)
            return
        num = step - last.step if last is not None and step > last.step else 1
        run = 0 if last is None else last.run + (step < last.step)
        self.entries.append(Entry(step, ns, num, run))
        self.num += 1
        self.first_step = step if self.first_step is None else self.first_step
        if loss is not None:
            self.first_loss = loss if self.first_loss is None else self.first_loss
            self.last_loss = loss

    @property
    def last_step(self) -> int | None:
        return self.entries[-1].step if self.entries else None

    def steady(self) -> tuple[int | None, int]:
        """The median of the steps after the first ones, and how many steps it is of; of the last
        run, where several are there."""
        chosen = self._last_run() or list(self.entries)
        timed = [entry for entry in chosen if entry.ns is not None]
        has_first = self.num == len(self.entries) or len(chosen) < len(self.entries)
        if has_first and len(timed) == len(chosen) and len(timed) > 1:
            skipped = max(1, min(FIRST_SHARE, len(timed) // FIRST_SHARE))
            # Megatron writes a line for the first step, and has that step in its next line too,
            # whose interval is one shorter.
            skipped += skipped == 1 and len(timed) > 2 and timed[1].num < timed[2].num
            timed = timed[skipped:]
        num = sum(entry.num for entry in timed)
        times = [entry.ns for entry in timed if entry.ns is not None]
        return (round(median(times)), num) if num >= MIN_STEPS else (None, 0)

    def _last_run(self) -> list[Entry]:
        """The lines since the steps last began anew; empty where they are too few for a time, or
        the lines of several writers."""
        run = self.entries[-1].run if self.entries else 0
        entries = [entry for entry in self.entries if entry.run == run]
        return entries if run and len(entries) > MIN_STEPS else []

    def notes(self) -> tuple[str, ...]:
        entries = self._last_run()
        if not entries or len(entries) == len(self.entries):
            return ()
        first, num = entries[0].step, len(entries)
        note = f"the step time is of the {num} lines from there on"
        return (f"the steps begin anew at step {first}: {note}",)

    def logged(self) -> tuple[LoggedStep, ...]:
        return tuple(LoggedStep(step=entry.step, ns=entry.ns) for entry in self.entries)


@dataclass(slots=True)
class Clock:
    """Steps and the times at which their lines were written: a stretch between two of them shows
    what a step takes."""

    resolution_s: float
    lengths: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    """Seconds for a step, and the steps of the stretch."""
    num_points: int = 0
    last: tuple[int, float] | None = None
    _anchor: tuple[int, float] | None = None

    def add(self, step: int, seconds: float) -> None:
        if self.last is not None and step == self.last[0]:
            return
        self.num_points += 1
        went_back = self.last is not None and (step < self.last[0] or seconds < self.last[1])
        self.last = (step, seconds)
        # What comes before the first line, or the first after a restart, is not one stretch of
        # steps.
        if self._anchor is None or went_back:
            self._anchor = (step, seconds) if went_back or self.num_points > 1 else None
            return
        num, length = step - self._anchor[0], seconds - self._anchor[1]
        if length >= FINE * self.resolution_s:
            self.lengths.append((length / num, num))
            self._anchor = (step, seconds)

    def steady(self) -> tuple[int | None, int]:
        """The median stretch, by steps: an evaluation or a save makes one stretch longer, not the
        median."""
        num = sum(count for _, count in self.lengths)
        if num < MIN_STEPS:
            return None, 0
        ordered, so_far = sorted(self.lengths), 0
        for length, count in ordered:
            so_far += count
            if 2 * so_far >= num:
                return round(length * 1e9) or None, num
        raise AssertionError("unreachable: the counts add up to num")


@dataclass(slots=True)
class Clocks:
    """A clock for each writer."""

    resolution_s: float
    by_key: dict[object, Clock] = field(default_factory=dict)

    def add(self, key: object, step: int, seconds: float) -> None:
        clock = self.by_key.get(key)
        if clock is None:
            if len(self.by_key) >= MAX_CLOCKS:
                return
            clock = self.by_key[key] = Clock(self.resolution_s)
        clock.add(step, seconds)

    def steady(self) -> tuple[int | None, int]:
        """Steady step of the writer whose steps are slowest: the others wait for it, or write a
        line less often."""
        times = [clock.steady() for clock in self.by_key.values()]
        return max(times, key=lambda time: time[0] or 0, default=(None, 0))


@dataclass(slots=True)
class Phases:
    samples: dict[str, deque[tuple[int, int | None]]] = field(default_factory=dict)
    num_left_out: int = 0

    def add(self, name: str, ns: int, least_ns: int | None = None) -> None:
        kept = self.samples.get(name)
        if kept is None:
            if len(self.samples) >= MAX_PHASES:
                self.num_left_out += 1
                return
            kept = self.samples[name] = deque(maxlen=MAX_SAMPLES)
        kept.append((ns, least_ns))

    def phases(self, micro: str | None = None) -> tuple[Phase, ...]:
        """The longest first; `micro` is how the name of a micro-batch's timer ends."""
        phases = []
        for name, kept in self.samples.items():
            # Without the first, where there are others.
            settled = list(kept)[1:] if len(kept) > 1 else list(kept)
            least = [ns for _, ns in settled if ns is not None]
            phases.append(
                Phase(
                    name=name,
                    ns=round(median(ns for ns, _ in settled)),
                    least_ns=round(median(least)) if least else None,
                    is_micro=micro is not None and name.endswith(micro),
                )
            )
        return tuple(sorted(phases, key=lambda phase: (phase.is_micro, -phase.ns, phase.name)))


@dataclass(slots=True)
class FigureSamples:
    """The last values of a figure, and the most of them."""

    values: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    most: float | None = None

    def add(self, value: float | None) -> None:
        if value is not None:
            self.values.append(value)
            self.most = value if self.most is None else max(self.most, value)

    def steady(self) -> float | None:
        kept = list(self.values)[1:] or list(self.values)
        return float(median(kept)) if kept else None
