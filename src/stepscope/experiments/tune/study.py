"""The door to Optuna: it chooses what to try next, keeps what was measured, and lets several
machines share the work.

Every process that runs the same search on the same storage asks here. A setting is claimed as soon
as it is asked for, and no setting is tried twice: where the sampler comes back to one that was
tried, the nearest one that was not is taken in its stead. Of two processes that ask for one setting
at once, the one whose trial has the smaller number has it.
"""

from __future__ import annotations

import importlib
import math
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from stepscope.core.experiments.trials import Value
from stepscope.core.experiments.tuning import AGAIN, MEASURED, OUT_OF_MEMORY, PRUNED, SEARCH, Tried
from stepscope.errors import UsageError
from stepscope.experiments.tune.final import FINAL, Final
from stepscope.experiments.tune.knob_space import Knob, Settings, Space
from stepscope.experiments.tune.study_storage import opened_study
from stepscope.experiments.tune.workers import LEFT, MARK, Crowd, host_of

NUM_FIRST = 3
"""Settings drawn by chance, counted from the first, before the sampler goes by what was measured:
searches here are short."""
MAX_ASKS = 60
"""Of the sampler, for one setting that was not tried yet."""
MAX_REPEATS = 12
"""Times that the sampler may come back to settings that were tried, before the nearest untried one
is taken; no more than settings are left."""
MAX_CELLS = 20_000
"""Settings looked through for the nearest untried one."""
PLACE = " (place in its list)"
"""Ends the name under which Optuna knows a list of numbers: to it they are 0, 1, 2, ..., in
order."""
INSTALL = (
    "stepscope tune needs Optuna with SciPy, which are not installed: pip install 'stepscope[tune]'"
)
WITHOUT_WORKERS = ("prefetch_factor", "persistent_workers")
"""Mean nothing where there are no workers."""
EASY_ON_MEMORY = frozenset(
    {
        "num_workers",
        "pin_memory",
        "prefetch_factor",
        "persistent_workers",
        "num_threads",
        "gc",
        "batch_size",
        "accumulation",
    }
)
"""Knobs that do not decide whether a batch fits on the device, batch_size itself apart."""
LEAST_FOR_IMPORTANCE = 6
"""Different times, before a word is said of which knob makes them."""
DIGITS = 3
BASELINE_OF = "baseline of "
MAX_GONE = 2
"""Processes that may be lost with one setting: it may be what ends them."""
SETTLE_S = 0.05
"""Between two looks at a trial of another process that has just been begun, and has no setting
yet."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A setting to try."""

    trial: Any
    settings: dict[str, Value]
    origin: str
    number: int
    """From 1 on: 0 is the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A trial whose process is gone."""

    settings: dict[str, Value] | None
    """None where it was gone before it had one."""
    host: str
    is_in_line: bool
    """Whether its setting is tried once more."""


