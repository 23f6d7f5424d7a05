"""Settings to begin a short search with: one knob at a time, from the best that is known.

With twenty trials and four knobs a sampler that must first learn the space has learned little. Most knobs of a job hardly depend
on each other, so each is walked through by itself, the others staying as they were best; then the values beside the best ones.
Optuna's own tuner for LightGBM goes stepwise for the same reason. These are settings put in line: what follows is the sampler's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stepscope.core.trials import Value
from stepscope.experiments.knob_space import Knob, Settings, Space

WALK_SHARE = 0.65
"""Of all trials, for the first walk."""
BESIDE_SHARE = 0.85
"""Of all trials, by the end of the second."""
MOST_VALUES = 7
"""Of one knob in the first walk."""


class Steps:
    """What to put in line next, told the best setting so far."""

    def __init__(self, space: Space, num_trials: int) -> None:
        self._space = space
        self._num_trials = num_trials
        knobs = [knob for knob in space.knobs if knob.values is None or len(knob.values) > 1]
        spans = shares([_num_values(knob) - 1 for knob in knobs], math.floor(WALK_SHARE * num_trials) - 1)
        self._walk = [(knob, spread(knob, num + 1)) for knob, num in zip(knobs, spans, strict=True) if num > 0]
        self._best: Settings = space.completed({knob.name: knob.first() for knob in space.knobs})
        self._line = self._all()

    def next(self, best: Settings | None, num_made: int) -> dict[str, Value] | None:
        """A setting; None when the walks are over, or their share of the trials is spent."""
        if num_made >= BESIDE_SHARE * self._num_trials:
            return None
        if best is not None:
            self._best = best
        return next(self._line, None)

    def _all(self) -> Iterator[dict[str, Value]]:
        yield dict(self._best)
        for knob, values in self._walk:
            # The others stay as they are while one is walked through.
            base = dict(self._best)
            for value in values:
                yield self._with(base, knob, value)
        for knob in self._space.knobs:
            base = dict(self._best)
            for value in beside(knob, base[knob.name]):
                yield self._with(base, knob, value)

    def _with(self, base: Settings, knob: Knob, value: Value) -> dict[str, Value]:
        return self._space.completed({**{one.name: base[one.name] for one in self._space.knobs}, knob.name: value})


def _num_values(knob: Knob) -> int:
    values = knob.values
    return MOST_VALUES if values is None else min(len(values), MOST_VALUES)


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """So many of each that they come to no more than `most` together: the largest give way first."""
    given = list(wanted)
    while sum(given) > max(most, 0) and any(given):
        given[given.index(max(given))] -= 1
    return given


def spread(knob: Knob, num: int) -> list[Value]:
    """So many values of the knob, from end to end."""
    values = knob.values
    if values is not None and not knob.is_log:
        last = len(values) - 1
        return [values[round(i * last / max(num - 1, 1))] for i in range(num)] if num <= last else list(values)
    assert knob.low is not None and knob.high is not None
    ends = (math.log(knob.low), math.log(knob.high)) if knob.is_log else (knob.low, knob.high)
    points = [ends[0] + (ends[1] - ends[0]) * i / max(num - 1, 1) for i in range(num)]
    near = (knob.nearest(float(f"{math.exp(point) if knob.is_log else point:.3g}")) for point in points)
    return list(dict.fromkeys(value for value in near if value is not None))


def beside(knob: Knob, value: Value) -> list[Value]:
    """The values next to this one on its line; every other one where there is no line."""
    values = knob.values
    if values is None or value not in values:
        if isinstance(value, str | bool) or knob.low is None or knob.high is None:
            return []
        near = (
            [value * 0.7, value * 1.4]
            if knob.is_log
            else [value - (knob.high - knob.low) / 10, value + (knob.high - knob.low) / 10]
        )
        return [float(f"{one:.3g}") for one in near if knob.low <= one <= knob.high]
    if not knob.is_ordered:
        return [one for one in values if one != value]
    order = sorted(values, key=float)
    at = order.index(value)
    return [order[i] for i in (at - 1, at + 1) if 0 <= i < len(order)]
