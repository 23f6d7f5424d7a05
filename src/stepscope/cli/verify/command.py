"""Prove one change: both sides run for real until it is settled.

Give two commands, or one command and what to apply to it:
  stepscope verify --baseline "python train.py" --candidate "python train_new.py"
  stepscope verify --apply serial-loader -- python train.py
  stepscope verify --apply num_workers=4 -- python train.py
The runs take turns (ABBA, then BAAB), no profiler is attached, and each ends after a few steps. The
unit of evidence is the run. Exit code 0 when a gain is proven, 1 when it is not, 2 when the two
cannot be compared.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.printing import print_answer, say
from stepscope.cli.run import keep_result, new_folder
from stepscope.cli.verify.options import (
    MAX_STEPS,
    Measuring,
    Options,
    Proof,
    Sides,
    proof_of,
    read_sides,
)
from stepscope.errors import UsageError
from stepscope.process.signals import ended_as_by_hand

if TYPE_CHECKING:
    from stepscope.core.experiments.experiment import Interval, Measured, Prediction, Side, Verified
    from stepscope.core.experiments.trials import Change, Trial
    from stepscope.experiments.budget import Budget
    from stepscope.experiments.verify.schedule import VerifyPolicy

__all__ = ["Options", "run"]
RESULT_FILE = "verification.json"
PROVEN_CODE, UNPROVEN_CODE, REFUSED_CODE = 0, 1, 2
MIN_LIMIT_S, LIMIT_TIMES = 120.0, 10.0
"""Limits for a run that nobody gave one: so many seconds at least, and so many times the longest
before it."""


def run(options: Options) -> int:
    from msgspec.structs import replace

    from stepscope.cli.verify.check import numbers_notes
    from stepscope.cli.verify.prediction import read_prediction
    from stepscope.core.codec import encode
    from stepscope.experiments.budget import Budget, for_runs
    from stepscope.experiments.verify.schedule import steps_before
    from stepscope.report.verify.view import verified_document

    budget_s = options.measuring.budget_s
    budget = Budget(None if budget_s is None else for_runs(budget_s), time.monotonic)
    sides, proof = read_sides(options.sides), proof_of(options)
    folder = new_folder(options.out)
    prediction = read_prediction(options.judged, sides.codes, sides.changes["candidate"].knobs)
    check_commands(sides)
    measuring = proof.measuring
    steps = steps_before(measuring.warm_up_steps, proof.step_s) + measuring.most_steps
    if not refused_beforehand(sides):
        for words in applied_words(sides.codes, sides.commands["baseline"]):
            say(words)
        say(
            f"each run ends after {steps} steps; one that makes none goes on to its end (--timeout)"
        )
    with ended_as_by_hand():
        verified = prove(sides, proof, folder, prediction, budget)
    notes = [*verified.notes, *applied_words(sides.codes, sides.commands["baseline"])]
    if verified.is_gain and not proof.allows_numerics:
        notes += numbers_notes(verified)
    verified = replace(verified, notes=tuple(notes))
    if verified.runs:
        keep_result(folder / RESULT_FILE, encode(verified))
    print_answer(verified, options.style, encode, verified_document)
    return exit_code(verified, proof.allows_numerics)


def exit_code(verified: Verified, may_change_numerics: bool) -> int:
    from stepscope.core.experiments.experiment import REFUSED
    from stepscope.experiments.verify.numerics_check import DIFFERS

    if verified.verdict == REFUSED:
        return REFUSED_CODE
    differs = (
        verified.check is not None and verified.check.verdict == DIFFERS and not may_change_numerics
    )
    return PROVEN_CODE if verified.is_gain and not differs else UNPROVEN_CODE


def check_commands(sides: Sides) -> None:
    """Both can be run: a candidate that cannot is reported before the baseline has been run for
    nothing."""
    for side, command in sides.commands.items():
        if shutil.which(command[0]) is None:
            raise UsageError(
                f"{command[0]}, with which the {side} begins, is not a command that can be run "
                "here. Is it spelled right, and on PATH?"
            )


def applied_words(codes: Sequence[str], command: Sequence[str] = ()) -> list[str]:
    """Words for the values that a finding's code stands for here, and why these: what the last run
    of this command proposed, else what is known of the machine alone."""
    from stepscope.cli.verify.recorded import recorded_fixes
    from stepscope.core.experiments.trials import Change
    from stepscope.experiments.fix_values import fix_reasons
    from stepscope.report.verify.view import change_words

    words = []
    for code in codes:
        settings, run = recorded_fixes(code, command)
        for name, value in (settings or {}).items():
            why = f"as {run} proposes" if run else fix_reasons(code)[name]
            words.append(f"--apply {code} tries {change_words(Change(knobs={name: value}))}: {why}")
    return words


def policy_of(proof: Proof) -> VerifyPolicy:
    from stepscope.experiments.verify.schedule import VerifyPolicy

    return VerifyPolicy(
        max_rounds=proof.measuring.max_rounds,
        precision=proof.measuring.precision,
        threshold=proof.measuring.threshold,
        allowed=proof.allowed,
        per_sample="batch-size" in proof.allowed,
    )


class Runner:
    """Runs a side's command in a numbered folder of its own."""

    def __init__(
        self,
        sides: Sides,
        folder: Path,
        measuring: Measuring,
        budget: Budget,
        step_s: float | None = None,
    ) -> None:
        from stepscope.experiments.verify.schedule import rehearsed_steps, steps_before

        self._sides, self._folder, self._measuring, self._budget = sides, folder, measuring, budget
        self._num_steps = measuring.steps or rehearsed_steps(step_s, MAX_STEPS)
        self._warm_up_steps = steps_before(measuring.warm_up_steps, step_s)
        self._count = 0
        self._longest_s = 0.0

    def _limit_s(self) -> float | None:
        """What was given, else many times what the longest run took: one that hangs, as workers
        may, must end. And never more than what is left of the budget."""
        limits = [max(MIN_LIMIT_S, LIMIT_TIMES * self._longest_s)] if self._longest_s else []
        if self._measuring.timeout_s is not None:
            limits = [self._measuring.timeout_s]
        left = self._budget.left_s
        return min([*limits, *([] if left is None else [left])], default=None)

    def shorten(self, num_steps: int) -> None:
        """Fewer timed steps from now on, where nobody said how many."""
        if self._measuring.steps is None:
            self._num_steps = min(self._num_steps, num_steps)

    def measure(self, side: Side, *, with_numerics: bool = False) -> Trial:
        from stepscope.experiments.trials.trial import run_trial

        if self._count:
            # The first is begun however little there is: it shows what the job does.
            self._budget.ask(f"another run of the {side}")
        number, self._count = self._count, self._count + 1
        trial = run_trial(
            self._sides.commands[side],
            self._folder / f"{number:02d}-{side}",
            self._sides.changes[side],
            max_steps=self._num_steps,
            warm_up_steps=self._warm_up_steps,
            timeout_s=self._limit_s(),
            with_numerics=with_numerics,
        )
        self._longest_s = max(self._longest_s, trial.wall_s)
        return trial