class Study:
    """One search in Optuna's storage."""

    def __init__(
        self,
        space: Space,
        *,
        name: str,
        storage: str | None = None,
        seed: int | None = None,
        host: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._optuna = optuna = import_optuna()
        self.space = space
        self._free = [knob for knob in space.knobs if knob.values is None or len(knob.values) > 1]
        self._fixed = {
            knob.name: knob.values[0]
            for knob in space.knobs
            if knob.values is not None and len(knob.values) == 1
        }
        self._distributions = {param_of(knob): _distribution(optuna, knob) for knob in self._free}
        self._random = random.Random(seed)  # noqa: S311 - a choice among equals
        self.dead: frozenset[str] = frozenset()
        """Knobs that never take hold: settings that differ in them alone are the same."""
        # Of Optuna's samplers the one for few and costly trials.
        sampler = optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=NUM_FIRST, deterministic_objective=False
        )
        self._study = opened_study(optuna, storage, name, sampler)
        self.crowd = Crowd(storage is not None, host or platform.node(), clock)
        self.final = Final(optuna, self._study, self.crowd)

    def suggest(self, settings: Settings, origin: str) -> bool:
        """Puts a setting first in line; False where it was tried already."""
        if origin != AGAIN and not self._is_open(settings):
            return False
        self._put_in_line(settings, origin, once=origin != AGAIN)
        return True

    def _put_in_line(self, settings: Settings, origin: str, *, once: bool = False) -> None:
        told = {"origin": origin, "settings": dict(settings)}
        self._study.enqueue_trial(self._params(settings), user_attrs=told, skip_if_exists=once)

    def ask(self, most: int | None = None) -> Asked | None:
        """A setting that nobody has tried, claimed; None when none is left, or so many are made or
        claimed already."""
        for number in range(MAX_ASKS):
            left = None if self.has_waiting() else self._open_cells()
            if left == []:
                return None
            if left is not None and len(left) == 1:
                # The sampler has nothing to choose.
                self._put_in_line(left[0], SEARCH)
            # Of few that are left, a sampler that does not name one soon will not.
            repeats = MAX_REPEATS if left is None else min(MAX_REPEATS, len(left))
            trial = self._study.ask(self._distributions)
            trial.set_user_attr(MARK, self.crowd.mark())
            settings = self._settings(trial.params)
            is_in_line, origin = (
                "origin" in trial.user_attrs,
                str(trial.user_attrs.get("origin", SEARCH)),
            )
            self._let_settle(trial.number)
            if most is not None and self._num_before(trial.number) >= most:
                self._leave(trial)
                return None
            if (
                self._is_looked_at(settings, trial.number)
                if origin == AGAIN
                else self._is_open(settings, before=trial.number)
            ):
                return Asked(trial, settings, origin, self._num_before(trial.number) + 1)
            # It is told once more what that gave, and thinks again.
            known = self._known_ns(settings)
            if known is None:
                self._leave(trial)
            else:
                self._study.tell(trial, known)
            near = (
                self._nearest(settings)
                if (known is None and not is_in_line) or number >= repeats
                else None
            )
            if near is not None:
                self._study.enqueue_trial(self._params(near), user_attrs={"origin": SEARCH})
        return None

    def _let_settle(self, number: int) -> None:
        """Waits until every trial that another process began before this one has its setting: it
        may be the same."""
        while any(trial.number < number and not self._is_whole(trial) for trial in self._claims()):
            time.sleep(SETTLE_S)

    def _num_before(self, number: int) -> int:
        return len(self.trials()) + len(
            [trial for trial in self._claims() if trial.number < number]
        )

    def _leave(self, trial: Any) -> None:
        """Closes a trial that is not made."""
        with suppress(self._finished):
            trial.set_user_attr(LEFT, True)
            self._study.tell(trial, state=self._states.FAIL)

    def at_work(self, asked: Asked) -> AbstractContextManager[None]:
        """As long as this lasts, others see that the trial is being made."""
        return self.crowd.pulse(lambda mark: asked.trial.set_user_attr(MARK, dict(mark)))

    def bury(self) -> list[Gone]:
        """Closes the trials whose process is gone, and puts their settings in line again."""
        found = []
        for trial in self._running():
            if not self.crowd.is_gone(trial.number, trial.user_attrs.get(MARK)):
                continue
            try:
                self._study.tell(trial.number, state=self._states.FAIL)
            except (ValueError, self._finished):
                # Another process was here first, or it came to its end after all.
                continue
            settings = self._settings(trial.params) if self._is_whole(trial) else None
            is_in_line = settings is not None and self._num_gone()[self.same(settings)] < MAX_GONE
            if settings is not None and is_in_line:
                self._put_in_line(
                    settings, AGAIN if trial.user_attrs.get("origin") == AGAIN else SEARCH
                )
            found.append(
                Gone(
                    settings=settings,
                    host=host_of(trial.user_attrs.get(MARK)),
                    is_in_line=is_in_line,
                )
            )
        return found

    def num_open(self) -> int | None:
        """Settings that nobody has tried or claimed; None for a space too large to count."""
        cells = self._open_cells()
        return None if cells is None else len(cells)

    def hosts(self) -> list[str]:
        """Machines on which other processes are at a trial."""
        return sorted({host_of(mark) for mark in self.others()})

    def others(self) -> list[Any]:
        """Marks of the trials that other processes are at."""
        marks = [trial.user_attrs.get(MARK) for trial in self._claims()]
        return [mark for mark in marks if not self.crowd.is_mine(mark)]

    def _known_ns(self, settings: Settings) -> float | None:
        """What this setting took when it was tried."""
        wanted = self.same(settings)
        found = [
            tried.ns
            for tried in self.trials()
            if tried.ns is not None and self.same(tried.settings) == wanted
        ]
        return sum(found) / len(found) if found else None

    def watch(self, asked: Asked, limit_ns: float) -> Callable[[float, int], bool]:
        """Hears what a running trial has come to, after how many steps; False says that it is
        clearly beyond the limit."""
        self._study.pruner = self._optuna.pruners.ThresholdPruner(upper=limit_ns)
        heard: set[int] = set()

        def hear(ns: float, num_steps: int) -> bool:
            if num_steps in heard:
                return True
            heard.add(num_steps)
            with suppress(self._finished):
                asked.trial.report(ns, num_steps)
                return not asked.trial.should_prune()
            return True

        return hear

    def tell(self, asked: Asked, tried: Tried) -> None:
        """Keeps what a trial gave, also where others took this process for gone meanwhile and
        closed the trial."""
        told = {"tried": msgspec.to_builtins(tried)}
        try:
            asked.trial.set_user_attr("tried", told["tried"])
        except self._finished:
            state = self._states.FAIL if tried.ns is None else self._states.COMPLETE
            made = self._optuna.trial.create_trial(
                state=state,
                value=tried.ns,
                params=asked.trial.params,
                distributions=self._distributions,
                user_attrs=told,
            )
            self._study.add_trial(made)
            return
        with suppress(ValueError, self._finished):
            self._close(asked, tried)

    def _close(self, asked: Asked, tried: Tried) -> None:
        """What ran out of memory is beyond a boundary; what failed says nothing to the sampler."""
        if tried.state in (MEASURED, PRUNED) and tried.ns is not None:
            # What was ended for being slow has told how slow: the sampler is to know it too.
            self._study.tell(asked.trial, tried.ns)
        elif tried.state in (PRUNED, OUT_OF_MEMORY):
            asked.trial.set_constraint("memory", 1.0 if tried.state == OUT_OF_MEMORY else 0.0)
            self._study.tell(asked.trial, state=self._states.PRUNED)
        else:
            self._study.tell(asked.trial, state=self._states.FAIL)

    def give_up(self, asked: Asked) -> None:
        """The trial was broken off: the setting is free again."""
        self._leave(asked.trial)

    def trials(self) -> list[Tried]:
        """What was tried so far, by everybody, in order."""
        told = (
            _tried(trial.user_attrs.get("tried"))
            for trial in self._study.get_trials(deepcopy=False)
        )
        return [
            replace(tried, number=number)
            for number, tried in enumerate((one for one in told if one is not None), 1)
        ]

    def num_claimed(self) -> int:
        """Trials that were made, or are being made, by everybody."""
        return len(self.trials()) + sum(1 for _ in self._claims())

    def importance(self) -> dict[str, float] | None:
        """How much of the differences each knob makes; None where too few trials tell."""
        measured = [tried for tried in self.trials() if tried.state == MEASURED]
        if len(self._free) < 2 or len({tried.ns for tried in measured}) < LEAST_FOR_IMPORTANCE:
            return None
        try:
            found = self._optuna.importance.get_param_importances(self._study)
        except (RuntimeError, ValueError, ImportError):
            return None
        told = {name.removesuffix(PLACE): float(share) for name, share in found.items()}
        return told if all(math.isfinite(share) for share in told.values()) else None

    def say_baseline(self, host: str, ns: float) -> dict[str, float]:
        """Keeps this machine's baseline with the others', and gives them all."""
        self._study.set_user_attr(f"{BASELINE_OF}{host}", ns)
        told = {
            name.removeprefix(BASELINE_OF): value
            for name, value in self._study.user_attrs.items()
            if name.startswith(BASELINE_OF)
        }
        return {
            name: float(value)
            for name, value in told.items()
            if isinstance(value, int | float) and value > 0
        }

    def same(self, settings: Settings) -> str:
        """A text that is the same for settings that mean the same."""
        left = {name: value for name, value in settings.items() if name not in self.dead}
        if left.get("num_workers") == 0:
            left = {name: value for name, value in left.items() if name not in WITHOUT_WORKERS}
        return repr(sorted((name, isinstance(value, bool), value) for name, value in left.items()))

    def num_looks(self, settings: Settings) -> int:
        """How often a setting was measured, or will be: second looks that wait, or are under way,
        too."""
        wanted = self.same(settings)
        made = sum(
            tried.state == MEASURED and self.same(tried.settings) == wanted
            for tried in self.trials()
        )
        waiting = self._study.get_trials(deepcopy=False, states=(self._states.WAITING,))
        return made + sum(self._is_second(trial, wanted) for trial in (*waiting, *self._claims()))

    def _is_looked_at(self, settings: Settings, number: int) -> bool:
        """Whether a second look is this trial's to take: no other has taken it, or began to
        before."""
        wanted = self.same(settings)
        made = sum(
            tried.state == MEASURED and self.same(tried.settings) == wanted
            for tried in self.trials()
        )
        return made < 2 and not any(
            trial.number < number and self._is_second(trial, wanted) for trial in self._claims()
        )

    def _is_second(self, trial: Any, wanted: str) -> bool:
        told = trial.user_attrs.get("settings")
        return (
            trial.user_attrs.get("origin") == AGAIN
            and isinstance(told, dict)
            and self.same(told) == wanted
        )

    @property
    def _states(self) -> Any:
        return self._optuna.trial.TrialState

    @property
    def _finished(self) -> Any:
        """What Optuna raises where a trial was closed by somebody else."""
        return self._optuna.exceptions.UpdateFinishedTrialError

    def has_waiting(self) -> bool:
        return bool(self._study.get_trials(deepcopy=False, states=(self._states.WAITING,)))

    def _running(self) -> list[Any]:
        running = self._study.get_trials(deepcopy=False, states=(self._states.RUNNING,))
        return [trial for trial in running if FINAL not in trial.user_attrs]

    def _claims(self) -> Iterator[Any]:
        """Trials that are being made."""
        return (
            trial
            for trial in self._running()
            if not self.crowd.is_gone(trial.number, trial.user_attrs.get(MARK))
        )

    def _is_whole(self, trial: Any) -> bool:
        """Whether it has its setting."""
        return set(trial.params) == set(self._distributions)

    def _num_gone(self) -> Counter[str]:
        """With how many processes each setting was lost."""
        failed = self._study.get_trials(deepcopy=False, states=(self._states.FAIL,))
        lost = [
            trial
            for trial in failed
            if MARK in trial.user_attrs
            and not {"tried", LEFT, FINAL} & set(trial.user_attrs)
            and self._is_whole(trial)
        ]
        return Counter(self.same(self._settings(trial.params)) for trial in lost)

    def _taken(self, before: int | None = None) -> set[str]:
        """Settings that were tried, or are claimed by a trial with a smaller number: of two that
        claim one, the first has it."""
        claimed = [trial for trial in self._claims() if before is None or trial.number < before]
        known = [self._settings(trial.params) for trial in claimed if self._is_whole(trial)]
        lost = {same for same, num in self._num_gone().items() if num >= MAX_GONE}
        return lost | {
            self.same(settings)
            for settings in (*known, *(tried.settings for tried in self.trials()))
        }

    def _is_open(self, settings: Settings, before: int | None = None) -> bool:
        return self.same(settings) not in self._taken(before) and not self._is_beyond(settings)

    def _is_beyond(self, settings: Settings) -> bool:
        """Whether a batch no larger ran out of memory with all that bears on memory the same."""
        return any(
            tried.state == OUT_OF_MEMORY and _is_no_smaller(settings, tried.settings)
            for tried in self.trials()
        )

    def _open_cells(self) -> list[dict[str, Value]] | None:
        """Every setting that is left; None for a space too large to count."""
        size = self.space.size
        if size is None or size > MAX_CELLS:
            return None
        taken = self._taken()
        spent = [tried.settings for tried in self.trials() if tried.state == OUT_OF_MEMORY]
        return [
            cell
            for cell in self.space.cells()
            if self.same(cell) not in taken and not any(_is_no_smaller(cell, one) for one in spent)
        ]

    def _nearest(self, settings: Settings) -> dict[str, Value] | None:
        """The open setting that is nearest; one of them by chance where several are."""
        cells = self._open_cells()
        if not cells:
            return None
        apart = [self.space.distance(settings, cell) for cell in cells]
        least = min(apart)
        return self._random.choice(
            [cell for cell, far in zip(cells, apart, strict=True) if far <= least + 1e-9]
        )

    def _params(self, settings: Settings) -> dict[str, Any]:
        """As Optuna knows them."""
        return {
            param_of(knob): knob.choices.index(settings[knob.name])
            if _is_listed(knob)
            else settings[knob.name]
            for knob in self._free
        }

    def _settings(self, params: Mapping[str, Any]) -> dict[str, Value]:
        given = {knob.name: _value(knob, params[param_of(knob)]) for knob in self._free}
        return self.space.completed({**self._fixed, **given})


