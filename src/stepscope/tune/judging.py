"""What one trial says of its setting: its time, or why it has none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from stepscope.core.experiments.trials import Setup, Trial
from stepscope.experiments.bootstrap import log_mean_variance, trimmed_mean
from stepscope.experiments.trials.trial import last_line
from stepscope.experiments.verify.loss_check import check_loss
from stepscope.experiments.verify.reasons import NO_STEPS, memory_words
from stepscope.tune.batch import FREE_BATCH, is_per_sample, samples_of
from stepscope.tune.knob_space import Settings, Space
from stepscope.tune.policy import TunePolicy
from stepscope.tune.shapes.tuning import (
    FAILED,
    MEASURED,
    OUT_OF_MEMORY,
    PRUNED,
    SAMPLE,
    STEP,
    UNEQUAL,
    Tried,
)

MIN_STEPS = 3
"""Timed steps that a trial must have to count."""
MIN_STEPS_TO_PRUNE = 8
"""Timed steps before a trial may be ended for being slow."""
SAMPLES_APART = 0.02
"""Share by which the samples a step may differ: the last batch of an epoch is often smaller."""


class TrialJudge(Struct, frozen=True, kw_only=True):
    """Judges trials of a search by its baseline's."""

    space: Space
    policy: TunePolicy
    host: str
    baseline: Trial | None
    """None before it was measured."""

    @property
    def per(self) -> str:
        return SAMPLE if is_per_sample(self.space, self.policy.free) else STEP

    @property
    def baseline_setup(self) -> Setup:
        return Setup() if self.baseline is None else self.baseline.setup

    def samples(self, settings: Settings, setup: Setup | None = None) -> float | None:
        """Number that a step's time is divided by; None where it is not known."""
        if self.per == STEP:
            return 1.0
        return samples_of(settings, setup, self.baseline_setup, self.policy.effective_batch)

    def tried(
        self,
        trial: Trial,
        settings: Settings,
        *,
        number: int,
        origin: str,
        pruned: str | None = None,
    ) -> Tried:
        """What the trial came to; `pruned` says why it was ended early, if it was."""
        steps = trial.step_ns
        step_ns = trimmed_mean(steps) if len(steps) >= MIN_STEPS else None
        samples = self.samples(settings, trial.setup)
        state, why = self._state(trial, samples, pruned)
        ns = None
        if step_ns is not None and samples and state in (MEASURED, PRUNED):
            ns = step_ns / samples
        not_taken = [name for name, count in trial.taken.items() if count == 0]
        return Tried(
            number=number,
            settings=dict(settings),
            state=state,
            ms=None if ns is None else ns / 1e6,
            step_ms=None if step_ns is None else step_ns / 1e6,
            num_steps=len(steps),
            wall_s=trial.wall_s,
            why=why,
            origin=origin,
            host=self.host,
            # A job that ended before its first step had no time to take anything.
            not_taken=tuple(not_taken) if steps else (),
        )

    def _state(self, trial: Trial, samples: float | None, pruned: str | None) -> tuple[str, str]:
        if trial.is_out_of_memory:
            said = "" if trial.is_killed else last_line(trial.tail)
            return OUT_OF_MEMORY, said or f"it {memory_words(trial)}"
        if pruned:
            return PRUNED, pruned
        if trial.is_timed_out and len(trial.step_ns) < MIN_STEPS:
            return FAILED, f"it had not timed {MIN_STEPS} steps after {trial.wall_s:.0f} s"
        if trial.exit_code == 0 and not trial.step_ns:
            return FAILED, f"it {NO_STEPS}"
        if not (trial.is_good or trial.is_timed_out):
            last = last_line(trial.tail)
            return FAILED, f"exit code {trial.exit_code}" + (f": {last}" if last else "")
        if len(trial.step_ns) < MIN_STEPS:
            return FAILED, f"only {len(trial.step_ns)} steps were timed"
        if samples is None:
            why = "how many samples a step takes was not seen. Say it with --effective-batch N"
            return UNEQUAL, why
        if self.baseline is not None:
            loss = check_loss([self.baseline], [trial])
            if loss.is_fault:
                return FAILED, loss.because.replace("the candidate's", "its")
        samples, expected = trial.setup.samples, self.baseline_setup.samples
        if samples is None or expected is None or FREE_BATCH in self.policy.free:
            return MEASURED, ""
        if abs(samples - expected) <= SAMPLES_APART * expected:
            return MEASURED, ""
        why = f"{samples:g} samples a step where the baseline has {expected:g}"
        return UNEQUAL, f"{why}. Pin it, or say --free batch"


class Watcher:
    """Hears a trial's steps while it runs, and ends it when it is clearly too slow."""

    def __init__(self, hear: Callable[[float, int], bool], best_ns: float, samples: float) -> None:
        self._hear = hear
        self._best_ns = best_ns
        self._samples = samples
        self.words: str | None = None
        """Why the trial was ended, if it was."""

    def __call__(self, steps: Sequence[int]) -> bool:
        if len(steps) < MIN_STEPS_TO_PRUNE:
            return True
        step_ns = trimmed_mean(steps)
        low = step_ns * math.exp(-2 * math.sqrt(log_mean_variance(steps, draws=50)))
        if self._hear(low / self._samples, len(steps)):
            return True
        ratio = step_ns / self._samples / self._best_ns
        self.words = f"after {len(steps)} steps {ratio:.2f}x as long as the best"
        return False
