"""The right configurations of one case timed against each other.

All take turns, in another order each round, so that a device that warms up or slows down does not
choose. The fastest few then run on, and the best of them is compared with the baseline in pairs of
fresh samples: the gain comes from those alone, since the winner of many is partly lucky in the
samples that it won with. Where these do not show it faster, the baseline stands.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from msgspec import Struct

from stepscope.core.timings import Advance, followed
from stepscope.tune.kernels.checking import SampleResult
from stepscope.tune.kernels.space import Settings
from stepscope.tune.shapes.kernel_tuning import Case, Gain, Timed

WARM_SAMPLES = 2
SCREEN_ROUNDS, MIN_SCREEN = 7, 2
FINAL_ROUNDS, MIN_FINAL = 15, 3
PAIRS, MIN_PAIRS = 31, 7
FINALISTS = 4
MAX_INNER = 200
REFERENCE = -1
"""The reference's place among the configurations."""


class Sampler(Protocol):
    def sample(
        self, settings: Settings | None, case: Case, inner: int, limit_s: float
    ) -> SampleResult: ...


@dataclass(slots=True)
class Race:
    """One case's timing.

    `settings` are by the configuration's number; those that were found wrong are not among them.
    """

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
    num_samples: int = 0
    advance: Advance = lambda _done: None

    def run(self) -> RaceResult:
        """The race from start to end."""
        most = most_samples(len(self.settings) + self.has_reference)
        with followed(f"timing {self.case.words}", most, is_long=True) as self.advance:
            return self._run()

    def _run(self) -> RaceResult:
        start, generator = self.now(), random.Random(0)  # noqa: S311 - an order of samples is no secret
        left_s = max(self.deadline - start, 0.0)
        running = [*self.settings, *([REFERENCE] if self.has_reference else [])]
        running = [number for number in running if self._warm(number)]
        self._rounds(running, SCREEN_ROUNDS, MIN_SCREEN, start + left_s * 0.5, generator)
        finalists = self._finalists()
        final = self._rounds(finalists, FINAL_ROUNDS, MIN_FINAL, start + left_s * 0.75, generator)
        best = self._best(finalists)
        if best is None:
            return self._raced(None, None, ())
        ties = tuple(
            number
            for number in finalists
            if number not in (best, REFERENCE) and _tied(final, number, best)
        )
        if self.baseline is None or self.baseline == best or not self.samples.get(self.baseline):
            return self._raced(best, None, ties)
        gain = self._pairs(self.baseline, best)
        if gain is None or gain.low <= 1:
            return self._raced(self.baseline, None, tuple({*ties, best} - {self.baseline}))
        return self._raced(best, gain, tuple(number for number in ties if number != self.baseline))

    def _warm(self, number: int) -> bool:
        """The first call compiles; the second says how many make a sample."""
        if self._sample(number, 1) is None:
            return False
        took = self._sample(number, 1)
        if took is None:
            return False
        self.inner[number] = min(max(int(self.sample_s * 1e9 / max(took, 1.0)), 1), MAX_INNER)
        self.samples[number] = []
        return True

    def _sample(self, number: int, inner: int) -> float | None:
        settings = None if number == REFERENCE else self.settings[number]
        sample = self.bench.sample(settings, self.case, inner, self.limit_s)
        self.num_samples += 1
        self.advance(self.num_samples)
        if sample.ns is None:
            self.failed[number] = sample.why or "it could not be timed"
            self.samples.pop(number, None)
        return sample.ns

    def _rounds(
        self, running: Sequence[int], most: int, least: int, until: float, generator: random.Random
    ) -> dict[int, list[float]]:
        """Each once a round, in a new order.

        Only whole rounds count, so that samples stay pairs.
        """
        samples: dict[int, list[float]] = {number: [] for number in running}
        for num_done in range(most):
            if num_done >= least and self.now() > until:
                break
            order = [number for number in samples if number not in self.failed]
            generator.shuffle(order)
            for number in order:
                ns = self._sample(number, self.inner[number])
                if ns is not None:
                    samples[number].append(ns)
        samples = {
            number: values for number, values in samples.items() if number not in self.failed
        }
        for number, values in samples.items():
            self.samples[number] += values
        return samples

    def _pairs(self, before: int, after: int) -> Gain | None:
        first: list[float] = []
        second: list[float] = []
        for num_done in range(PAIRS):
            if num_done >= MIN_PAIRS and self.now() > self.deadline:
                break
            for number in (before, after) if num_done % 2 == 0 else (after, before):
                ns = self._sample(number, self.inner[number])
                if ns is None:
                    return None
                (first if number == before else second).append(ns)
        self.samples[before] += first
        self.samples[after] += second
        return paired_gain(first, second)

    def _finalists(self) -> list[int]:
        by_median = sorted(
            (median(samples), number)
            for number, samples in self.samples.items()
            if samples and number != REFERENCE
        )
        fastest = [number for _, number in by_median[:FINALISTS]]
        for number in (self.baseline, REFERENCE):
            if number is not None and number in self.samples and number not in fastest:
                fastest.append(number)
        return fastest

    def _best(self, among: Sequence[int]) -> int | None:
        timed_ones = [
            number for number in among if number != REFERENCE and self.samples.get(number)
        ]
        return min(
            timed_ones, key=lambda number: (median(self.samples[number]), number), default=None
        )

    def _raced(self, winner: int | None, gain: Gain | None, ties: tuple[int, ...]) -> RaceResult:
        if winner in self.failed:
            winner, gain = (
                self._best([number for number in self.samples if number not in self.failed]),
                None,
            )
        return RaceResult(
            times={
                number: timing
                for number, samples in self.samples.items()
                if (timing := timed(samples)) is not None
            },
            failed=dict(self.failed),
            winner=winner,
            gain=gain,
            ties=tuple(sorted(ties)),
        )


