"""The door to Optuna: it chooses what to try next, keeps what was measured, and lets several
machines share the work.

Every process that runs the same search on the same storage asks here. A setting is claimed as soon
as it is asked for, and no setting is tried twice: where the sampler comes back to one that was
tried, the nearest one that was not is taken in its stead. Of two processes that ask for one setting
at once, the one whose trial has the smaller number has it.
"""

from __future__ import annotations

import math
import platform
import random
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from stepscope.core.experiments.trials import Value
from stepscope.errors import InputError
from stepscope.tune.final import Final
from stepscope.tune.knob_space import Settings, Space
from stepscope.tune.parameters import INDEX_SUFFIX, import_optuna
from stepscope.tune.shapes.tuning import AGAIN, MEASURED, OUT_OF_MEMORY, PRUNED, SEARCH, Tried
from stepscope.tune.study_trials import MAX_LOST, StudyTrials
from stepscope.tune.workers import LEFT, MARK, Workers, host_of

NUM_FIRST = 3
"""Settings drawn by chance, counted from the first, before the sampler goes by what was measured:
searches here are short."""
MAX_ASKS = 60
"""Questions to the sampler, for one setting that was not tried yet."""
MAX_REPEATS = 12
"""Times that the sampler may come back to settings that were tried, before the nearest untried one
is taken; no more than settings are left."""
MIN_FOR_IMPORTANCE = 6
"""Different times, before a word is said of which knob makes them."""
BASELINE_OF = "baseline of "
SETTLE_S = 0.05
"""Seconds between two looks at a trial of another process that has just been begun, and has no
setting yet."""


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """A setting to try."""

    trial: Any
    settings: dict[str, Value]
    origin: str
    number: int
    """Number from 1 on: 0 is the baseline."""


class LostTrial(Struct, frozen=True, kw_only=True):
    """A trial whose process is gone."""

    settings: dict[str, Value] | None
    """None where it was gone before it had one."""
    host: str
    is_in_line: bool
    """Whether its setting is tried once more."""