def prove(
    sides: Sides, proof: Proof, folder: Path, prediction: Prediction | None, budget: Budget
) -> Verified:
    """Runs both sides in `folder` until it is settled, or the budget is spent; what they compute
    too, where that is asked."""
    from msgspec.structs import replace

    from stepscope.cli.verify.check import check_of
    from stepscope.experiments.budget import CHECK_RUNS
    from stepscope.experiments.verify.experiment import hold, refused, verify, with_sides
    from stepscope.protocol.secrets import masked_words

    words: dict[Side, str] = {
        side: shlex.join(masked_words(command)) for side, command in sides.commands.items()
    }
    changes: dict[Side, Change] = {
        side: replace(change, environment=_masked(change.environment))
        for side, change in sides.changes.items()
    }
    unable = refused_beforehand(sides)
    if unable:
        return with_sides(refused(unable), words, changes)
    runner = Runner(sides, folder, proof.measuring, budget, proof.step_s)
    progress = Progress(proof.measuring.max_rounds, is_limited=budget.left_s is not None)
    before, stopped = checked_runs(runner, progress) if proof.with_check else ([], None)
    # The budget is for all runs together, those of --check too.
    policy = replace(policy_of(proof), budget_s=budget.left_s)
    measure = runner.measure if stopped is None else _stopped(stopped)
    verified = verify(
        measure,
        policy,
        clock=budget.clock,
        on_run=progress.on_run,
        before=before,
        shorten=runner.shorten,
    )
    is_checked = len(before) == CHECK_RUNS and not verified.refusals
    return replace(
        with_sides(verified, words, changes),
        check=check_of(before, proof.tolerance) if is_checked else None,
        prediction=None if prediction is None else hold(prediction, verified.speedup),
        folder=str(folder),
    )


