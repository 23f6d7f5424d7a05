"""One proof for a search that several processes share: the first to come to the end makes it, the
others wait and take it over.

The proof has a place in the line of trials, by whose number it is settled who is first; its pulse
and what it came to stand in the study. A process that breaks off, or is gone, leaves it to the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.experiments.experiment import NumericsCheck, Verified
from stepscope.core.experiments.trials import Value
from stepscope.tune.workers import Workers, host_of

FINAL = "final"
"""Attribute of what is no trial but the proof of the winner: its name."""
PULSE, RESULT = "pulse of proof ", "result of proof "

Wait = Callable[[str], None]
"""Waits a while for the process on this machine; raises where it has waited long enough."""


class Settled(Struct, frozen=True, kw_only=True):
    """What the proof of a search came to."""

    best: Mapping[str, Value]
    """The fastest setting of the search; the winner is another one where that computes something
    else."""
    settings: Mapping[str, Value]
    ns: float
    verdict: str
    because: str
    check: NumericsCheck | None = None
    verified: Verified | None = None
    notes: tuple[str, ...] = ()
    host: str = ""


class Final:
    """The proof of a study."""

    def __init__(self, optuna: Any, study: Any, workers: Workers) -> None:
        self._optuna, self._study, self._workers = optuna, study, workers
        self._since = len(study.get_trials(deepcopy=False)) if workers.is_shared else 0
        """What was proven before this process began is not about its trials."""
        self._name: str | None = None

    @contextmanager
    def turn(
        self, is_same: Callable[[Mapping[str, Value]], bool], wait: Wait
    ) -> Iterator[Settled | None]:
        """Gives what another process proved of the same best setting; None when it is this one's
        turn to prove it."""
        if not self._workers.is_shared:
            yield None
            return
        number, name = self._enter()
        key = PULSE + name
        try:
            with self._workers.pulse(lambda mark: self._study.set_user_attr(key, dict(mark))):
                yield self._awaited(number, is_same, wait)
        finally:
            self._name = None
            with suppress(ValueError, self._optuna.exceptions.UpdateFinishedTrialError):
                self._study.tell(number, state=self._states.FAIL)

    def keep(self, settled: Settled) -> None:
        """Tells the others what came of it."""
        if self._name is not None:
            self._study.set_user_attr(
                RESULT + self._name,
                msgspec.to_builtins(replace(settled, host=self._workers.host)),
            )

    def _enter(self) -> tuple[int, str]:
        self._name = name = str(self._workers.mark()["id"])
        self._study.set_user_attr(PULSE + name, self._workers.mark())
        # With its name from the first moment on: nobody takes it for a trial.
        self._study.add_trial(
            self._optuna.trial.create_trial(state=self._states.RUNNING, user_attrs={FINAL: name})
        )
        numbers = (trial.number for trial in self._running() if trial.user_attrs[FINAL] == name)
        return next(numbers), name

    def _awaited(
        self, number: int, is_same: Callable[[Mapping[str, Value]], bool], wait: Wait
    ) -> Settled | None:
        while True:
            # Who is at it is asked first: a result is there before its process leaves the line.
            marks = {trial.number: self._mark(trial) for trial in self._running()}
            before = [
                mark
                for other, mark in marks.items()
                if other < number and not self._workers.is_gone(other, mark)
            ]
            results = (settled for settled in self._results() if is_same(settled.best))
            result = next(results, None)
            if result is not None or not before:
                return result
            wait(host_of(before[0]))

    def _results(self) -> list[Settled]:
        """Results of proofs that were begun after this process came."""
        ended = self._study.get_trials(deepcopy=False)[self._since :]
        names = [trial.user_attrs[FINAL] for trial in ended if FINAL in trial.user_attrs]
        attributes = self._study.user_attrs
        results = (_settled(attributes.get(f"{RESULT}{name}")) for name in names)
        return [settled for settled in results if settled is not None]

    def _running(self) -> list[Any]:
        running = self._study.get_trials(deepcopy=False, states=(self._states.RUNNING,))
        return [trial for trial in running if FINAL in trial.user_attrs]

    def _mark(self, trial: Any) -> Any:
        return self._study.user_attrs.get(f"{PULSE}{trial.user_attrs[FINAL]}")

    @property
    def _states(self) -> Any:
        return self._optuna.trial.TrialState


def _settled(stored: Any) -> Settled | None:
    """A result out of the storage, which others write to."""
    try:
        return msgspec.convert(stored, Settled) if isinstance(stored, dict) else None
    except msgspec.ValidationError:
        return None
