"""Whether a setting computes what the baseline does, before it is proven faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.experiments.experiment import BASELINE, CANDIDATE, Measured, NumericsCheck
from stepscope.core.experiments.trials import Change, Trial
from stepscope.experiments.budget import LONGER, Budget, SpentError
from stepscope.experiments.trials.trial import last_line
from stepscope.experiments.verify.evidence import measured
from stepscope.experiments.verify.loss_check import check_loss
from stepscope.experiments.verify.reasons import memory_words
from stepscope.tune.batch import ACCUMULATION, BATCH, FREE_NUMERICS, changes_batch
from stepscope.tune.knob_space import Settings
from stepscope.tune.tuner import Search
from stepscope.tune.words import settings_words

WORKERS = "num_workers"
"""Changes no arithmetic; but each worker of a loader has random numbers of its own."""
Numerics = Callable[[Change], Trial]
"""Runs the job once with what it computes written down."""


class NumericsLook(Struct, frozen=True, kw_only=True):
    """What is known of the numbers of one setting."""

    check: NumericsCheck | None = None
    """None where there was nothing to compare, or it crashed."""
    passed_over: str | None = None
    """Why it is no winner."""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class NumericsChecker:
    """Compares settings with two runs of the baseline, which are made when first needed."""

    search: Search
    numerics: Numerics
    budget: Budget
    problem: str | None = None
    """Why the baseline itself cannot be compared with."""
    _pair: tuple[Trial, Trial] | None = None
    _runs: dict[str, Trial] = field(default_factory=dict)

    def look_at(self, settings: Settings) -> NumericsLook:
        """The setting whole; where its steps see other data than the baseline's, what of it leaves
        the data alone."""
        if changes_batch(settings, self.search.judge.baseline_setup):
            return self._without(
                settings, (BATCH, ACCUMULATION), "the winner's batch is another than the baseline's"
            )
        pair = self._baseline()
        if pair is None:
            return self._unchecked()
        trial = self._run(settings)
        if trial.is_good and WORKERS in settings and _sees_other_data(pair, trial):
            why = (
                f"with {WORKERS}={settings[WORKERS]} the dataset draws other random numbers than "
                "in the baseline"
            )
            return self._without(settings, (WORKERS,), why)
        return self._compared(settings, pair, trial)

    def _without(self, settings: Settings, left_out: tuple[str, ...], why: str) -> NumericsLook:
        note = f"{why}: its steps see other data and cannot be compared"
        others = {name: value for name, value in settings.items() if name not in left_out}
        if self.search.space.change(others).is_none:
            return NumericsLook(notes=(note,))
        pair = self._baseline()
        if pair is None:
            return self._unchecked()
        look = self._compared(others, pair, self._run(others))
        alone = f"{settings_words(others)} by itself, which leaves the data as it was"
        check, passed_over = look.check, look.passed_over
        if check is not None:
            check = replace(check, because=f"{alone}: {check.because}")
        if passed_over is not None:
            passed_over = f"{alone}: {passed_over}"
        notes = (f"{note}; {alone}, was compared", *look.notes)
        return NumericsLook(check=check, passed_over=passed_over, notes=notes)

    def _compared(
        self, settings: Settings, pair: tuple[Trial, Trial], trial: Trial
    ) -> NumericsLook:
        from stepscope.experiments.verify.numerics_check import DIFFERS, UNKNOWN, check_numerics

        if not trial.is_good:
            why = f"while what it computes was written down, it {_how(trial)}"
            return NumericsLook(passed_over=why)
        loss = check_loss([self.search.given or pair[0], *pair], [trial])
        if loss.is_fault:
            # Whoever lets the numbers differ wants other ones, not none.
            return NumericsLook(passed_over=loss.because.replace("the candidate's", "its"))
        check = check_numerics(pair[0].numerics, pair[1].numerics, trial.numerics)
        if check.verdict == UNKNOWN:
            what = settings_words(settings)
            note = f"what {what} computes could not be compared: {check.because}"
            return NumericsLook(check=check, notes=(note,))
        if check.verdict == DIFFERS and not self._is_free:
            return NumericsLook(check=check, passed_over=check.because)
        return NumericsLook(check=check)

    def _baseline(self) -> tuple[Trial, Trial] | None:
        if self._pair is None and self.problem is None:
            self.search.say("what it computes: the baseline, twice")
            pair = self._made(Change(), "the baseline"), self._made(Change(), "the baseline")
            bad = next((trial for trial in pair if not trial.is_good), None)
            if bad is None:
                self._pair = pair
            else:
                self.problem = (
                    f"what the settings compute could not be compared: the baseline {_how(bad)} "
                    "while it was written down"
                )
        return self._pair

    def _unchecked(self) -> NumericsLook:
        assert self.problem is not None
        if self._is_free:
            return NumericsLook(notes=(self.problem,))
        return NumericsLook(passed_over=self.problem)

    @property
    def _is_free(self) -> bool:
        """Whether what is computed need not stay the same."""
        return FREE_NUMERICS in self.search.policy.free

    def _run(self, settings: Settings) -> Trial:
        """Settings that differ only in what is left out are the same run."""
        words = settings_words(settings)
        if words not in self._runs:
            self.search.say(f"what it computes: {words}")
            self._runs[words] = self._made(self.search.space.change(settings), words)
        return self._runs[words]

    def _made(self, change: Change, words: str) -> Trial:
        self.budget.ask(f"it was known what {words} computes")
        trial = self.numerics(change)
        if trial.is_timed_out and not trial.is_good and self.budget.is_spent:
            raise SpentError(
                f"the budget ended while it was looked at what {words} computes. {LONGER}"
            )
        return trial

    def rehearsed(self, settings: Settings) -> tuple[Measured, ...]:
        """A run of each side, where the setting was run as a whole."""
        trial = self._runs.get(settings_words(settings))
        if self._pair is None or trial is None or not trial.is_good:
            return ()
        return measured(BASELINE, self._pair[1]), measured(CANDIDATE, trial)


def _how(trial: Trial) -> str:
    """How a run failed."""
    if trial.is_out_of_memory:
        return memory_words(trial)
    if trial.is_timed_out:
        return f"did not end in time ({trial.wall_s:.0f} s)"
    if trial.exit_code:
        last = last_line(trial.tail)
        return f"failed with exit code {trial.exit_code}" + (f": {last}" if last else "")
    return "timed no step"


def _sees_other_data(pair: tuple[Trial, Trial], trial: Trial) -> bool:
    """Whether the first batches are others, where the baseline's own are the same twice."""
    first, again = pair[0].setup.data, pair[1].setup.data
    return first is not None and first == again and trial.setup.data not in (None, first)
