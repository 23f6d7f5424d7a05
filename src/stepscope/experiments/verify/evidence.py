"""What the runs of an experiment say together: times a side, pairs of neighbours, how the two
differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepscope.core.experiments.experiment import (
    BASELINE,
    CANDIDATE,
    Difference,
    LossCheck,
    Measured,
    Side,
    SideSummary,
    SoFar,
    SoFarSides,
)
from stepscope.core.experiments.trials import Trial
from stepscope.experiments.bootstrap import log_mean_variance, trimmed_mean
from stepscope.experiments.compare.comparability import differences
from stepscope.experiments.verify.loss_check import check_loss
from stepscope.experiments.verify.schedule import RUNS_A_ROUND, VerifyPolicy

MIN_STEPS, MIN_TIMED_S = 9, 1.0
"""Timed in a run however large the gain is: a third of them is still three."""
OPEN_SHARE = 1 / 8
"""Share of the gain's logarithm that its standard error may be."""
TimeOf = Callable[[Measured], float]


def measured(side: Side, trial: Trial, round_number: int | None = None) -> Measured:
    """A run of a side; without a round it does not count."""
    step_ns = trimmed_mean(trial.step_ns) if trial.step_ns else None
    return Measured(side=side, round=round_number, trial=trial, step_ns=step_ns)


@dataclass(slots=True)
class Evidence:
    """The runs until now."""

    policy: VerifyPolicy
    runs: list[Measured] = field(default_factory=list)
    num_rounds: int = 0
    """Whole ones."""
    _variances: list[float] = field(default_factory=list)
    """Variance of each counted run's pace, by its steps alone."""

    def counted(self, side: Side | None = None) -> list[Measured]:
        return [run for run in self.runs if run.round is not None and side in (None, run.side)]

    def loss(self) -> LossCheck | None:
        """Check of all runs, those that do not count too; None before both sides were run."""
        baseline, candidate = self._trials(BASELINE), self._trials(CANDIDATE)
        return check_loss(baseline, candidate) if baseline and candidate else None

    def differences(self) -> tuple[Difference, ...]:
        """What is not the same on both sides."""
        return differences(
            [trial.setup for trial in self._trials(BASELINE)],
            [trial.setup for trial in self._trials(CANDIDATE)],
            self.policy.allowed | self._implied(),
        )

    def _trials(self, side: Side) -> list[Trial]:
        return [run.trial for run in self.runs if run.side == side]

    def _implied(self) -> frozenset[str]:
        """Worker processes draw random numbers of their own: with another number of them, augmented
        data is other data."""
        counts = {run.trial.change.knobs.get("num_workers") for run in self.runs}
        return frozenset({"data"}) if len(counts) > 1 else frozenset()

    def run_s(self) -> float:
        """What a run takes: the mean of those that count, else of all."""
        return statistics.fmean(run.trial.wall_s for run in self.counted() or self.runs)

    def has_odd_steps(self) -> bool:
        """Whether steps were seen that save or evaluate: what they take is a part of the job's
        time."""
        return any(run.trial.irregular_step_ns for run in self.counted())

    def enough_steps(self) -> int | None:
        """Timed steps of a run, by which the steps alone leave a pair's ratio open by an eighth of
        the rehearsed gain at most: Student's interval over the first four pairs is then about a
        half of it either way. None where nothing tells: steps that save or evaluate are to be seen
        as often as before."""
        first, second = (
            next((run for run in reversed(self.runs) if run.side == side and run.step_ns), None)
            for side in (BASELINE, CANDIDATE)
        )
        if (
            first is None
            or second is None
            or first.trial.irregular_step_ns
            or second.trial.irregular_step_ns
        ):
            return None
        gain = abs(math.log(self.time(first) / self.time(second)))
        pair = [run.trial.step_ns for run in (first, second)]
        variance = math.fsum(len(step_ns) * log_mean_variance(step_ns) for step_ns in pair)
        least = max(MIN_STEPS, math.ceil(MIN_TIMED_S * 1e9 / min(map(statistics.fmean, pair))))
        return max(least, math.ceil(variance / (OPEN_SHARE * max(gain, 1e-3)) ** 2))

    def pairs(self, time_of: TimeOf) -> list[float]:
        """The logarithm of baseline over candidate, for each two neighbours; a round not ended
        gives none."""
        counted = self.counted()[: self.num_rounds * RUNS_A_ROUND]
        ratios = []
        for first, second in zip(counted[::2], counted[1::2], strict=True):
            ratio = math.log(time_of(first)) - math.log(time_of(second))
            ratios.append(ratio if first.side == BASELINE else -ratio)
        return ratios

    def ratio(self, time_of: TimeOf) -> float:
        """Baseline over candidate: the geometric mean over the pairs."""
        return math.exp(statistics.fmean(self.pairs(time_of)))

    def least_variance(self) -> float:
        """What the steps of a pair of runs alone make its logarithm vary by."""
        for run in self.counted()[len(self._variances) :]:
            self._variances.append(log_mean_variance(run.trial.step_ns, seed=len(self._variances)))
        return 2 * statistics.fmean(self._variances)

    def time(self, run: Measured) -> float:
        """A usual step, or a sample of it where the batch size may differ."""
        assert run.step_ns is not None, "a good trial has steps"
        if self.policy.per_sample:
            return run.step_ns / (run.trial.setup.samples or 1.0)
        return run.step_ns

    def mean(self, run: Measured) -> float:
        """Mean of every step, those that save or evaluate too."""
        return self._scaled(run, statistics.fmean(run.trial.step_ns) + run.trial.irregular_step_ns)

    def early(self, run: Measured) -> float:
        """A usual step in the first third."""
        steps = run.trial.step_ns
        return self._scaled(run, trimmed_mean(steps[: max(len(steps) // 3, 1)]))

    def late(self, run: Measured) -> float:
        """A usual step in the last third."""
        steps = run.trial.step_ns
        return self._scaled(run, trimmed_mean(steps[-max(len(steps) // 3, 1) :]))

    def _scaled(self, run: Measured, step_ns: float) -> float:
        """Step time in the unit of `time`."""
        return step_ns * self.time(run) / (run.step_ns or 1.0)

    def summary(self, side: Side, *, is_by_mean: bool = False) -> SideSummary:
        runs = [run for run in self.counted(side) if run.step_ns is not None]
        time_of = self.mean if is_by_mean else self.time
        logs = [math.log(time_of(run)) for run in runs]
        means = [self.mean(run) for run in runs]
        return SideSummary(
            num_runs=len(runs),
            ms=math.exp(statistics.fmean(logs)) / 1e6 if logs else None,
            run_spread=statistics.stdev(logs) if len(logs) > 1 else None,
            mean_ms=statistics.fmean(means) / 1e6 if means else None,
        )


def so_far(runs: Sequence[Measured]) -> SoFarSides | None:
    """What was measured of each side, whether it counts or not; None where no step was timed."""
    baseline, candidate = _side_so_far(runs, BASELINE), _side_so_far(runs, CANDIDATE)
    if baseline is None and candidate is None:
        return None
    return SoFarSides(baseline=baseline, candidate=candidate)


def _side_so_far(runs: Sequence[Measured], side: Side) -> SoFar | None:
    timed = [run.trial.step_ns for run in runs if run.side == side and run.trial.step_ns]
    steps = [ns for step_ns in timed for ns in step_ns]
    if not steps:
        return None
    return SoFar(
        num_runs=len(timed), num_steps=len(steps), median_ms=statistics.median(steps) / 1e6
    )