class Study(StudyTrials):
    """One search in Optuna's storage: asks it for settings, and tells it what they gave."""

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
        optuna = import_optuna()
        # Of Optuna's samplers the one for few and costly trials.
        sampler = optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=NUM_FIRST, deterministic_objective=False
        )
        study = opened_study(optuna, storage, name, sampler)
        workers = Workers(storage is not None, host or platform.node(), clock)
        super().__init__(optuna, study, space, workers)
        self._random = random.Random(seed)  # noqa: S311 - a choice among equals
        self.final = Final(optuna, study, workers)

    def suggest(self, settings: Settings, origin: str) -> bool:
        """Puts a setting first in line; False where it was tried already."""
        if origin != AGAIN and not self._is_open(settings):
            return False
        self._put_in_line(settings, origin, once=origin != AGAIN)
        return True

    def _put_in_line(self, settings: Settings, origin: str, *, once: bool = False) -> None:
        attributes = {"origin": origin, "settings": dict(settings)}
        self._study.enqueue_trial(
            self.parameters.params(settings), user_attrs=attributes, skip_if_exists=once
        )

    def ask(self, most: int | None = None) -> AskedTrial | None:
        """A setting that nobody has tried, claimed; None when none is left, or so many are made or
        claimed already."""
        for number in range(MAX_ASKS):
            left = None if self._waiting() else self._open_cells()
            if left == []:
                return None
            if left is not None and len(left) == 1:
                # The sampler has nothing to choose.
                self._put_in_line(left[0], SEARCH)
            trial = self._study.ask(self.parameters.distributions)
            trial.set_user_attr(MARK, self.workers.mark())
            self._let_settle(trial.number)
            num_before = self._num_before(trial.number)
            if most is not None and num_before >= most:
                self._leave(trial)
                return None
            settings = self.parameters.settings(trial.params)
            origin = str(trial.user_attrs.get("origin", SEARCH))
            if self._is_to_try(settings, origin, trial.number):
                return AskedTrial(trial, settings, origin, num_before + 1)
            # Of few that are left, a sampler that does not name one soon will not.
            repeats = MAX_REPEATS if left is None else min(MAX_REPEATS, len(left))
            self._decline(trial, settings, is_repeated=number >= repeats)
        return None

    def _is_to_try(self, settings: Settings, origin: str, number: int) -> bool:
        if origin == AGAIN:
            return self._may_look_again(settings, number)
        return self._is_open(settings, before=number)

    def _decline(self, trial: Any, settings: Settings, *, is_repeated: bool) -> None:
        """The sampler hears once more what that setting gave, and thinks again; where that is not
        known, or it does not help, the nearest open setting is next."""
        measured_ns = self._measured_ns(settings)
        if measured_ns is None:
            self._leave(trial)
        else:
            self._study.tell(trial, measured_ns)
        is_sampled = "origin" not in trial.user_attrs
        if is_repeated or (measured_ns is None and is_sampled):
            near = self._nearest(settings)
            if near is not None:
                self._study.enqueue_trial(
                    self.parameters.params(near), user_attrs={"origin": SEARCH}
                )

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

    def _let_settle(self, number: int) -> None:
        """Waits until every trial that another process began before this one has its setting: it
        may be the same."""
        while any(
            trial.number < number and not self.parameters.is_complete(trial)
            for trial in self._claims()
        ):
            time.sleep(SETTLE_S)

    def _leave(self, trial: Any) -> None:
        """Closes a trial that is not made."""
        with suppress(self._finished):
            trial.set_user_attr(LEFT, True)
            self._study.tell(trial, state=self._states.FAIL)

    def at_work(self, asked: AskedTrial) -> AbstractContextManager[None]:
        """Mark the trial as being made, as long as this lasts."""
        return self.workers.pulse(lambda mark: asked.trial.set_user_attr(MARK, dict(mark)))

    def close_lost(self) -> list[LostTrial]:
        """Closes the trials whose process is gone, and puts their settings in line again."""
        lost = []
        for trial in self._running():
            mark = trial.user_attrs.get(MARK)
            if not self.workers.is_gone(trial.number, mark):
                continue
            try:
                self._study.tell(trial.number, state=self._states.FAIL)
            except (ValueError, self._finished):
                # Another process was here first, or it came to its end after all.
                continue
            settings, is_in_line = None, False
            if self.parameters.is_complete(trial):
                settings = self.parameters.settings(trial.params)
                is_in_line = self._num_lost()[self.same(settings)] < MAX_LOST
            if settings is not None and is_in_line:
                is_again = trial.user_attrs.get("origin") == AGAIN
                self._put_in_line(settings, AGAIN if is_again else SEARCH)
            lost.append(LostTrial(settings=settings, host=host_of(mark), is_in_line=is_in_line))
        return lost

    def watch(self, asked: AskedTrial, limit_ns: float) -> Callable[[float, int], bool]:
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

    def tell(self, asked: AskedTrial, tried: Tried) -> None:
        """Keeps what a trial gave, also where others took this process for gone meanwhile and
        closed the trial."""
        stored = msgspec.to_builtins(tried)
        try:
            asked.trial.set_user_attr("tried", stored)
        except self._finished:
            state = self._states.FAIL if tried.ns is None else self._states.COMPLETE
            made = self._optuna.trial.create_trial(
                state=state,
                value=tried.ns,
                params=asked.trial.params,
                distributions=self.parameters.distributions,
                user_attrs={"tried": stored},
            )
            self._study.add_trial(made)
            return
        with suppress(ValueError, self._finished):
            self._close(asked, tried)

    def _close(self, asked: AskedTrial, tried: Tried) -> None:
        """What ran out of memory is beyond a boundary; what failed says nothing to the sampler."""
        if tried.state in (MEASURED, PRUNED) and tried.ns is not None:
            # What was ended for being slow has shown how slow: the sampler is to know it too.
            self._study.tell(asked.trial, tried.ns)
        elif tried.state in (PRUNED, OUT_OF_MEMORY):
            asked.trial.set_constraint("memory", 1.0 if tried.state == OUT_OF_MEMORY else 0.0)
            self._study.tell(asked.trial, state=self._states.PRUNED)
        else:
            self._study.tell(asked.trial, state=self._states.FAIL)

    def give_up(self, asked: AskedTrial) -> None:
        """The trial was broken off: the setting is free again."""
        self._leave(asked.trial)

    def importance(self) -> dict[str, float] | None:
        """How much of the differences each knob makes; None where too few trials show it."""
        times = {tried.ns for tried in self.trials() if tried.state == MEASURED}
        if len(self.parameters.knobs) < 2 or len(times) < MIN_FOR_IMPORTANCE:
            return None
        try:
            shares = self._optuna.importance.get_param_importances(self._study)
        except (RuntimeError, ValueError, ImportError):
            return None
        if not all(math.isfinite(share) for share in shares.values()):
            return None
        return {name.removesuffix(INDEX_SUFFIX): float(share) for name, share in shares.items()}

    def say_baseline(self, host: str, ns: float) -> dict[str, float]:
        """Keeps this machine's baseline with the others', and gives them all."""
        self._study.set_user_attr(f"{BASELINE_OF}{host}", ns)
        return {
            name.removeprefix(BASELINE_OF): float(value)
            for name, value in self._study.user_attrs.items()
            if name.startswith(BASELINE_OF) and isinstance(value, int | float) and value > 0
        }

    @property
    def _finished(self) -> Any:
        """What Optuna raises where a trial was closed by somebody else."""
        return self._optuna.exceptions.UpdateFinishedTrialError


