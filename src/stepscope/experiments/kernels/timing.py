"""The right configurations of one case timed against each other.

All take turns, in another order each round, so that a device that warms up or slows down does not choose. The fastest few then
run on, and the best of them is compared with the baseline in pairs of fresh samples: the gain comes from those alone, since the
winner of many is partly lucky in the samples that it won with. Where these do not show it faster, the baseline stands.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from stepscope.core.kernel_tuning import Case, Gain, Timed
from stepscope.experiments.kernels.bench import Sampled
from stepscope.experiments.kernels.choice import gain, is_told_apart, timed
from stepscope.experiments.kernels.space import Settings

SCREEN_ROUNDS, LEAST_SCREEN = 7, 2
FINAL_ROUNDS, LEAST_FINAL = 15, 3
PAIRS, LEAST_PAIRS = 31, 7
FINALISTS = 4
MOST_INNER = 200
REFERENCE = -1
"""The reference's place among the configurations."""


class Sampler(Protocol):
    def sample(self, settings: Settings | None, case: Case, inner: int, limit_s: float) -> Sampled: ...


@dataclass(slots=True)
class Race:
    """One case's timing. `settings` are by the configuration's number; those that were found wrong are not among them."""

    bench: Sampler
    case: Case
    settings: dict[int, Settings]
    baseline: int | None
    has_reference: bool
    sample_s: float
    limit_s: float
    now: Callable[[], float]
    deadline: float
    samples: dict[int, list[float]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    inner: dict[int, int] = field(default_factory=dict)

    def run(self) -> Raced:
        """The race from start to end."""
        start, generator = self.now(), random.Random(0)  # noqa: S311 - an order of samples is no secret
        left = max(self.deadline - start, 0.0)
        running = [*self.settings, *([REFERENCE] if self.has_reference else [])]
        running = [one for one in running if self._warm(one)]
        self._rounds(running, SCREEN_ROUNDS, LEAST_SCREEN, start + left * 0.5, generator)
        finalists = self._finalists()
        final = self._rounds(finalists, FINAL_ROUNDS, LEAST_FINAL, start + left * 0.75, generator)
        best = self._best(finalists)
        if best is None:
            return self._raced(None, None, ())
        ties = tuple(one for one in finalists if one not in (best, REFERENCE) and _tied(final, one, best))
        if self.baseline is None or self.baseline == best or not self.samples.get(self.baseline):
            return self._raced(best, None, ties)
        found = self._pairs(self.baseline, best)
        if found is None or found.low <= 1:
            return self._raced(self.baseline, None, tuple({*ties, best} - {self.baseline}))
        return self._raced(best, found, tuple(one for one in ties if one != self.baseline))

    def _warm(self, number: int) -> bool:
        """The first call compiles; the second says how many make a sample."""
        if self._sample(number, 1) is None:
            return False
        took = self._sample(number, 1)
        if took is None:
            return False
        self.inner[number] = min(max(int(self.sample_s * 1e9 / max(took, 1.0)), 1), MOST_INNER)
        self.samples[number] = []
        return True

    def _sample(self, number: int, inner: int) -> float | None:
        settings = None if number == REFERENCE else self.settings[number]
        told = self.bench.sample(settings, self.case, inner, self.limit_s)
        if told.ns is None:
            self.failed[number] = told.why or "it could not be timed"
            self.samples.pop(number, None)
        return told.ns

    def _rounds(
        self, running: Sequence[int], most: int, least: int, until: float, generator: random.Random
    ) -> dict[int, list[float]]:
        """Each once a round, in a new order; only whole rounds count, so that samples stay pairs."""
        found: dict[int, list[float]] = {one: [] for one in running}
        for done in range(most):
            if done >= least and self.now() > until:
                break
            order = [one for one in found if one not in self.failed]
            generator.shuffle(order)
            for one in order:
                ns = self._sample(one, self.inner[one])
                if ns is not None:
                    found[one].append(ns)
        found = {one: told for one, told in found.items() if one not in self.failed}
        for one, told in found.items():
            self.samples[one] += told
        return found

    def _pairs(self, before: int, after: int) -> Gain | None:
        first: list[float] = []
        second: list[float] = []
        for done in range(PAIRS):
            if done >= LEAST_PAIRS and self.now() > self.deadline:
                break
            for one in (before, after) if done % 2 == 0 else (after, before):
                ns = self._sample(one, self.inner[one])
                if ns is None:
                    return None
                (first if one == before else second).append(ns)
        self.samples[before] += first
        self.samples[after] += second
        return gain(first, second)

    def _finalists(self) -> list[int]:
        told = sorted((median(samples), one) for one, samples in self.samples.items() if samples and one != REFERENCE)
        kept = [one for _, one in told[:FINALISTS]]
        extra = [one for one in (self.baseline, REFERENCE) if one is not None and one in self.samples and one not in kept]
        return [*kept, *extra]

    def _best(self, among: Sequence[int]) -> int | None:
        told = [(median(self.samples[one]), one) for one in among if one != REFERENCE and self.samples.get(one)]
        return min(told)[1] if told else None

    def _raced(self, winner: int | None, found: Gain | None, ties: tuple[int, ...]) -> Raced:
        if winner in self.failed:
            winner, found = self._best([one for one in self.samples if one not in self.failed]), None
        return Raced(
            times={one: told for one, samples in self.samples.items() if (told := timed(samples)) is not None},
            failed=dict(self.failed),
            winner=winner,
            gain=found,
            ties=tuple(sorted(ties)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """What one case's timing gave, by the configuration's number."""

    times: dict[int, Timed]
    failed: dict[int, str]
    winner: int | None
    gain: Gain | None
    ties: tuple[int, ...]


def _tied(rounds: dict[int, list[float]], one: int, best: int) -> bool:
    """Whether the last rounds do not tell the two apart."""
    if one not in rounds or best not in rounds or not rounds[one]:
        return False
    return not is_told_apart(gain(rounds[one], rounds[best]))