class RaceResult(Struct, frozen=True, kw_only=True):
    """What one case's timing gave, by the configuration's number."""

    times: dict[int, Timed]
    failed: dict[int, str]
    winner: int | None
    gain: Gain | None
    ties: tuple[int, ...]


def most_samples(num: int) -> int:
    """Samples of a race between so many, the reference among them."""
    screened = num * (WARM_SAMPLES + SCREEN_ROUNDS)
    return screened + FINAL_ROUNDS * min(num, FINALISTS + 2) + 2 * PAIRS


def _tied(rounds: dict[int, list[float]], number: int, best: int) -> bool:
    """Whether the last rounds show no difference between the two."""
    if number not in rounds or best not in rounds or not rounds[number]:
        return False
    return not is_different(paired_gain(rounds[number], rounds[best]))


LEVEL = 0.95


def timed(samples: Sequence[float]) -> Timed | None:
    if not samples:
        return None
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timed(
        ns=median(ordered),
        low_ns=ordered[round(0.1 * last)],
        high_ns=ordered[round(0.9 * last)],
        num_samples=len(ordered),
    )


def paired_gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """before / after of samples that were taken next to each other: the median of their ratios,
    with an interval of it.

    The interval is two order statistics of the ratios; it needs six pairs to be one, and nothing
    about how times are spread.
    """
    ratios = sorted(first / second for first, second in zip(before, after, strict=True))
    num = len(ratios)
    rank = _rank(num)
    low, high = (0.0, math.inf) if rank is None else (ratios[rank], ratios[num - 1 - rank])
    return Gain(value=median(ratios), low=low, high=high, num_pairs=num)


def is_different(gain: Gain) -> bool:
    return gain.low > 1 or gain.high < 1


def _rank(num: int) -> int | None:
    """The largest rank that keeps the level.

    The median lies between the ratio of that rank and its mirror image.
    """
    tail, best = 0.0, None
    for rank in range((num + 1) // 2):
        tail += math.comb(num, rank) / 2**num
        if 2 * tail > 1 - LEVEL:
            break
        best = rank
    return best