BUSY_S = 60.0
"""How long a process waits for another one's write to a file of SQLite before it gives up; by
itself SQLite waits for 5."""
MAX_OPENS, AGAIN_S = 5, 0.2
"""Two processes that open an empty database at once both lay out its tables, and one of them fails:
then they are there."""


def opened_study(optuna: Any, storage: str | None, name: str, sampler: Any) -> Any:
    """The study of this name, made where there is none."""
    for left in reversed(range(MAX_OPENS)):
        try:
            return optuna.create_study(
                study_name=name,
                storage=_storage(optuna, storage),
                sampler=sampler,
                pruner=optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
        except Exception as problem:  # noqa: BLE001 - whatever the database's driver raises, it is the storage that is wrong
            if not left or storage is None or not _is_passing(problem):
                words = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
                raise InputError(
                    f"the storage {hidden(storage or '')} cannot be used: {words}"
                ) from None
        time.sleep(AGAIN_S)
    raise AssertionError("the last failure is raised")


def _is_passing(problem: BaseException) -> bool:
    """Whether somebody else was laying out the same tables, or writing: `already exists`, a version
    written twice, a lock."""
    text = str(problem)
    return type(problem).__name__ == "IntegrityError" or any(
        words in text for words in ("already exists", "is locked")
    )


def _storage(optuna: Any, text: str | None) -> Any:
    """Storage in memory, in a database, or in a journal, which is a file that machines share."""
    if text is None:
        return None
    path = Path(text.removeprefix("journal:"))
    if "://" not in text and path.suffix in (".db", ".sqlite", ".sqlite3"):
        text = f"sqlite:///{path}"
    if text.startswith("sqlite"):
        return optuna.storages.RDBStorage(text, engine_kwargs={"connect_args": {"timeout": BUSY_S}})
    if "://" in text:
        return text
    # The lock of a journal is a link to it: with a path from the root, one that a killed process
    # left is seen to be old.
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = optuna.storages.journal
    return optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))


def hidden(storage: str) -> str:
    """The storage's address without its password."""
    return re.sub(r"(?<=://)[^/@]*@", "", storage)
