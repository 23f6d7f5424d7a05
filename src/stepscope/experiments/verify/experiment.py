"""Two commands measured against each other, run by run, until it is settled which is faster.

What measures is a function of a side: the command line runs real trainings, tests a made-up clock.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepscope.core.experiments.experiment import (
    BASELINE,
    CANDIDATE,
    DIVERGES,
    LOSS_NOT_FINITE,
    LOSS_UNSEEN,
    NO_GAIN,
    PROVEN,
    REFUSED,
    UNSETTLED,
    WORSE,
    Difference,
    Interval,
    LossCheck,
    Measured,
    Prediction,
    Side,
    SideSummary,
    SoFar,
    Verified,
)
from stepscope.core.experiments.trials import Trial
from stepscope.errors import StepscopeError
from stepscope.experiments.bootstrap import pace, pace_variance, smallest_shown
from stepscope.experiments.compare.comparability import (
    causes,
    differences,
    loose_terms,
    partly_taken,
    refusal_words,
    untaken,
)
from stepscope.experiments.verify.loss_check import check_loss
from stepscope.experiments.verify.schedule import (
    RUNS_A_ROUND,
    VerifyPolicy,
    half_width,
    order,
    paired_interval,
    share_of_errors,
    verdict_of,
)

__all__ = [
    "Measure",
    "SpentError",
    "VerifyPolicy",
    "hold",
    "refused",
    "so_far",
    "so_far_words",
    "verify",
]

Measure = Callable[[Side], Trial]
Told = Callable[[Measured, "Interval | None"], None]
"""Called after each run, with the interval of the last look."""

FEW_STEPS = 5
LATE_SHARE, LATE_LEAST = 0.5, 0.05
"""A gain of which the last third of the steps has less than this share, and this much less, was not
there to stay."""
MOST_FADING = 1.1
"""The ratio of paces in the first third of the steps over that in the last, beyond which a gain of
the means is fading too."""
AS_LONG = 0.02
"""Ratios of usual steps this near to 1 are told as none."""
NO_STEPS = (
    "ended with no step timed: a step is a call of a PyTorch optimizer's step(), the first few "
    "(--warm-up) do not count, and "
    "it made no such calls, or too few"
)
MEAN_SHARE = 0.3
"""Of the errors that a look may make, for the second question: whether the mean of all steps is
faster where the pace is not."""


def verify(
    measure: Measure,
    policy: VerifyPolicy | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    told: Told | None = None,
    before: Sequence[Measured] = (),
) -> Verified:
    """Runs both sides in turn until the verdict is settled, or the budget is spent. `before` are
    runs that were made already and do not count (those of --check): they rehearse."""
    return _Experiment(measure, policy or VerifyPolicy(), clock, told, list(before)).verified()


def refused(refusals: Sequence[str]) -> Verified:
    """An experiment that was not begun, and why."""
    none = SideSummary(num_runs=0, step_ns=None, run_spread=None, mean_ns=None)
    return Verified(
        verdict=REFUSED,
        because="; ".join(refusals),
        speedup=None,
        runs=(),
        baseline=none,
        candidate=none,
        num_rounds=0,
        num_looks=0,
        smallest=None,
        refusals=tuple(refusals),
    )


def hold(prediction: Prediction, speedup: Interval | None) -> Prediction:
    """The prediction with its verdict: it held where its own range and the measured interval meet.
    A predicted gain stays open where no gain at all is in that interval, too."""
    if speedup is None:
        return replace(prediction, verdict="open")
    low = prediction.value if prediction.low is None else prediction.low
    high = prediction.value if prediction.high is None else prediction.high
    if low > speedup.high or high < speedup.low:
        return replace(prediction, verdict="too high" if low > speedup.high else "too low")
    return replace(prediction, verdict="open" if speedup.low <= 1 < low else "held")


def so_far(runs: Sequence[Measured]) -> dict[Side, SoFar]:
    """What was measured of each side, whether it counts or not."""
    found: dict[Side, SoFar] = {}
    for side in (BASELINE, CANDIDATE):
        timed = [run.trial.step_ns for run in runs if run.side == side and run.trial.step_ns]
        steps = [ns for step_ns in timed for ns in step_ns]
        if steps:
            found[side] = SoFar(
                num_runs=len(timed), num_steps=len(steps), median_ns=statistics.median(steps)
            )
    return found


def so_far_words(told: Mapping[Side, SoFar]) -> str:
    """`until then the baseline took 13.1 ms a step (the median of 40 steps, 2 runs), ...; that
    proves nothing`."""
    each = []
    for side in (BASELINE, CANDIDATE):
        one = told.get(side)
        if one is None:
            each.append(f"of the {side} nothing was measured")
        else:
            steps = "one step" if one.num_steps == 1 else f"{one.num_steps} steps"
            runs = "one run" if one.num_runs == 1 else f"{one.num_runs} runs"
            each.append(
                f"the {side} took {one.median_ns / 1e6:.3g}\u00a0ms a step (the median of {steps} "
                f"in {runs})"
            )
    return f"until then {', and '.join(each)}: nothing is proven by that"


class SpentError(Exception):
    """There is no time for another run; says what of the budget is gone, and for what there is
    none."""


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
    policy: VerifyPolicy
    clock: Callable[[], float]
    told: Told | None
    runs: list[Measured] = field(default_factory=list)
    interval: Interval | None = None
    verdict: str | None = None
    num_rounds: int = 0
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
    variances: list[float] = field(default_factory=list)
    """Of each counted run's pace, by its steps alone."""

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
            rounds = "one round" if self.num_rounds == 1 else f"{self.num_rounds} rounds"
            self._end_early(
                f"it was interrupted after {rounds}" if self.num_rounds else "it was interrupted"
            )
            self.is_interrupted = True
        except StepscopeError as problem:
            # A disk that is full, a command that has gone: no fault of what was measured until
            # then.
            if not so_far(self.runs):
                raise
            self._end_early(f"it could not go on: {problem}")
        assert self.verdict is not None
        found = self._differences()
        is_void = self.verdict in (REFUSED, DIVERGES)
        return Verified(
            verdict=self.verdict,
            because="; ".join(refusals) if refusals else self._because(),
            speedup=None if is_void else self.interval,
            runs=tuple(self.runs),
            baseline=self._summary(BASELINE),
            candidate=self._summary(CANDIDATE),
            num_rounds=self.num_rounds,
            num_looks=self.num_looks,
            smallest=None if self.interval is None or is_void else smallest_shown(self.interval),
            loss=self._loss(),
            per_sample=self.policy.per_sample,
            is_by_mean=self.is_by_mean,
            is_interrupted=self.is_interrupted,
            so_far=so_far(self.runs) if self.interval is None and self.verdict == UNSETTLED else {},
            wall_s=self.clock() - self.started,
            differences=found,
            refusals=refusals,
            tail=tail,
            notes=self._refused_notes() if refusals else self._notes(found),
        )

    def _go_through(self) -> None:
        """Until there is a verdict, or the time is over."""
        try:
            for run in self.runs:
                self._judge(run.side, run.trial)
            self._rehearse()
            while self.verdict is None:
                self._round()
        except SpentError as spent:
            if not self.runs:
                raise
            self._end_spent(str(spent))

    def _loss(self) -> LossCheck | None:
        """Of all runs, those that do not count too; None before both sides were run."""
        sides = {
            side: [run.trial for run in self.runs if run.side == side]
            for side in (BASELINE, CANDIDATE)
        }
        return check_loss(sides[BASELINE], sides[CANDIDATE]) if all(sides.values()) else None

    def _end_early(self, why: str) -> None:
        """What was measured is told: it cannot be measured again."""
        early = (
            ""
            if self.interval is not None
            else f", before the evidence was looked at; {so_far_words(so_far(self.runs))}"
        )
        self.verdict, self.doubt = UNSETTLED, f"{why}{early}"

    def _end_spent(self, why: str) -> None:
        """Whole rounds that were not looked at yet are: what ends it is the clock, which knows
        nothing of the result."""
        if self.num_rounds > self.looked_at:
            self._look(is_last=True)
        else:
            self._end_early(why)

    def _rehearse(self) -> None:
        """Each side as often as was asked, less those that were run before."""
        for side in (BASELINE, CANDIDATE):
            for _ in range(self.policy.num_rehearsals - sum(run.side == side for run in self.runs)):
                self._run(side, None)
        if self.runs and self._is_spent():
            each = statistics.fmean(run.trial.wall_s for run in self.runs)
            words = (
                f"{RUNS_A_ROUND} runs of about {each:.0f} s: give a longer --budget, or fewer "
                "--steps"
            )
            raise SpentError(f"the budget ended with no room for a first round ({words})")

    def _round(self) -> None:
        number = self.num_rounds
        for side in order(number):
            self._run(side, number)
        self.num_rounds += 1
        self._look(is_last=self.num_rounds >= self.policy.max_rounds or self._is_spent())

    def _look(self, *, is_last: bool) -> None:
        """At the whole rounds, where it is time for it."""
        errors = share_of_errors(self.policy, self.num_rounds, is_last=is_last)
        if errors is None:
            return
        loss = self._loss()
        if loss is not None and loss.is_fault:
            raise _DivergesError(loss.because)
        self.num_looks += 1
        self.looked_at = self.num_rounds
        self.interval = paired_interval(
            self._pairs(self._time), errors, self.policy.level, self._least_variance()
        )
        settled = self._with_every_step(verdict_of(self.interval, self.policy), errors)
        self.verdict = UNSETTLED if is_last and settled is None else settled

    def _with_every_step(self, settled: str | None, errors: float) -> str | None:
        """The pace leaves rare long steps out. They may take a gain back, and they may be where it
        lies: an epoch's start."""
        self.doubt = self._doubt() if settled == PROVEN else None
        if settled == PROVEN:
            return None if self.doubt else PROVEN
        whole = paired_interval(self._pairs(self._mean), errors * MEAN_SHARE, self.policy.level)
        fades = math.exp(
            statistics.fmean(self._pairs(self._early)) - statistics.fmean(self._pairs(self._late))
        )
        if verdict_of(whole, self.policy) == PROVEN and fades < MOST_FADING:
            self.interval, self.is_by_mean = whole, True
            return PROVEN
        is_open = verdict_of(whole, self.policy) is None and whole.value > 1 + self.policy.threshold
        if settled is not None and is_open and self._is_odd():
            self.doubt = (
                "usual steps give nothing; with those that save or evaluate it is "
                f"{whole.value:.2f}x, which is not sure"
            )
            return None
        return settled

    def _is_odd(self) -> bool:
        """Whether steps were seen that save or evaluate: what they take is a part of the job's
        time."""
        return any(run.trial.odd_ns for run in self._counted())

    def _doubt(self) -> str | None:
        """Why a faster pace is no gain; None where it is one."""
        least = 1 + self.policy.threshold
        whole, late = math.exp(statistics.fmean(self._pairs(self._mean))), self._over_thirds()
        if whole < least:
            return (
                f"the pace is faster, but with every step counted it is {whole:.2f}x: rare long "
                "steps take the gain back"
            )
        gain = 0.0 if self.interval is None else math.log(self.interval.value)
        if math.log(late) < min(LATE_SHARE * gain, gain - LATE_LEAST):
            words = f"little is left of it in the last third of the timed steps ({late:.2f}x)"
            return (
                f"{words}: a stock of ready batches was used up meanwhile; --warm-up and --steps "
                "leave it behind"
            )
        return None

    def _over_thirds(self) -> float:
        """The ratio of paces in the last third of each run's steps."""
        return math.exp(statistics.fmean(self._pairs(self._late)))

    def _mean(self, run: Measured) -> float:
        """Of every step, those that save or evaluate too."""
        return (
            (statistics.fmean(run.trial.step_ns) + run.trial.odd_ns)
            * self._time(run)
            / (run.pace_ns or 1.0)
        )

    def _early(self, run: Measured) -> float:
        steps = run.trial.step_ns
        return pace(steps[: max(len(steps) // 3, 1)]) * self._time(run) / (run.pace_ns or 1.0)

    def _late(self, run: Measured) -> float:
        steps = run.trial.step_ns
        return pace(steps[-max(len(steps) // 3, 1) :]) * self._time(run) / (run.pace_ns or 1.0)

    def _is_spent(self) -> bool:
        """Whether a round more would likely end after the budget."""
        if self.policy.budget_s is None:
            return False
        spent = self.clock() - self.started
        made = self._counted() or self.runs
        each = sum(run.trial.wall_s for run in made) / len(made)
        return spent + RUNS_A_ROUND * each > self.policy.budget_s

    def _is_all_spent(self) -> bool:
        return (
            self.policy.budget_s is not None and self.clock() - self.started >= self.policy.budget_s
        )

    def _run(self, side: Side, number: int | None) -> None:
        trial = self.measure(side)
        steps_ns = pace(trial.step_ns) if trial.step_ns else None
        run = Measured(side=side, round=number, trial=trial, pace_ns=steps_ns)
        self.runs.append(run)
        if self.told is not None:
            self.told(run, self.interval)
        self._judge(side, trial)

    def _judge(self, side: Side, trial: Trial) -> None:
        """Whether the run is fit to be evidence."""
        if not trial.is_good and trial.is_timed_out and self._is_all_spent():
            raise SpentError(
                f"the budget ended in the midst of a run of the {side}{_unseen(trial)}"
            )
        if not trial.is_good:
            raise _StopError([_failed(side, trial)], trial.tail)
        loss = self._loss()
        if loss is not None and loss.verdict == LOSS_NOT_FINITE:
            # No further run makes it finite; whether it grows is seen with the evidence, by more
            # runs than one.
            raise _DivergesError(loss.because)
        lacking = untaken(trial)
        if lacking:
            raise _StopError(lacking)
        refused = [difference for difference in self._differences() if not difference.is_allowed]
        if refused:
            raise _StopError([refusal_words(difference) for difference in causes(refused)])
        if self.policy.per_sample and not trial.setup.samples:
            why = (
                f"the batch size of the {side} is not known, so that no time per sample can be told"
            )
            raise _StopError([f"{why}: no DataLoader with a batch size fed its steps"])

    def _differences(self) -> tuple[Difference, ...]:
        setups = {
            side: [run.trial.setup for run in self.runs if run.side == side]
            for side in (BASELINE, CANDIDATE)
        }
        return differences(
            setups[BASELINE], setups[CANDIDATE], self.policy.allowed | self._implied()
        )

    def _implied(self) -> frozenset[str]:
        """Worker processes draw random numbers of their own: with another number of them, augmented
        data is other data."""
        counts = {run.trial.change.knobs.get("num_workers") for run in self.runs}
        return frozenset({"data"}) if len(counts) > 1 else frozenset()

    def _counted(self, side: Side | None = None) -> list[Measured]:
        return [run for run in self.runs if run.round is not None and side in (None, run.side)]

    def _pairs(self, time_of: Callable[[Measured], float]) -> list[float]:
        """The logarithm of baseline over candidate, for each two neighbours; a round not ended
        gives none."""
        counted = self._counted()[: self.num_rounds * RUNS_A_ROUND]
        out = []
        for one, two in zip(counted[::2], counted[1::2], strict=True):
            first, second = (one, two) if one.side == BASELINE else (two, one)
            out.append(math.log(time_of(first)) - math.log(time_of(second)))
        return out

    def _least_variance(self) -> float:
        """What the steps of a pair of runs alone make its logarithm vary by."""
        for run in self._counted()[len(self.variances) :]:
            self.variances.append(pace_variance(run.trial.step_ns, seed=len(self.variances)))
        return 2 * statistics.fmean(self.variances)

    def _time(self, run: Measured) -> float:
        assert run.pace_ns is not None, "a good trial has steps"
        return (
            run.pace_ns / (run.trial.setup.samples or 1.0)
            if self.policy.per_sample
            else run.pace_ns
        )

    def _summary(self, side: Side) -> SideSummary:
        runs = [run for run in self._counted(side) if run.pace_ns is not None]
        logs = [math.log((self._mean if self.is_by_mean else self._time)(run)) for run in runs]
        means = [self._mean(run) for run in runs]
        return SideSummary(
            num_runs=len(runs),
            step_ns=math.exp(statistics.fmean(logs)) if logs else None,
            run_spread=statistics.stdev(logs) if len(logs) > 1 else None,
            mean_ns=statistics.fmean(means) if means else None,
        )

    def _because(self) -> str:
        interval, policy = self.interval, self.policy
        if self.doubt is not None:
            return self.doubt
        assert interval is not None
        if self.is_by_mean:
            usual = math.exp(statistics.fmean(self._pairs(self._time)))
            whole = "with every step counted the whole interval lies above 1"
            if math.log(usual) > LATE_SHARE * math.log(interval.value):
                return (
                    f"{whole}; usual steps alone give {usual:.2f}x, which by themselves they do "
                    "not prove"
                )
            like = "take as long" if abs(usual - 1) < AS_LONG else f"alone give {usual:.2f}x"
            return f"usual steps {like}; {whole}: it is the rare long ones"
        if self.verdict == PROVEN:
            return (
                f"the whole interval lies above 1, and the gain above {_percent(policy.threshold)}"
            )
        if self.verdict == WORSE:
            return "the whole interval lies below 1"
        if self.verdict == NO_GAIN and interval.low > 1:
            return (
                f"it is faster by less than {_percent(policy.threshold)}, which is no gain in "
                "practice"
            )
        if self.verdict == NO_GAIN:
            return f"a gain of more than {_percent(max(interval.high - 1, 0))} is ruled out"
        spent = "the rounds" if self.num_rounds >= policy.max_rounds else "the budget"
        if half_width(interval) > 1:
            return f"{spent} ended with too few runs, or runs too unlike, to tell anything"
        return (
            f"{spent} ended with the interval {half_width(interval):.1%} wide either way, around "
            f"{interval.value:.3f}"
        )

    def _notes(self, found: Sequence[Difference]) -> tuple[str, ...]:
        notes = [
            (
                f"{one.words} differs, as allowed: {one.baseline} for the baseline, "
                f"{one.candidate} "
                "for the candidate"
            )
            for one in found
            if one.is_allowed
        ]
        setups = [run.trial.setup for run in self.runs if run.side == BASELINE]
        notes += [
            f"{words} differs between runs of the baseline itself: the sides cannot be held to it"
            for words in loose_terms(setups)
        ]
        notes += partly_taken(
            self.runs[-1].trial
            if not self._counted(CANDIDATE)
            else self._counted(CANDIDATE)[-1].trial
        )
        fewest = min((len(run.trial.step_ns) for run in self._counted()), default=0)
        if self._counted() and fewest < FEW_STEPS:
            few = "one step" if fewest == 1 else f"{fewest} steps"
            is_short = any(not run.trial.is_cut for run in self._counted())
            more = (
                "the job ends by itself, and a longer one makes"
                if is_short
                else "more (--steps) make"
            )
            notes.append(f"a run timed as few as {few}: {more} each run surer")
        notes += self._means_note()
        loss = self._loss()
        if loss is not None and loss.verdict == LOSS_UNSEEN:
            notes.append(loss.because)
        return (*notes, *dict.fromkeys(note for run in self.runs for note in run.trial.notes))

    def _refused_notes(self) -> tuple[str, ...]:
        """What the run said that ended it; a setting's own reason stands in the refusal."""
        last = self.runs[-1].trial
        return tuple(
            note for note in last.notes if note.partition(": ")[0] not in last.change.knobs
        )

    def _means_note(self) -> list[str]:
        """Where the mean of all steps tells another story than the pace, rare long steps are
        why."""
        before, after = self._summary(BASELINE).mean_ns, self._summary(CANDIDATE).mean_ns
        if before is None or after is None or self.interval is None:
            return []
        whole = before / after
        if self.interval.low / 1.02 <= whole <= self.interval.high * 1.02:
            return []
        return [
            (
                "with the rare long steps that the pace leaves out, the ratio of mean step times "
                "is "
                f"{whole:.3f}"
            )
        ]


def _percent(share: float) -> str:
    return f"{share * 100:.1f}\u00a0%"


def _unseen(trial: Trial) -> str:
    return (
        ""
        if trial.step_ns or trial.setup.world_size
        else ", and no step of a PyTorch optimizer was seen"
    )


def _failed(side: Side, trial: Trial) -> str:
    if trial.is_out_of_memory:
        how = "ran out of memory"
    elif trial.is_timed_out:
        how = f"did not end in time ({trial.wall_s:.0f} s){_unseen(trial)}"
    elif trial.exit_code:
        num = len(trial.step_ns)
        after = f" after {num} timed step{'s' if num > 1 else ''}" if num else ""
        how = f"failed with exit code {trial.exit_code}{after}"
    else:
        how = NO_STEPS
    return f"the {side} {how} (its output is kept in {trial.folder})"
