"""Searches on made-up clocks: settings, what each would take, and trials of that length."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from stepscope.core.experiments.trials import Change, Trial
from stepscope.tune.knob_space import Space, parse_knobs, parse_ways
from stepscope.tune.policy import OnSteps, Start, TunePolicy
from stepscope.tune.proof import ProofPolicy, concluded
from stepscope.tune.shapes.tuning import (
    Tuning,
)
from stepscope.tune.tuner import Search

Clock = Callable[[Change], float]
"""Milliseconds a step."""


def trial(
    change: Change, ms: float, on_steps: OnSteps | None = None, seed: int = 0, **more: Any
) -> Trial:
    draw = random.Random(f"{seed}{change}")
    steps = tuple(int(ms * 1e6 * draw.gauss(1, 0.01)) for _ in range(24))
    if on_steps is not None and not on_steps(steps[:10]):
        steps = steps[:10]
    taken = dict.fromkeys(change.knobs, 1)
    return Trial(
        **{
            "folder": "",
            "change": change,
            "exit_code": 0,
            "step_ns": steps,
            "wall_s": 1.0,
            "taken": taken,
            **more,
        }
    )


def space(*texts: str, ways: tuple[str, ...] = ()) -> Space:
    return Space(knobs=parse_knobs(texts, parse_ways(ways)))


class Clocked:
    """Measures by a clock, and counts."""

    def __init__(self, clock: Clock, **more: Any) -> None:
        self.clock, self.more = clock, more
        self.changes: list[Change] = []

    def __call__(self, change: Change, on_steps: OnSteps | None) -> Trial:
        self.changes.append(change)
        return trial(change, self.clock(change), on_steps, seed=len(self.changes), **self.more)


def searched(
    where: Space, measure: Any, num_trials: int = 12, starts: tuple[Start, ...] = (), **policy: Any
) -> Search:
    search = Search(where, measure, TunePolicy(num_trials=num_trials, seed=1, **policy))
    search.run(lambda _given: starts)
    return search


def loader_clock(change: Change) -> float:
    """Fastest at 5 workers and 2 threads."""
    workers, threads = (
        int(change.knobs.get("num_workers", 0)),
        int(change.knobs.get("num_threads", 4)),
    )
    return 20 + 3 * abs(workers - 5) + 5 * abs(threads - 2)


def proven(search: Search, numerics: Any = None, **policy: Any) -> Tuning:
    return concluded(search, ("python", "train.py"), numerics, ProofPolicy(**policy))
