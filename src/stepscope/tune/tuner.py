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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepscope.core.experiments.trials import Change, Trial, Value
from stepscope.core.numbers import ms_words
from stepscope.core.timings import Advance, followed
from stepscope.errors import InputError, UsageError
from stepscope.experiments.budget import for_runs
from stepscope.experiments.verify.loss_check import check_loss
from stepscope.tune.batch import settled_space
from stepscope.tune.division import Division, divided
from stepscope.tune.judging import TrialJudge, Watcher
from stepscope.tune.knob_space import HOOK, Knob, Space
from stepscope.tune.parameters import import_optuna
from stepscope.tune.policy import Measure, Say, Start, TunePolicy
from stepscope.tune.shapes.tuning import (
    AGAIN,
    BASELINE,
    FAILED,
    MEASURED,
    OUT_OF_MEMORY,
    SEARCH,
    UNEQUAL,
    Tried,
)
from stepscope.tune.study import AskedTrial, Study, hidden
from stepscope.tune.words import settings_words

CLEARLY = 1.10
"""Times the best: a trial is ended when even the low end of its pace is above."""
CLOSE = 1.04
"""Times the best: settings this near are looked at again, the noise of a short trial may have put
them in a wrong order."""
MAX_AGAIN, TRIALS_AN_AGAIN = 3, 15
"""Trials kept for a second look at the best: so many at most, one for so many trials."""
MAX_CRASHES = 3
"""Crashes in a row from the first, with nothing measured: then it is not the settings."""
MIN_INEFFECTIVE = 2
"""Trials in which a knob must not have taken hold before it counts as ineffective."""
MAX_IDLE = 3
WAIT_S = 1.0
"""Seconds between two looks at what other processes are at."""
MACHINES_APART = 1.10
"""Ratio of two machines' baselines above which their trials are not the same experiment."""


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
    """Time by the clock; what came before the search may count, too."""
    searched_s: float = 0.0
    """What it took."""
    _is_waiting: bool = False
    _num_idle: int = 0
    """Times in a row that nothing was to be had, though settings are left."""

    @property
    def judge(self) -> TrialJudge:
        return TrialJudge(space=self.space, policy=self.policy, host=self.host, baseline=self.given)

    def run(self, starts: Callable[[Trial], Sequence[Start]] = lambda _given: ()) -> None:
        """Measures the baseline, then searches. Ctrl-C ends it; what was measured stays."""
        if self.began is None:
            self.began = self.clock()
        most = self.policy.num_trials
        with followed(f"at most {most} trials", 1 + most, is_long=True) as advance:
            self._run(starts, advance)
        self.searched_s = self.spent_s

    def _run(self, starts: Callable[[Trial], Sequence[Start]], advance: Advance) -> None:
        try:
            self._measure_baseline()
            advance(1)
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
                    self.say(f"first in line, from the {start.origin}: {settings_words(filled)}")
            for settings in first_settings(self.space, self.policy.num_trials):
                self.study.suggest(settings, SEARCH)
            while self._is_wanted(self.study):
                try:
                    self._make_trial(self.study)
                    advance(1 + len(self.study.trials()))
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
        trials = [] if self.study is None else self.study.trials()
        made = [tried for tried in trials if tried.state == MEASURED and tried.host == self.host]
        best = min(made, key=lambda tried: tried.ns or math.inf, default=self.baseline)
        return (self.baseline.wall_s + best.wall_s) / 2

    def ranked(self) -> list[tuple[dict[str, Value], float]]:
        """Settings that were measured, with their times, the shortest first; several looks at one
        are taken together."""
        if self.study is None:
            return []
        settings: dict[str, dict[str, Value]] = {}
        times: dict[str, list[float]] = {}
        for tried in self.study.trials():
            if tried.state == MEASURED and tried.ns is not None:
                key = self.study.same(tried.settings)
                settings.setdefault(key, dict(tried.settings))
                times.setdefault(key, []).append(tried.ns)
        ranked = [(settings[key], statistics.geometric_mean(times[key])) for key in times]
        return sorted(ranked, key=lambda pair: pair[1])

    def _measure_baseline(self) -> None:
        self.say("trial 0: the command as it was given")
        trial = self.measure(Change(), None)
        self.given = trial
        self.baseline = self.judge.tried(trial, {}, number=0, origin=BASELINE)
        if self.baseline.state != MEASURED:
            more = "".join(f". {note[:1].upper()}{note[1:]}" for note in trial.notes)
            where = f" (its output is kept in {trial.folder})" if trial.folder else ""
            raise InputError(
                f"the command as it was given cannot be measured: {self.baseline.why}{where}{more}"
                ". Nothing was searched"
            )
        if any(not math.isfinite(loss.loss) for loss in trial.losses):
            self.note(check_loss([trial], [trial]).because.partition("; ")[0])
        self.say(self._words(self.baseline))

    def _compare_machines(self, study: Study) -> None:
        assert self.baseline is not None and self.baseline.ns is not None
        all_hosts = study.say_baseline(self.host, self.baseline.ns)
        slow = max(all_hosts, key=lambda host: all_hosts[host])
        fast = min(all_hosts, key=lambda host: all_hosts[host])
        ratio = all_hosts[slow] / all_hosts[fast]
        if ratio > MACHINES_APART:
            self.notes.append(
                f"the machines of this search are not alike: the baseline takes {ratio:.2f}x as "
                f"long on {slow} as on {fast}, so their trials are not comparable. Use one "
                "storage for machines of one kind"
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

    def _make_trial(self, study: Study) -> None:
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
            if not study.num_open() or self._num_idle > MAX_IDLE:
                self.ended = "every setting was tried"
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
        for lost in study.close_lost():
            what = "had no setting yet"
            if lost.settings is not None:
                then = "is tried again" if lost.is_in_line else "is left alone now"
                what = f"was at {settings_words(lost.settings)}, which {then}"
            self.note(f"nothing was heard any more of a process on {lost.host}: it {what}")
        if any(study.workers.is_on_this_host(mark) for mark in study.others()):
            self.note(
                f"another process of this search runs on {self.host} too: they share its cores, "
                "and trials that run at the same time disturb each other. One process a machine "
                "measures better"
            )

    def _wait(self, study: Study) -> None:
        """Wait for trials of other processes: they may end in a better setting, or leave theirs to
        be tried here."""
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
        num_again = min(MAX_AGAIN, self.policy.num_trials // TRIALS_AN_AGAIN)
        if self.policy.num_trials - study.num_claimed() > num_again:
            return
        ranked = self.ranked()
        close = [settings for settings, ns in ranked if ns <= ranked[0][1] * CLOSE]
        if len(close) < 2:
            return
        for settings in close[:num_again]:
            if study.num_looks(settings) == 1:
                study.suggest(settings, AGAIN)
                return

    def _try(self, study: Study, asked: AskedTrial) -> Tried:
        watcher = self._watcher(study, asked)
        trial = self.measure(self.space.change(asked.settings), watcher)
        return self.judge.tried(
            trial,
            asked.settings,
            number=asked.number,
            origin=asked.origin,
            pruned=None if watcher is None else watcher.words,
        )

    def _watcher(self, study: Study, asked: AskedTrial) -> Watcher | None:
        """Ends the trial when it is clearly slower than the best, or than the baseline; a second
        look is never ended."""
        if not self.policy.prune or asked.origin == AGAIN:
            return None
        assert self.baseline is not None and self.baseline.ns is not None
        best = min([self.baseline.ns, *(ns for _, ns in self.ranked()[:1])])
        samples = self.judge.samples(asked.settings) or 1.0
        return Watcher(study.watch(asked, best * CLEARLY), best, samples)

    def _learn(self, study: Study) -> None:
        """A knob that never takes hold, whatever the others are, makes no settings different."""
        trials = [tried for tried in study.trials() if tried.num_steps and tried.state != FAILED]
        ineffective = set()
        for knob in self.space.knobs:
            turned = [
                tried for tried in trials if tried.settings.get(knob.name, knob.usual) != knob.usual
            ]
            if (
                knob.way.kind == HOOK
                and len(turned) >= MIN_INEFFECTIVE
                and all(knob.name in tried.not_taken for tried in turned)
            ):
                ineffective.add(knob.name)
        for name in sorted(ineffective - study.ineffective):
            self.note(
                f"{name} never took hold in the job, so settings that differ in it alone were "
                "taken as one"
            )
        study.ineffective = frozenset(ineffective)

    def _words(self, tried: Tried) -> str:
        """A line of progress."""
        is_baseline = tried.origin == BASELINE
        head = ""
        if not is_baseline:
            head = f"trial {tried.number}: {settings_words(tried.settings)}: "
        if tried.ns is None:
            return f"{head}{tried.state}: {tried.why}"
        words = f"{head}{tried.state}, {ms_words(tried.ns)} a {self.judge.per}"
        if is_baseline:
            return words
        assert self.baseline is not None and self.baseline.ns is not None
        words += f", {self.baseline.ns / tried.ns:.2f}x of the baseline's speed"
        best = min((ns for _, ns in self.ranked()), default=0.0)
        is_best = tried.state == MEASURED and tried.ns <= best * (1 + 1e-9)
        return f"{words} (best so far)" if is_best and tried.ns < self.baseline.ns else words


MAX_SHARE = 0.6
"""Share of all trials: the rest is for what the sampler makes of them."""


def first_settings(space: Space, num_trials: int) -> list[dict[str, Value]]:
    """The first values together, then every knob's last one, then every knob's middle, as far as
    its share of the trials goes."""
    knobs = [knob for knob in space.knobs if knob.values is None or len(knob.values) > 1]
    base = {knob.name: knob.first() for knob in space.knobs}
    points = {knob.name: spread(knob) for knob in knobs}
    far = [{**base, name: values[-1]} for name, values in points.items()]
    middles = [{**base, name: values[1]} for name, values in points.items() if len(values) > 2]
    designed = [space.completed(settings) for settings in (base, *far, *middles)]
    return designed[: max(1, math.floor(MAX_SHARE * num_trials))]


def spread(knob: Knob) -> list[Value]:
    """Values of a knob to begin with: its first, one in the middle, and its last; of a list without
    order there is no middle."""
    values = knob.values
    if values is not None and not knob.is_log:
        middle = [values[len(values) // 2]] if knob.is_ordered and len(values) > 2 else []
        return list(dict.fromkeys([values[0], *middle, values[-1]]))
    assert knob.low is not None and knob.high is not None
    middle_point = math.sqrt(knob.low * knob.high) if knob.is_log else (knob.low + knob.high) / 2
    near = (knob.nearest(float(f"{point:.3g}")) for point in (knob.low, middle_point, knob.high))
    return list(dict.fromkeys(value for value in near if value is not None))