def _value(knob: Knob, param: Any) -> Value:
    """What Optuna chose, as the job is told it: a number of a continuous range has so many digits
    as anybody would write."""
    if _is_listed(knob):
        listed: Value = knob.choices[param]
        return listed
    if knob.values is not None or isinstance(param, int) or knob.low is None or knob.high is None:
        chosen: Value = param
        return chosen
    return min(max(float(f"{param:.{DIGITS}g}"), knob.low), knob.high)


def _is_no_smaller(settings: Settings, spent: Settings) -> bool:
    """Whether this cannot fit where `spent` did not."""
    others = {name for name in (*settings, *spent) if name not in EASY_ON_MEMORY}
    if any(settings.get(name) != spent.get(name) for name in others):
        return False
    size, limit = settings.get("batch_size"), spent.get("batch_size")
    return isinstance(size, int) and isinstance(limit, int) and size >= limit


def import_optuna() -> Any:
    """Optuna, without its own words on stderr."""
    try:
        import optuna

        # The sampler's own need, which it would tell in the midst of a search.
        importlib.import_module("scipy")
    except ImportError:
        raise UsageError(INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def param_of(knob: Knob) -> str:
    """The name under which Optuna knows a knob."""
    return f"{knob.name}{PLACE}" if _is_listed(knob) else knob.name


def _is_listed(knob: Knob) -> bool:
    return bool(knob.choices) and knob.is_ordered


def _distribution(optuna: Any, knob: Knob) -> Any:
    kinds = optuna.distributions
    if _is_listed(knob):
        return kinds.IntDistribution(0, len(knob.choices) - 1)
    if knob.choices:
        return kinds.CategoricalDistribution(knob.choices)
    assert knob.low is not None and knob.high is not None
    if not knob.is_whole:
        # Optuna wants a range that its pitch divides.
        high = (
            knob.high
            if knob.step is None
            else knob.low + math.floor((knob.high - knob.low) / knob.step + 1e-9) * knob.step
        )
        return kinds.FloatDistribution(knob.low, high, log=knob.is_log, step=knob.step)
    low, step = int(knob.low), int(knob.step or 1)
    return kinds.IntDistribution(
        low, low + (int(knob.high) - low) // step * step, log=knob.is_log, step=step
    )


def _tried(told: Any) -> Tried | None:
    """A trial out of the storage, which others write to."""
    try:
        return msgspec.convert(told, Tried) if isinstance(told, dict) else None
    except msgspec.ValidationError:
        return None
