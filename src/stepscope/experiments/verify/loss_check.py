"""Whether a candidate still trains: its loss in every run, compared with the baseline's.

It is a fault where the loss is NaN or infinite and no run of the baseline is, where it ends so
whatever the baseline does, and where it grows from its own start, and further than the baseline's
runs differ among themselves. Infinite for a few steps on both sides (a gradient scaler that looks
for its scale) is none. What only learns more slowly is no fault here: a few dozen steps do not tell
that from another seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.experiments.experiment import (
    LOSS_BASELINE,
    LOSS_GROWS,
    LOSS_NOT_FINITE,
    LOSS_SOUND,
    LOSS_UNSEEN,
    LossCheck,
    SideLoss,
)
from stepscope.core.experiments.trials import StepLoss, Trial

LAST_SHARE, LAST_STEPS = 8, 5
"""One step in so many, and so many at least, whose median is what a run comes to: two steps that
jump do not move it."""
NOISE_TIMES = 3.0
"""A rise within so many times the noise is none."""
MIN_RISE = 0.05
"""Share of the loss that counts as noise at least: where the baseline repeats itself to the bit,
rounding alone makes the candidate's differ."""
OWN_RISE = 3.0
"""Where the baseline's own loss grows, the candidate's must grow so many times as much."""
MIN_RUNS = 2
"""Runs of the baseline before a growth is compared with the candidate: one run does not show how
far runs differ."""


@dataclass(frozen=True, slots=True)
class _Run:
    losses: tuple[StepLoss, ...]

    @property
    def not_finite(self) -> list[StepLoss]:
        return [loss for loss in self.losses if not math.isfinite(loss.loss)]

    @property
    def ends_not_finite(self) -> bool:
        return not math.isfinite(self.losses[-1].loss)

    def first(self) -> float | None:
        """Loss of the first step alone: it is before any update, and an update that is too large
        shows in the second."""
        return _median([loss.loss for loss in self.losses[:1]])

    def tail(self, horizon: int) -> list[float]:
        """The last losses up to this step."""
        values = [loss.loss for loss in self.losses if loss.step <= horizon]
        return values[-max(LAST_STEPS, len(values) // LAST_SHARE) :]

    def last(self, horizon: int) -> float | None:
        return _median(self.tail(horizon))


def check_loss(baseline: Sequence[Trial], candidate: Sequence[Trial]) -> LossCheck:
    """The candidate's runs against the baseline's; runs that show no loss say nothing."""
    before = [_Run(trial.losses) for trial in baseline if trial.losses]
    after = [_Run(trial.losses) for trial in candidate if trial.losses]
    if not before or not after:
        missing = " and ".join(
            name for name, runs in (("baseline", before), ("candidate", after)) if not runs
        )
        why = f"no loss of the {missing} was seen: no backward pass started from one number"
        return LossCheck(verdict=LOSS_UNSEEN, because=why)
    horizon = min(run.losses[-1].step for run in (*before, *after))
    sides = _side(before, horizon), _side(after, horizon)
    verdict, because = _verdict(before, after, sides, horizon)
    return LossCheck(verdict=verdict, because=because, baseline=sides[0], candidate=sides[1])


def _verdict(
    before: Sequence[_Run], after: Sequence[_Run], sides: tuple[SideLoss, SideLoss], horizon: int
) -> tuple[str, str]:
    first, second = sides
    if second.num_not_finite and not first.num_not_finite:
        beyond = "" if (second.not_finite_step or 0) <= horizon else f", in {horizon + 1} steps"
        why = f"the candidate's loss {_not_finite_words(after)} while the baseline's"
        return LOSS_NOT_FINITE, f"{why} {_course(first)}{beyond}"
    if any(run.ends_not_finite for run in after):
        also = f"; the baseline's {_not_finite_words(before)}" if first.num_not_finite else ""
        return LOSS_NOT_FINITE, f"the candidate's loss {_not_finite_words(after)}{also}"
    if first.num_not_finite:
        also = _not_finite_words(after) if second.num_not_finite else _course(second)
        why = f"the baseline's own loss {_not_finite_words(before)}"
        return LOSS_BASELINE, f"{why}; the candidate's {also}"
    if len(before) >= MIN_RUNS and _is_growing(before, after, horizon):
        why = f"the candidate's loss {_course(second)} while the baseline's {_course(first)}"
        return LOSS_GROWS, why
    return LOSS_SOUND, f"the candidate's loss {_course(second)}, the baseline's {_course(first)}"


def _is_growing(before: Sequence[_Run], after: Sequence[_Run], horizon: int) -> bool:
    """Whether the candidate's loss ends above where it began and above where every run of the
    baseline ends, both by more than the noise: how far the baseline's runs end apart, how far steps
    within them do, and a share of the loss."""
    pairs = [(run.first(), run.last(horizon)) for run in before]
    finite = [(first, last) for first, last in pairs if first is not None and last is not None]
    start = _median([run.first() for run in after])
    end = _median([run.last(horizon) for run in after])
    if not finite or start is None or end is None:
        return False
    ends = [last for _, last in finite]
    within = statistics.median([_spread(run.tail(horizon)) for run in before])
    share = MIN_RISE * max(abs(start), abs(statistics.median(ends)))
    noise = NOISE_TIMES * max(max(ends) - min(ends), within, share)
    own = max(0.0, *(last - first for first, last in finite))
    return end - start > max(noise, OWN_RISE * own) and end - max(ends) > noise


def _side(runs: Sequence[_Run], horizon: int) -> SideLoss:
    faults = [run.not_finite[0].step for run in runs if run.not_finite]
    return SideLoss(
        num_runs=len(runs),
        first=_median([run.first() for run in runs]),
        last=_median([run.last(horizon) for run in runs]),
        num_not_finite=len(faults),
        not_finite_step=min(faults, default=None),
    )


def _course(side: SideLoss) -> str:
    """`falls from 3.1 to 2.4`."""
    if side.first is None or side.last is None:
        return "is not known"
    if f"{side.first:.3g}" == f"{side.last:.3g}":
        return f"stays at {side.last:.3g}"
    how = "falls" if side.last < side.first else "grows"
    return f"{how} from {side.first:.3g} to {side.last:.3g}"


def _not_finite_words(runs: Sequence[_Run]) -> str:
    """`is NaN from step 12 on`, of the run in which it is so first."""
    faulty = [run for run in runs if run.not_finite]
    run = min(faulty, key=lambda run: run.not_finite[0].step)
    fault = run.not_finite[0]
    what = "NaN" if math.isnan(fault.loss) else "infinite"
    later = [loss for loss in run.losses if loss.step >= fault.step]
    if len(run.not_finite) == len(later):
        words = f"is {what} from step {fault.step} on"
    else:
        words = (
            f"is {what} at step {fault.step}, and not finite at {len(run.not_finite)} of "
            f"{len(run.losses)} steps"
        )
    return words if len(faulty) == len(runs) else f"{words} (in {len(faulty)} of {len(runs)} runs)"


def _median(values: Sequence[float | None]) -> float | None:
    """None where there is none, or one is not finite."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite or len(finite) < len(values):
        return None
    return statistics.median(finite)


def _spread(values: Sequence[float]) -> float:
    """How far the middle half of them lies apart: one step that jumps is no noise."""
    if len(values) < 4:
        return max(values) - min(values)
    quarters = statistics.quantiles(values, n=4)
    return quarters[2] - quarters[0]
