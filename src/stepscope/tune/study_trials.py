"""The trials in Optuna's storage, of every process that shares it: made, claimed, waiting, lost.
And which settings are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from stepscope.core.experiments.trials import Value
from stepscope.tune.final import FINAL
from stepscope.tune.knob_space import Settings, Space
from stepscope.tune.parameters import Parameters
from stepscope.tune.shapes.tuning import AGAIN, MEASURED, OUT_OF_MEMORY, Tried
from stepscope.tune.workers import LEFT, MARK, Workers, host_of

MAX_CELLS = 20_000
"""Settings looked through for the nearest untried one."""
WITHOUT_WORKERS = ("prefetch_factor", "persistent_workers")
"""Mean nothing where there are no loader workers."""
EASY_ON_MEMORY = frozenset({
    "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "num_threads", "gc",
    "batch_size", "accumulation",
})  # fmt: skip
"""Knobs that do not decide whether a batch fits on the device, batch_size itself apart."""
MAX_LOST = 2
"""Processes that may be lost with one setting: it may be what ends them."""


class StudyTrials:
    """What the storage says of a study's trials."""

    def __init__(self, optuna: Any, study: Any, space: Space, workers: Workers) -> None:
        self._optuna, self._study, self.space, self.workers = optuna, study, space, workers
        self.parameters = Parameters(optuna, space)
        self.ineffective: frozenset[str] = frozenset()
        """Knobs that never take hold: settings that differ in them alone are the same."""

    def trials(self) -> list[Tried]:
        """What was tried so far, by everybody, in order."""
        stored = (trial.user_attrs.get("tried") for trial in self._stored())
        made = [tried for tried in map(_tried, stored) if tried is not None]
        return [replace(tried, number=number) for number, tried in enumerate(made, 1)]

    def num_claimed(self) -> int:
        """Trials that were made, or are being made, by everybody."""
        return len(self.trials()) + sum(1 for _ in self._claims())

    def hosts(self) -> list[str]:
        """Machines on which other processes are at a trial."""
        return sorted({host_of(mark) for mark in self.others()})

    def others(self) -> list[Any]:
        """Marks of the trials that other processes are at."""
        marks = [trial.user_attrs.get(MARK) for trial in self._claims()]
        return [mark for mark in marks if not self.workers.is_mine(mark)]

    def num_open(self) -> int | None:
        """Settings that nobody has tried or claimed; None for a space too large to count."""
        cells = self._open_cells()
        return None if cells is None else len(cells)

    def same(self, settings: Settings) -> str:
        """A text that is the same for settings that mean the same."""
        left = {name: value for name, value in settings.items() if name not in self.ineffective}
        if left.get("num_workers") == 0:
            left = {name: value for name, value in left.items() if name not in WITHOUT_WORKERS}
        return repr(sorted((name, isinstance(value, bool), value) for name, value in left.items()))

    def num_looks(self, settings: Settings) -> int:
        """How often a setting was measured, or will be: second looks that wait, or are under way,
        too."""
        wanted = self.same(settings)
        open_trials = (*self._waiting(), *self._claims())
        return self._num_measured(wanted) + sum(
            self._is_second_look(trial, wanted) for trial in open_trials
        )

    def _may_look_again(self, settings: Settings, number: int) -> bool:
        """Whether a second look is this trial's to take: no other has taken it, or began to
        before."""
        wanted = self.same(settings)
        return self._num_measured(wanted) < 2 and not any(
            trial.number < number and self._is_second_look(trial, wanted)
            for trial in self._claims()
        )

    def _num_measured(self, wanted: str) -> int:
        return sum(
            tried.state == MEASURED and self.same(tried.settings) == wanted
            for tried in self.trials()
        )

    def _is_second_look(self, trial: Any, wanted: str) -> bool:
        settings = trial.user_attrs.get("settings")
        return (
            trial.user_attrs.get("origin") == AGAIN
            and isinstance(settings, dict)
            and self.same(settings) == wanted
        )

    def _measured_ns(self, settings: Settings) -> float | None:
        """What this setting took when it was tried."""
        wanted = self.same(settings)
        times = [
            tried.ns
            for tried in self.trials()
            if tried.ns is not None and self.same(tried.settings) == wanted
        ]
        return sum(times) / len(times) if times else None

    def _stored(self, *states: Any) -> list[Any]:
        """Optuna's trials in these states, or all of them."""
        trials: list[Any] = self._study.get_trials(deepcopy=False, states=states or None)
        return trials

    @property
    def _states(self) -> Any:
        return self._optuna.trial.TrialState

    def _waiting(self) -> list[Any]:
        return self._stored(self._states.WAITING)

    def _running(self) -> list[Any]:
        running = self._stored(self._states.RUNNING)
        return [trial for trial in running if FINAL not in trial.user_attrs]

    def _claims(self) -> Iterator[Any]:
        """Trials that are being made."""
        return (
            trial
            for trial in self._running()
            if not self.workers.is_gone(trial.number, trial.user_attrs.get(MARK))
        )

    def _num_before(self, number: int) -> int:
        """Trials that were made, or were begun before this one."""
        return len(self.trials()) + len(
            [trial for trial in self._claims() if trial.number < number]
        )

    def _num_lost(self) -> Counter[str]:
        """Number of processes with which each setting was lost."""
        lost = [
            trial
            for trial in self._stored(self._states.FAIL)
            if MARK in trial.user_attrs
            and not {"tried", LEFT, FINAL} & set(trial.user_attrs)
            and self.parameters.is_complete(trial)
        ]
        return Counter(self.same(self.parameters.settings(trial.params)) for trial in lost)

    def _taken(self, before: int | None = None) -> set[str]:
        """Settings that were tried, or are claimed by a trial with a smaller number: of two that
        claim one, the first has it."""
        taken = {same for same, num in self._num_lost().items() if num >= MAX_LOST}
        taken |= {self.same(tried.settings) for tried in self.trials()}
        for trial in self._claims():
            is_before = before is None or trial.number < before
            if is_before and self.parameters.is_complete(trial):
                taken.add(self.same(self.parameters.settings(trial.params)))
        return taken

    def _is_open(self, settings: Settings, before: int | None = None) -> bool:
        if self.same(settings) in self._taken(before):
            return False
        return not any(_is_no_smaller(settings, spent) for spent in self._out_of_memory())

    def _out_of_memory(self) -> list[Settings]:
        return [tried.settings for tried in self.trials() if tried.state == OUT_OF_MEMORY]

    def _open_cells(self) -> list[dict[str, Value]] | None:
        """Every setting that is left; None for a space too large to count."""
        size = self.space.size
        if size is None or size > MAX_CELLS:
            return None
        taken, out_of_memory = self._taken(), self._out_of_memory()
        return [
            cell
            for cell in self.space.cells()
            if self.same(cell) not in taken
            and not any(_is_no_smaller(cell, spent) for spent in out_of_memory)
        ]


def _is_no_smaller(settings: Settings, spent: Settings) -> bool:
    """Whether this cannot fit where `spent` did not: a batch no smaller, with all else that bears
    on memory the same."""
    others = {name for name in (*settings, *spent) if name not in EASY_ON_MEMORY}
    if any(settings.get(name) != spent.get(name) for name in others):
        return False
    size, limit = settings.get("batch_size"), spent.get("batch_size")
    return isinstance(size, int) and isinstance(limit, int) and size >= limit


def _tried(stored: Any) -> Tried | None:
    """A trial out of the storage, which others write to."""
    if not isinstance(stored, dict):
        return None
    try:
        return msgspec.convert(_renamed(stored), Tried)
    except msgspec.ValidationError:
        return None


def _renamed(stored: dict[str, Any]) -> dict[str, Any]:
    """A trial as version 0.2.0 wrote it, in today's names."""
    times = {
        new: stored[old] / 1e6
        for old, new in (("ns", "ms"), ("step_ns", "step_ms"))
        if isinstance(stored.get(old), int | float)
    }
    steps = {"steps": stored["num_steps"]} if "num_steps" in stored else {}
    return {**stored, **times, **steps}
