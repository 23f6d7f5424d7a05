"""The search: the command as it was given first, then what the sampler asks for, each in a short
real trial.

What measures is a function of a change: the command line runs real trainings, tests a made-up
clock.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.core.experiments.trials import Change, Setup, Trial, Value
from stepscope.core.experiments.tuning import (
    AGAIN,
    BASELINE,
    FAILED,
    MEASURED,
    OUT_OF_MEMORY,
    PRUNED,
    SAMPLE,
    SEARCH,
    STEP,
    UNEQUAL,
    Tried,
)
from stepscope.errors import InputError, UsageError
from stepscope.experiments.bootstrap import pace, pace_variance
from stepscope.experiments.budget import Division, divided, for_runs
from stepscope.experiments.tune.batch import FREE_BATCH, is_per_sample, samples_of, settled_space
from stepscope.experiments.tune.design import first_settings
from stepscope.experiments.tune.knob_space import HOOK, Settings, Space, shown
from stepscope.experiments.tune.study import Asked, Study, import_optuna
from stepscope.experiments.tune.study_storage import hidden
from stepscope.experiments.verify.loss_check import check_loss
from stepscope.experiments.verify.reasons import NO_STEPS

OnSteps = Callable[[Sequence[int]], bool]
Measure = Callable[[Change, "OnSteps | None"], Trial]
Say = Callable[[str], None]

LEAST_STEPS = 3
"""Timed steps that a trial must have to count."""
LEAST_TO_PRUNE = 8
"""Timed steps before a trial may be ended for being slow."""
CLEARLY = 1.10
"""Times the best: a trial is ended when even the low end of its pace is above."""
CLOSE = 1.04
"""Times the best: settings this near are looked at again, the noise of a short trial may have put
them in a wrong order."""
MAX_CRASHES = 3
"""In a row from the first, with nothing measured: then it is not the settings."""
LEAST_TO_BURY = 2
"""Trials in which a knob must not have taken hold before it is taken for dead."""
SAMPLES_APART = 0.02
"""Share by which the samples a step may differ: the last batch of an epoch is often smaller."""
MAX_WHY = 300
MAX_IDLE = 3
WAIT_S = 1.0
"""Between two looks at what other processes are at."""
MACHINES_APART = 1.10
"""Ratio of two machines' baselines above which their trials are not the same experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePolicy:
    """How long to search, and what may change."""

    num_trials: int = 20
    """In the whole study, the baseline apart."""
    budget_s: float | None = None
    """Of the search and the proof together."""
    is_proven: bool = False
    """Whether a check and a proof follow, for which a part of the budget is kept."""
    seed: int | None = None
    storage: str | None = None
    name: str = "stepscope-tune"
    free: frozenset[str] = frozenset()
    """What need not stay equal: batch, numerics."""
    effective_batch: int | None = None
    """Samples a step on all ranks, where the capture cannot see it."""
    prune: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A setting to try early, and where it came from."""

    settings: Mapping[str, Value]
    origin: str


@dataclass(slots=True)
class Search:
    """A search under way, and when it has ended what it found."""

    space: Space
    measure: Measure
    policy: TunePolicy
    say: Say = lambda _words: None
    clock: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep
    host: str = field(default_factory=platform.node)
    baseline: Tried | None = None
    given: Trial | None = None
    """The baseline's trial."""
    study: Study | None = None
    ended: str = ""
    is_interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    began: float | None = None
    """By the clock; what came before the search may count, too."""
    searched_s: float = 0.0
    """What it took."""
    _is_waiting: bool = False
    _num_idle: int = 0
    """Times in a row that nothing was to be had, though settings are left."""

    @property
    def per(self) -> str:
        return SAMPLE if is_per_sample(self.space, self.policy.free) else STEP

    @property
    def given_setup(self) -> Setup:
        return Setup() if self.given is None else self.given.setup

    def run(self, starts: Callable[[Trial], Sequence[Start]] = lambda _given: ()) -> None:
        """Measures the baseline, then searches. Ctrl-C ends it; what was measured stays."""
        if self.began is None:
            self.began = self.clock()
        try:
            self._measure_baseline()
            assert self.given is not None
            self.space = settled_space(
                self.space, self.given.setup, self.policy.free, self.policy.effective_batch
            )
            self.study = Study(
                self.space,
                name=self.policy.name,
                storage=self.policy.storage,
                seed=self.policy.seed,
                host=self.host,
                clock=self.clock,
            )
            self._compare_machines(self.study)
            if self.division is not None:
                self.say(self.division.words)
            for start in starts(self.given):
                filled = self.space.filled(start.settings)
                if filled is not None and self.study.suggest(filled, start.origin):
                    self.say(f"first in line, from the {start.origin}: {words_of(filled)}")
            for settings in first_settings(self.space, self.policy.num_trials):
                self.study.suggest(settings, SEARCH)
            while self._is_wanted(self.study):
                try:
                    self._one(self.study)
                except UsageError as problem:
                    # A disk that is full, a command that has gone: what was measured until then is
                    # shown.
                    self.ended = f"it could not go on: {problem}"
                    self.say(self.ended)
        except KeyboardInterrupt:
            self.is_interrupted, self.ended = True, "interrupted"
        except import_optuna().exceptions.StorageInternalError as problem:
            where, why = hidden(self.policy.storage or ""), str(problem).partition("\n")[0]
            raise InputError(
                f"the storage {where} cannot be used any more: {why}. The runs until now are kept"
            ) from None
        self.searched_s = self.spent_s

    @property
    def division(self) -> Division | None:
        """How the budget is divided, by what is known of a run's time until now; None without a
        budget or a baseline."""
        if self.policy.budget_s is None or self.baseline is None:
            return None
        return divided(self.policy.budget_s, self.run_s, is_proven=self.policy.is_proven)

    @property
    def spent_s(self) -> float:
        return 0.0 if self.began is None else self.clock() - self.began

    def left_s(self) -> float | None:
        """What a run that is begun now may take; None where there is no end. A trial of the search
        leaves the proof its part."""
        if self.policy.budget_s is None:
            return None
        left, division = max(0.0, for_runs(self.policy.budget_s) - self.spent_s), self.division
        if division is None or self.ended:
            return left
        return min(left, max(left - division.kept_s, division.run_s))

    @property
    def run_s(self) -> float:
        """What a run takes here: the mean of the baseline's and the best trial's, which are those
        of a proof."""
        assert self.baseline is not None
        made = (
            []
            if self.study is None
            else [
                one
                for one in self.study.trials()
                if one.state == MEASURED and one.host == self.host
            ]
        )
        best = min(made, key=lambda one: one.ns or math.inf, default=self.baseline)
        return (self.baseline.wall_s + best.wall_s) / 2

    def ranked(self) -> list[tuple[dict[str, Value], float]]:
        """Settings that were measured, with their times, the shortest first; several looks at one
        are taken together."""
        if self.study is None:
            return []
        looks: dict[str, list[Tried]] = {}
        for tried in self.study.trials():
            if tried.state == MEASURED and tried.ns is not None:
                looks.setdefault(self.study.same(tried.settings), []).append(tried)
        found = [
            (dict(many[0].settings), statistics.geometric_mean([one.ns or 0.0 for one in many]))
            for many in looks.values()
        ]
        return sorted(found, key=lambda pair: pair[1])

    def _measure_baseline(self) -> None:
        self.say("trial 0: the command as it was given")
        trial = self.measure(Change(), None)
        self.given = trial
        self.baseline = self._judged(trial, {}, 0, BASELINE, None)
        if self.baseline.state != MEASURED:
            more = "".join(f". {capital(note)}" for note in trial.notes)
            where = f" (its output is kept in {trial.folder})" if trial.folder else ""
            why = (
                f"the command as it was given cannot be measured: {self.baseline.why}{where}{more}"
            )
            raise InputError(f"{why}. Nothing was searched")
        if any(not math.isfinite(loss.loss) for loss in trial.losses):
            self.note(check_loss([trial], [trial]).because.partition("; ")[0])
        self.say(self._words(self.baseline))

    def _compare_machines(self, study: Study) -> None:
        assert self.baseline is not None and self.baseline.ns is not None
        all_hosts = study.say_baseline(self.host, self.baseline.ns)
        slow, fast = (
            max(all_hosts, key=lambda host: all_hosts[host]),
            min(all_hosts, key=lambda host: all_hosts[host]),
        )
        if all_hosts[slow] > all_hosts[fast] * MACHINES_APART:
            self.notes.append(
                "the machines of this search are not alike: the baseline takes "
                f"{all_hosts[slow] / all_hosts[fast]:.2f}x as long "
                f"on {slow} as on {fast}, so their trials are not comparable. Use one storage for "
                "machines of one kind"
            )

    def _is_wanted(self, study: Study) -> bool:
        """Whether another trial is to be made; says why where not."""
        trials, division = study.trials(), self.division
        crashes = [tried for tried in trials if tried.state in (FAILED, UNEQUAL, OUT_OF_MEMORY)]
        if (
            len(crashes) >= MAX_CRASHES
            and len(crashes) == len(trials)
            and any(tried.state != OUT_OF_MEMORY for tried in crashes)
        ):
            self.ended = f"the first {len(crashes)} trials all failed; the last: {crashes[-1].why}"
        elif len(trials) >= self.policy.num_trials:
            self.ended = f"{len(trials)} trials were made"
        elif division is not None and division.is_over(self.spent_s):
            self.ended = division.ended_words
        return not self.ended

    def _one(self, study: Study) -> None:
        self._look_around(study)
        self._learn(study)
        asked = None
        if study.num_claimed() < self.policy.num_trials:
            self._look_again(study)
            asked = study.ask(self.policy.num_trials)
        if asked is None and study.others():
            self._wait(study)
            return
        if asked is None:
            # Where settings are left after all, another process has just left one that it was at.
            self._num_idle += 1
            self.ended = (
                "" if study.num_open() and self._num_idle <= MAX_IDLE else "every setting was tried"
            )
            return
        self._is_waiting, self._num_idle = False, 0
        try:
            with study.at_work(asked):
                tried = self._try(study, asked)
        except BaseException:
            study.give_up(asked)
            raise
        study.tell(asked, tried)
        self._learn(study)
        self.say(self._words(tried))

    def _look_around(self, study: Study) -> None:
        """Whether other processes are there still, and where."""
        for gone in study.bury():
            what = (
                "had no setting yet"
                if gone.settings is None
                else f"was at {words_of(gone.settings)}"
            )
            then = (
                ""
                if gone.settings is None
                else ", which is tried again"
                if gone.is_in_line
                else ", which is left alone now"
            )
            self.note(f"nothing was heard any more of a process on {gone.host}: it {what}{then}")
        if any(study.crowd.is_beside(mark) for mark in study.others()):
            self.note(
                f"another process of this search runs on {self.host} too: they share its cores, "
                "and trials that run at the same "
                "time disturb each other. One process a machine measures better"
            )

    def _wait(self, study: Study) -> None:
        """For trials of other processes: they may end in a better setting, or leave theirs to be
        tried here."""
        if not self._is_waiting:
            num = len(study.others())
            trials = "a trial" if num == 1 else f"{num} trials"
            self.say(
                f"waiting for {trials} under way in other processes, on {', '.join(study.hosts())}"
            )
        self._is_waiting = True
        self.rest(WAIT_S)

    def note(self, words: str) -> None:
        """Says it, once, and keeps it for the report."""
        if words not in self.notes:
            self.notes.append(words)
            self.say(words)

    def _look_again(self, study: Study) -> None:
        """Towards the end, puts those that are as good as the best in line once more."""
        left = self.policy.num_trials - study.num_claimed()
        if left > num_again(self.policy.num_trials):
            return
        ranked = self.ranked()
        for settings, ns in ranked[: num_again(self.policy.num_trials)]:
            if (
                len(ranked) > 1
                and ranked[1][1] <= ranked[0][1] * CLOSE >= ns
                and study.num_looks(settings) == 1
            ):
                study.suggest(settings, AGAIN)
                return

    def _try(self, study: Study, asked: Asked) -> Tried:
        watcher = self._watcher(study, asked)
        trial = self.measure(self.space.change(asked.settings), watcher)
        return self._judged(
            trial,
            asked.settings,
            asked.number,
            asked.origin,
            None if watcher is None else watcher.words,
        )

    def _watcher(self, study: Study, asked: Asked) -> Watcher | None:
        """Ends the trial when it is clearly slower than the best, or than the baseline; a second
        look is never ended."""
        if not self.policy.prune or asked.origin == AGAIN:
            return None
        assert self.baseline is not None and self.baseline.ns is not None
        best = min([self.baseline.ns, *(ns for _, ns in self.ranked()[:1])])
        unit = (
            samples_of(asked.settings, None, self.given_setup, self.policy.effective_batch)
            if self.per == SAMPLE
            else 1.0
        )
        return Watcher(study.watch(asked, best * CLEARLY), best, unit or 1.0)

    def _learn(self, study: Study) -> None:
        """A knob that never takes hold, whatever the others are, makes no settings different."""
        trials = [tried for tried in study.trials() if tried.num_steps and tried.state != FAILED]
        dead = set()
        for knob in self.space.knobs:
            turned = [
                tried for tried in trials if tried.settings.get(knob.name, knob.usual) != knob.usual
            ]
            if (
                knob.way.kind == HOOK
                and len(turned) >= LEAST_TO_BURY
                and all(knob.name in tried.not_taken for tried in turned)
            ):
                dead.add(knob.name)
        for name in sorted(dead - study.dead):
            self.note(
                f"{name} never took hold in the job, so settings that differ in it alone were "
                "taken as one"
            )
        study.dead = frozenset(dead)

    def _judged(
        self, trial: Trial, settings: Settings, number: int, origin: str, pruned: str | None
    ) -> Tried:
        """What a trial says of its setting."""
        steps = trial.step_ns
        known = pace(steps) if len(steps) >= LEAST_STEPS else None
        samples = (
            samples_of(settings, trial.setup, self.given_setup, self.policy.effective_batch)
            if self.per == SAMPLE
            else 1.0
        )
        state, why = self._state(trial, samples, pruned)
        return Tried(
            number=number,
            settings=dict(settings),
            state=state,
            ns=None
            if known is None or not samples or state not in (MEASURED, PRUNED)
            else known / samples,
            step_ns=known,
            num_steps=len(steps),
            wall_s=trial.wall_s,
            why=why,
            origin=origin,
            host=self.host,
            # A job that ended before its first step had no time to take anything.
            not_taken=tuple(name for name, count in trial.taken.items() if count == 0)
            if steps
            else (),
        )

    def _state(self, trial: Trial, samples: float | None, pruned: str | None) -> tuple[str, str]:
        if trial.is_out_of_memory:
            return OUT_OF_MEMORY, last_words(trial.tail) or "memory ran out"
        if pruned:
            return PRUNED, pruned
        if trial.is_timed_out and len(trial.step_ns) < LEAST_STEPS:
            return FAILED, f"it had not timed {LEAST_STEPS} steps after {trial.wall_s:.0f} s"
        if trial.exit_code == 0 and not trial.step_ns:
            return FAILED, f"it {NO_STEPS}"
        if not (trial.is_good or trial.is_timed_out):
            told = last_words(trial.tail)
            return FAILED, f"exit code {trial.exit_code}" + (f": {told}" if told else "")
        if len(trial.step_ns) < LEAST_STEPS:
            return FAILED, f"only {len(trial.step_ns)} steps were timed"
        if samples is None:
            return (
                UNEQUAL,
                "how many samples a step takes was not seen. Say it with --effective-batch N",
            )
        return self._terms(trial)

    def _terms(self, trial: Trial) -> tuple[str, str]:
        """Whether a step is still the same work."""
        loss = None if self.given is None else check_loss([self.given], [trial])
        if loss is not None and loss.is_fault:
            return FAILED, loss.because.replace("the candidate's", "its")
        now, before = trial.setup.samples, self.given_setup.samples
        if (
            now is None
            or before is None
            or FREE_BATCH in self.policy.free
            or abs(now - before) <= SAMPLES_APART * before
        ):
            return MEASURED, ""
        return (
            UNEQUAL,
            (
                f"{now:g} samples a step where the baseline has {before:g}. Pin it, or say --free "
                "batch"
            ),
        )

    def _words(self, tried: Tried) -> str:
        """A line of progress."""
        head = (
            ""
            if tried.origin == BASELINE
            else f"trial {tried.number}: {words_of(tried.settings)}: "
        )
        if tried.ns is None:
            return f"{head}{tried.state}: {tried.why}"
        best = self.ranked()[:1]
        base = self.baseline.ns if self.baseline is not None else None
        gain = (
            ""
            if base is None or tried.origin == BASELINE
            else f", {base / tried.ns:.2f}x of the baseline's speed"
        )
        is_best = bool(best) and tried.state == MEASURED and tried.ns <= best[0][1] * (1 + 1e-9)
        mark = " (best so far)" if is_best and (base is None or tried.ns < base) else ""
        return f"{head}{tried.state}, {tried.ns / 1e6:.3g} ms a {self.per}{gain}{mark}"


def words_of(settings: Settings) -> str:
    """`num_workers=4 compile_mode=off`."""
    return " ".join(f"{name}={shown(value)}" for name, value in settings.items())


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def last_words(tail: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1][:MAX_WHY] if lines else ""


def num_again(num_trials: int) -> int:
    """Trials kept for a second look at the best."""
    return min(3, num_trials // 15)


class Watcher:
    """Hears a trial's steps while it runs."""

    def __init__(self, hear: Callable[[float, int], bool], best_ns: float, unit: float) -> None:
        self._hear = hear
        self._best_ns = best_ns
        self._unit = unit
        self.words: str | None = None
        """Why the trial was ended, if it was."""

    def __call__(self, steps: Sequence[int]) -> bool:
        if len(steps) < LEAST_TO_PRUNE:
            return True
        now = pace(steps)
        low = now * math.exp(-2 * math.sqrt(pace_variance(steps, draws=50)))
        if self._hear(low / self._unit, len(steps)):
            return True
        self.words = (
            f"after {len(steps)} steps {now / self._unit / self._best_ns:.2f}x as long as the best"
        )
        return False