def refused_beforehand(sides: Sides) -> tuple[str, ...]:
    """Why no run would show anything: of all that the candidate has, nothing can take effect on
    this machine."""
    from stepscope.experiments.preflight import unable, unable_words

    before, after = sides.changes["baseline"], sides.changes["candidate"]
    new = [
        name
        for name in after.knobs
        if name not in before.knobs or before.knobs[name] != after.knobs[name]
    ]
    is_other = (
        sides.commands["baseline"] != sides.commands["candidate"]
        or before.environment != after.environment
    )
    reasons = unable(new, sides.commands["candidate"], after.environment)
    if not new or is_other or set(reasons) != set(new):
        return ()
    return unable_words(reasons)


def _masked(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables as they may be written down, as a command's options are."""
    from stepscope.protocol.secrets import MASK, masked_words

    words = {name: f"--{name}={value}" for name, value in environment.items()}
    return {
        name: value if masked_words([words[name]]) == [words[name]] else MASK
        for name, value in environment.items()
    }


def _stopped(why: BaseException) -> Callable[[Side], Trial]:
    """Measures nothing any more."""

    def measure(_side: Side) -> Trial:
        raise why

    return measure


def checked_runs(runner: Runner, progress: Progress) -> tuple[list[Measured], BaseException | None]:
    """The baseline twice and the candidate once, with what they compute written down; up to the
    first that fails, or to where it was interrupted or the budget ended, and which of the two it
    was."""
    from stepscope.core.experiments.experiment import BASELINE, CANDIDATE
    from stepscope.core.timings import followed
    from stepscope.experiments.budget import CHECK_RUNS, SpentError
    from stepscope.experiments.verify.evidence import measured

    runs: list[Measured] = []
    with followed("runs that are checked", CHECK_RUNS, is_long=True) as advance:
        for side in (BASELINE, BASELINE, CANDIDATE):
            try:
                trial = runner.measure(side, with_numerics=True)
            except (KeyboardInterrupt, SpentError) as stopped:
                return runs, stopped
            run = measured(side, trial)
            runs.append(run)
            advance(len(runs))
            progress.on_run(run, None)
            if not trial.is_good:
                break
    return runs, None


WORTH_TELLING_S = 120.0
"""Seconds from which the time that all runs of an experiment may take is told beforehand."""


class Progress:
    """A line on stderr for each run."""

    def __init__(self, max_rounds: int, *, is_limited: bool) -> None:
        self._max_rounds, self._is_told = max_rounds, is_limited

    def on_run(self, run: Measured, interval: Interval | None) -> None:
        from stepscope.report.words import NBSP, short_time

        when = "before it counts"
        if run.round is not None:
            when = f"round {run.round + 1} of at most {self._max_rounds}"
        num = len(run.trial.step_ns)
        steps = {0: "no step was timed", 1: "1 step"}.get(num, f"{num} steps")
        took = "" if run.step_ns is None else f", {short_time(run.step_ns)} each"
        so_far = ""
        if interval is not None and interval.is_bounded:
            so_far = f" (so far {interval.lowest:.2f} to {interval.highest:.2f})"
        say(f"{when}: {run.side}, {steps}{took}{so_far}".replace(NBSP, " "))
        if not self._is_told:
            self._is_told = True
            self._tell_most(run.trial.wall_s)

    def _tell_most(self, run_s: float) -> None:
        """How long it may take, once the first run shows how long one does."""
        from stepscope.experiments.budget import CHECK_RUNS
        from stepscope.experiments.verify.schedule import order

        most_s = run_s * (CHECK_RUNS + len(order(0)) * self._max_rounds)
        if most_s >= WORTH_TELLING_S:
            say(
                f"a run takes {run_s:.0f} s; until it is settled, {most_s / 60:.0f} min at most "
                "(--budget SECONDS for less)"
            )
