"""Two commands measured against each other, run by run, until it is settled which is faster.

What measures is a function of a side: the command line runs real trainings, tests a made-up clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stepscope.core.experiments.experiment import (
    BASELINE,
    CANDIDATE,
    DIVERGES,
    LOSS_NOT_FINITE,
    PROVEN,
    REFUSED,
    UNSETTLED,
    Interval,
    Measured,
    Prediction,
    Side,
    Verified,
)
from stepscope.core.experiments.trials import Change, Trial
from stepscope.core.timings import Advance, followed
from stepscope.errors import StepscopeError
from stepscope.experiments.bootstrap import smallest_shown
from stepscope.experiments.budget import SpentError
from stepscope.experiments.compare.comparability import causes, refusal_words, untaken
from stepscope.experiments.verify.evidence import Evidence, measured, so_far
from stepscope.experiments.verify.reasons import (
    doubt_of,
    failure_words,
    notes_on,
    reason_by_mean,
    reason_for,
    refused_notes,
    so_far_words,
    unseen_words,
)
from stepscope.experiments.verify.schedule import (
    RUNS_A_ROUND,
    VerifyPolicy,
    order,
    paired_interval,
    share_of_errors,
    verdict_of,
)

Measure = Callable[[Side], Trial]
OnRun = Callable[[Measured, "Interval | None"], None]
"""Called after each run, with the interval of the last look."""

MAX_FADING = 1.1
"""The ratio of paces in the first third of the steps over that in the last, beyond which a gain of
the means is fading too."""
MEAN_SHARE = 0.3
"""Share of the errors that a look may make, for the second question: whether the mean of all steps
is faster where the pace is not."""


def verify(
    measure: Measure,
    policy: VerifyPolicy | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    on_run: OnRun | None = None,
    before: Sequence[Measured] = (),
    shorten: Callable[[int], None] | None = None,
) -> Verified:
    """Runs both sides in turn until the verdict is settled, or the budget is spent. `before` are
    runs that were made already and do not count (those of --check): they rehearse. `shorten` is
    told how many timed steps are enough where the rehearsals show a large gain; it is decided
    before the first run that counts, so that it leans to neither side."""
    evidence = Evidence(policy or VerifyPolicy(), list(before))
    return _Experiment(measure, evidence, clock, on_run, shorten).verified()


def refused(refusals: Sequence[str]) -> Verified:
    """An experiment that was not begun, and why."""
    return Verified(verdict=REFUSED, because="; ".join(refusals), refusals=tuple(refusals))


def with_sides(
    verified: Verified, commands: Mapping[Side, str], changes: Mapping[Side, Change]
) -> Verified:
    """The experiment with what was run on each side."""
    sides = {
        side: replace(summary, command=commands.get(side), change=changes.get(side, summary.change))
        for side, summary in verified.sides
    }
    return replace(verified, **sides)


def hold(prediction: Prediction, speedup: Interval | None) -> Prediction:
    """The prediction with its verdict: it held where its own range and the measured interval meet.
    A predicted gain stays open where no gain at all is in that interval, too."""
    if speedup is None:
        return replace(prediction, verdict="open")
    low = prediction.value if prediction.low is None else prediction.low
    high = prediction.value if prediction.high is None else prediction.high
    if low > speedup.highest or high < speedup.lowest:
        return replace(prediction, verdict="too high" if low > speedup.highest else "too low")
    return replace(prediction, verdict="open" if speedup.lowest <= 1 < low else "held")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _DivergesError(Exception):
    """The candidate does not train any more: how fast it is, is of no interest."""


class _StopError(Exception):
    """The experiment cannot go on."""

    def __init__(self, refusals: Sequence[str], tail: str = "") -> None:
        super().__init__(refusals[0])
        self.refusals = tuple(refusals)
        self.tail = tail


@dataclass
class _Experiment:
    measure: Measure
    evidence: Evidence
    clock: Callable[[], float]
    on_run: OnRun | None
    shorten: Callable[[int], None] | None = None
    interval: Interval | None = None
    verdict: str | None = None
    num_looks: int = 0
    looked_at: int = 0
    """Rounds of the last look."""
    doubt: str | None = None
    """Why a faster pace was not taken for a gain."""
    is_by_mean: bool = False
    """Whether the gain lies in rare long steps, so that the interval is of the means over all
    steps."""
    is_interrupted: bool = False
    started: float = 0.0
    advance: Advance = lambda _done: None
    """Told how many runs were made."""

    @property
    def policy(self) -> VerifyPolicy:
        return self.evidence.policy

    @property
    def runs(self) -> list[Measured]:
        return self.evidence.runs

    def verified(self) -> Verified:
        self.started = self.clock()
        refusals: tuple[str, ...] = ()
        tail = ""
        try:
            self._go_through()
        except _StopError as stopped:
            self.verdict, refusals, tail = REFUSED, stopped.refusals, stopped.tail
        except _DivergesError as diverges:
            self.verdict, self.doubt = DIVERGES, str(diverges)
        except KeyboardInterrupt:
            if not so_far(self.runs):
                raise
            self._end_early(self._interrupted_words())
            self.is_interrupted = True
        except StepscopeError as problem:
            # A disk that is full, a command that has gone: no fault of what was measured until
            # then.
            if not so_far(self.runs):
                raise
            self._end_early(f"it could not go on: {problem}")
        return self._result(refusals, tail)

    def _result(self, refusals: tuple[str, ...], tail: str) -> Verified:
        assert self.verdict is not None
        evidence, interval = self.evidence, self.interval
        differences = evidence.differences()
        if refusals:
            because, notes = "; ".join(refusals), refused_notes(self.runs[-1].trial)
        else:
            because, notes = self._because(), notes_on(evidence, differences, interval)
        is_void = self.verdict in (REFUSED, DIVERGES)
        is_open = interval is None and self.verdict == UNSETTLED
        return Verified(
            verdict=self.verdict,
            because=because,
            speedup=None if is_void else interval,
            runs=tuple(run.run for run in self.runs),
            baseline=evidence.summary(BASELINE, is_by_mean=self.is_by_mean),
            candidate=evidence.summary(CANDIDATE, is_by_mean=self.is_by_mean),
            num_rounds=evidence.num_rounds,
            num_looks=self.num_looks,
            smallest=None if interval is None or is_void else _finite(smallest_shown(interval)),
            loss=evidence.loss(),
            unit="sample" if self.policy.per_sample else "step",
            is_by_mean=self.is_by_mean,
            is_interrupted=self.is_interrupted,
            so_far=so_far(self.runs) if is_open else None,
            wall_s=self.clock() - self.started,
            differences=differences,
            refusals=refusals,
            tail=tail,
            notes=notes,
        )

    def _because(self) -> str:
        if self.doubt is not None:
            return self.doubt
        assert self.interval is not None
        if self.is_by_mean:
            return reason_by_mean(self.interval, self.evidence)
        return reason_for(self.verdict, self.interval, self.evidence)

    def _go_through(self) -> None:
        """Run until there is a verdict, or the time is over."""
        policy = self.policy
        most = 2 * policy.num_rehearsals + RUNS_A_ROUND * policy.max_rounds
        try:
            with followed(f"at most {most} runs", most, is_long=True) as self.advance:
                for run in self.runs:
                    self._judge(run.side, run.trial)
                self._rehearse()
                num_steps = self.evidence.enough_steps()
                if self.shorten is not None and num_steps is not None:
                    self.shorten(num_steps)
                while self.verdict is None:
                    self._round()
        except SpentError as spent:
            if not self.runs:
                raise
            # Whole rounds that were not looked at yet are: what ends it is the clock, which knows
            # nothing of the result.
            if self.evidence.num_rounds > self.looked_at:
                self._look(is_last=True)
            else:
                self._end_early(str(spent))

    def _interrupted_words(self) -> str:
        num = self.evidence.num_rounds
        if not num:
            return "it was interrupted"
        rounds = "one round" if num == 1 else f"{num} rounds"
        return f"it was interrupted after {rounds}"

    def _end_early(self, why: str) -> None:
        """What was measured is reported: it cannot be measured again."""
        early = ""
        if self.interval is None:
            early = f", before the evidence was looked at; {so_far_words(self.runs)}"
        self.verdict, self.doubt = UNSETTLED, f"{why}{early}"

    def _rehearse(self) -> None:
        """Each side as often as was asked, less those that were run before."""
        for side in (BASELINE, CANDIDATE):
            for _ in range(self.policy.num_rehearsals - sum(run.side == side for run in self.runs)):
                self._run(side, None)
        if self.runs and self._is_spent():
            raise SpentError(
                f"the budget ended with no room for a first round ({RUNS_A_ROUND} runs of about "
                f"{self.evidence.run_s():.0f} s: give a longer --budget, or fewer --steps)"
            )

    def _round(self) -> None:
        number = self.evidence.num_rounds
        for side in order(number):
            self._run(side, number)
        self.evidence.num_rounds += 1
        self._look(is_last=number + 1 >= self.policy.max_rounds or self._is_spent())

    def _look(self, *, is_last: bool) -> None:
        """Look at the evidence at the whole rounds, where it is time for it."""
        evidence = self.evidence
        errors = share_of_errors(self.policy, evidence.num_rounds, is_last=is_last)
        if errors is None:
            return
        loss = evidence.loss()
        if loss is not None and loss.is_fault:
            raise _DivergesError(loss.because)
        self.num_looks += 1
        self.looked_at = evidence.num_rounds
        self.interval = paired_interval(
            evidence.pairs(evidence.time), errors, self.policy.level, evidence.least_variance()
        )
        settled = self._with_every_step(self.interval, errors)
        self.verdict = UNSETTLED if is_last and settled is None else settled

    def _with_every_step(self, usual: Interval, errors: float) -> str | None:
        """What is settled. The pace leaves rare long steps out: they may take a gain back, and they
        may be where it lies (an epoch's start)."""
        evidence, settled = self.evidence, verdict_of(usual, self.policy)
        self.doubt = None
        if settled == PROVEN:
            self.doubt = doubt_of(evidence, usual)
            return None if self.doubt else PROVEN
        whole = paired_interval(
            evidence.pairs(evidence.mean), errors * MEAN_SHARE, self.policy.level
        )
        whole_verdict = verdict_of(whole, self.policy)
        fading = evidence.ratio(evidence.early) / evidence.ratio(evidence.late)
        if whole_verdict == PROVEN and fading < MAX_FADING:
            self.interval, self.is_by_mean = whole, True
            return PROVEN
        is_open = whole_verdict is None and whole.value > 1 + self.policy.threshold
        if settled is not None and is_open and evidence.has_odd_steps():
            self.doubt = (
                "usual steps give nothing; with those that save or evaluate it is "
                f"{whole.value:.2f}x, which is not sure"
            )
            return None
        return settled

    def _is_spent(self) -> bool:
        """Whether a round more would likely end after the budget."""
        if self.policy.budget_s is None:
            return False
        spent = self.clock() - self.started
        return spent + RUNS_A_ROUND * self.evidence.run_s() > self.policy.budget_s

    def _is_all_spent(self) -> bool:
        budget_s = self.policy.budget_s
        return budget_s is not None and self.clock() - self.started >= budget_s

    def _run(self, side: Side, number: int | None) -> None:
        run = measured(side, self.measure(side), number)
        self.runs.append(run)
        self.advance(len(self.runs))
        if self.on_run is not None:
            self.on_run(run, self.interval)
        self._judge(side, run.trial)

    def _judge(self, side: Side, trial: Trial) -> None:
        """Whether the run is fit to be evidence."""
        if not trial.is_good and trial.is_timed_out and self._is_all_spent():
            raise SpentError(
                f"the budget ended in the midst of a run of the {side}{unseen_words(trial)}"
            )
        if not trial.is_good:
            raise _StopError([failure_words(side, trial)], trial.tail)
        loss = self.evidence.loss()
        if loss is not None and loss.verdict == LOSS_NOT_FINITE:
            # No further run makes it finite; whether it grows is seen with the evidence, by more
            # runs than one.
            raise _DivergesError(loss.because)
        lacking = untaken(trial)
        if lacking:
            raise _StopError(lacking)
        refused = [
            difference for difference in self.evidence.differences() if not difference.is_allowed
        ]
        if refused:
            raise _StopError([refusal_words(difference) for difference in causes(refused)])
        if self.policy.per_sample and not trial.setup.samples:
            why = (
                f"the batch size of the {side} is not known, so that no time per sample can be "
                "told: no DataLoader with a batch size fed its steps"
            )
            raise _StopError([why])
