"""Whether a stream of numbers has risen to another level, and whether it has come back.

A cumulative sum (Page 1954) of each value's distance from the stream's own recent past, in robust
standard deviations and cut off at three of them, so that no single value counts for much. The past
is what came while the sum was at zero: it follows a slow change, and never holds the rise that is
being judged. Four things together make a rise:

- the sum has reached ENOUGH: noise whose middle stays where it was is drawn back to zero;
- it has lasted LASTS_S seconds: what other processes do to a machine comes in bursts of a second
  or two, which values a few milliseconds apart would all show;
- the middle of what came since is as much higher as somebody must know of;
- it is higher than the middles of earlier stretches of that length ever were, by far: values one
  after the other are alike, and their own spread says too little of how their middle wanders.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median, quantiles

from msgspec import Struct

DRIFT = 1.0
"""Deviations that a value must exceed the past's middle by for the sum to rise."""
CUT = 3.0
ENOUGH = 8.0
"""Four values at the cut, or eight that lie two deviations above."""
LASTS_S = 5.0
MIN_VALUES = 4
"""Values of a rise: where a value comes every few seconds, these take longer than LASTS_S."""
NUM_FIRST = 20
"""Values that make a past."""
NUM_PAST, NUM_SINCE = 200, 400
NUM_STRETCHES, MIN_STRETCHES = 48, 4
MIN_SIGMA, MIN_RATIO = 5.0, 1.5
"""Deviations of the stretches' middles that a rise must exceed, and times the highest of them: for
middles that are spread normally once in 3 million stretches, if it were not for the second."""
EARLY = 2 * MIN_SIGMA * 1.2533
"""Threshold before there are stretches: twice MIN_SIGMA standard errors of the median, which for
independent values is 1.2533 standard deviations over the root of their number; twice, as these
depend on one another."""
NORMAL = 1.4826
"""Median distances from the median in a standard deviation of a normal distribution."""


class Rise(Struct, frozen=True, kw_only=True):
    """The stream left its level."""

    since_s: float
    """The time of the first value of the rise."""
    before: float
    after: float
    """Medians."""


class Level:
    """Takes one value after the other.

    `least` is how much higher a level must be to be told, given the one before.
    """

    def __init__(self, least: Callable[[float], float], *, lasts_s: float = LASTS_S) -> None:
        self._least, self._lasts_s = least, lasts_s
        self._past: deque[float] = deque(maxlen=NUM_PAST)
        self._since: deque[tuple[float, float]] = deque(maxlen=NUM_SINCE)
        """Times and values since the sum left zero; of a level that is told, the latest."""
        self._onset_s = 0.0
        self._sum = 0.0
        self._num_stale = 0
        self._stretch: list[float] = []
        self._stretch_s = 0.0
        self._stretches: deque[float] = deque(maxlen=NUM_STRETCHES)
        """How far the middle of each lay above the past's, in what a rise had to be then: a loss
        that falls takes its wandering with it."""
        self._middle = self._deviation = self._wanders = 0.0
        self.rise: Rise | None = None
        """The rise that is told and not over."""

    @property
    def middle(self) -> float | None:
        """Median of the past; None before there is one."""
        return self._middle if len(self._past) >= NUM_FIRST else None

    @property
    def is_rising(self) -> bool:
        """Whether it has risen, or is about to: the latest values are as high."""
        if self.rise is not None or self._sum < ENOUGH / 2:
            return self.rise is not None
        latest = [value for _, value in self._since][-MIN_VALUES:]
        return median(latest) >= self._middle + self._least(self._middle)

    def add(self, value: float, at_s: float) -> bool:
        """Whether the value ended something: a rise is now told, or now over."""
        if len(self._past) < NUM_FIRST:
            self._keep([(at_s, value)])
            return False
        if self.rise is not None:
            return self._is_over(value, at_s)
        far = (value - self._middle) / self._deviation
        self._sum = min(max(0.0, self._sum + max(-CUT, min(CUT, far)) - DRIFT), 2 * ENOUGH)
        if self._sum == 0.0:
            self._keep([*self._since, (at_s, value)])
            self._since.clear()
            return False
        if not self._since:
            self._onset_s = at_s
        self._since.append((at_s, value))
        has_lasted = at_s - self._onset_s >= self._lasts_s and len(self._since) >= MIN_VALUES
        if self._sum < ENOUGH or not has_lasted:
            return False
        if not self._is_higher():
            if len(self._since) == NUM_SINCE:
                # A little more, and for long: that is the level now.
                self._keep(list(self._since))
                self._since.clear()
                self._sum = 0.0
            return False
        after = median(value for _, value in self._since)
        self.rise = Rise(since_s=self._onset_s, before=self._middle, after=after)
        return True

    def _is_higher(self) -> bool:
        higher = median(value for _, value in self._since) - self._middle
        wanders = self._wanders
        if len(self._stretches) < MIN_STRETCHES:
            wanders = EARLY * self._deviation / math.sqrt(len(self._since))
        return higher >= max(self._least(self._middle), wanders)

    def _is_over(self, value: float, at_s: float) -> bool:
        self._since.append((at_s, value))
        while len(self._since) > MIN_VALUES and at_s - self._since[1][0] >= self._lasts_s:
            self._since.popleft()
        has_lasted = at_s - self._since[0][0] >= self._lasts_s
        if len(self._since) < MIN_VALUES or not has_lasted:
            return False
        latest = median(recent for _, recent in self._since)
        if latest > self._middle + self._least(self._middle) / 2:
            return False
        self.forget()
        return True

    def accept(self) -> None:
        """What it rose to is its level now."""
        self._past.clear()
        self._keep(list(self._since))
        self.forget()

    def forget(self) -> None:
        """Forget the rise: the past stays what it was."""
        self.rise, self._sum = None, 0.0
        self._since.clear()

    def _keep(self, values: list[tuple[float, float]]) -> None:
        self._past.extend(value for _, value in values)
        self._num_stale += len(values)
        for at_s, value in values:
            self._into_stretch(at_s, value)
        # Sorting two hundred values for each of a hundred a second would be most of the work.
        if len(self._past) <= 2 * NUM_FIRST or self._num_stale >= NUM_FIRST:
            self._num_stale = 0
            self._middle = median(self._past)
            spread = NORMAL * median(abs(value - self._middle) for value in self._past)
            self._deviation = max(spread, self._least(self._middle) / CUT, 1e-12)
            self._wanders = self._reach()

    def _into_stretch(self, at_s: float, value: float) -> None:
        if not self._stretch:
            self._stretch_s = at_s
        self._stretch.append(value)
        if at_s - self._stretch_s >= self._lasts_s and len(self._stretch) >= MIN_VALUES:
            higher = median(self._stretch) - self._middle
            self._stretches.append(higher / max(self._least(self._middle), 1e-12))
            self._stretch = []

    def _reach(self) -> float:
        """How far above the past's middle that of a stretch may come by itself."""
        if len(self._stretches) < MIN_STRETCHES:
            return 0.0
        # A quarter of a normal distribution lies beyond 0.6745 deviations. A stream that falls, as
        # a loss does, lies below its past.
        quarter, greatest = quantiles(self._stretches, n=4)[2], max(self._stretches)
        reach = max(MIN_SIGMA * NORMAL * quarter, MIN_RATIO * greatest, 0.0)
        return reach * self._least(self._middle)
