"""Why an experiment came to its verdict, in sentences, and what else to know."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepscope.core.experiments.experiment import (
    BASELINE,
    CANDIDATE,
    LOSS_UNSEEN,
    NO_GAIN,
    PROVEN,
    WORSE,
    Difference,
    Interval,
    Measured,
    Side,
)
from stepscope.core.experiments.trials import Trial
from stepscope.core.numbers import ms_words
from stepscope.experiments.compare.comparability import loose_terms, partly_taken
from stepscope.experiments.verify.evidence import Evidence, so_far
from stepscope.experiments.verify.schedule import half_width

FEW_STEPS = 5
LATE_SHARE, MIN_LATE = 0.5, 0.05
"""A gain of which the last third of the steps has less than this share, and this much less, was not
there to stay."""
AS_LONG = 0.02
"""Ratios of usual steps this near to 1 count as none."""
NO_STEPS = (
    "ended with no step timed: a step is a call of a PyTorch optimizer's step(), the first few "
    "(--warm-up) do not count, and it made no such calls, or too few"
)


def doubt_of(evidence: Evidence, interval: Interval) -> str | None:
    """Why a faster pace is no gain; None where it is one."""
    whole, late = evidence.ratio(evidence.mean), evidence.ratio(evidence.late)
    if whole < 1 + evidence.policy.threshold:
        return (
            f"the pace is faster, but with every step counted it is {whole:.2f}x: rare long "
            "steps take the gain back"
        )
    gain = math.log(interval.value)
    if math.log(late) < min(LATE_SHARE * gain, gain - MIN_LATE):
        return (
            f"little is left of it in the last third of the timed steps ({late:.2f}x): a stock of "
            "ready batches was used up meanwhile; --warm-up and --steps leave it behind"
        )
    return None


def reason_for(verdict: str | None, interval: Interval, evidence: Evidence) -> str:
    """What in the interval of usual steps gave this verdict."""
    policy = evidence.policy
    if verdict == PROVEN:
        return f"the whole interval lies above 1, and the gain above {_percent(policy.threshold)}"
    if verdict == WORSE:
        return "the whole interval lies below 1"
    if verdict == NO_GAIN and interval.lowest > 1:
        least = _percent(policy.threshold)
        return f"it is faster by less than {least}, which is no gain in practice"
    if verdict == NO_GAIN:
        return f"a gain of more than {_percent(max(interval.highest - 1, 0))} is ruled out"
    spent = "the rounds" if evidence.num_rounds >= policy.max_rounds else "the budget"
    if half_width(interval) > 1:
        return f"{spent} ended with too few runs, or runs too unlike, to tell anything"
    return (
        f"{spent} ended with the interval {half_width(interval):.1%} wide either way, around "
        f"{interval.value:.3f}"
    )


def reason_by_mean(interval: Interval, evidence: Evidence) -> str:
    """Why a gain is proven that lies in rare long steps."""
    usual = evidence.ratio(evidence.time)
    whole = "with every step counted the whole interval lies above 1"
    if math.log(usual) > LATE_SHARE * math.log(interval.value):
        return (
            f"{whole}; usual steps alone give {usual:.2f}x, which by themselves they do not prove"
        )
    like = "take as long" if abs(usual - 1) < AS_LONG else f"alone give {usual:.2f}x"
    return f"usual steps {like}; {whole}: it is the rare long ones"


def so_far_words(runs: Sequence[Measured]) -> str:
    """`until then the baseline took 13.1 ms a step (the median of 40 steps in 2 runs), ...: nothing
    is proven by that`."""
    sides = so_far(runs)
    words = []
    for side in (BASELINE, CANDIDATE):
        summary = None if sides is None else getattr(sides, side)
        if summary is None:
            words.append(f"of the {side} nothing was measured")
        else:
            steps = "one step" if summary.num_steps == 1 else f"{summary.num_steps} steps"
            num = "one run" if summary.num_runs == 1 else f"{summary.num_runs} runs"
            took = ms_words(summary.median_ms * 1e6).replace(" ", "\u00a0")
            words.append(f"the {side} took {took} a step (the median of {steps} in {num})")
    return f"until then {', and '.join(words)}: nothing is proven by that"


def notes_on(
    evidence: Evidence, differences: Sequence[Difference], interval: Interval | None
) -> tuple[str, ...]:
    """What to know besides the verdict."""
    runs, counted = evidence.runs, evidence.counted()
    notes = [
        f"{difference.words} differs, as allowed: {difference.baseline} for the baseline, "
        f"{difference.candidate} for the candidate"
        for difference in differences
        if difference.is_allowed
    ]
    setups = [run.trial.setup for run in runs if run.side == BASELINE]
    notes += [
        f"{words} differs between runs of the baseline itself: the sides cannot be held to it"
        for words in loose_terms(setups)
    ]
    last = (evidence.counted(CANDIDATE) or runs)[-1]
    notes += partly_taken(last.trial)
    notes += _few_steps(counted)
    notes += _means_note(evidence, interval)
    loss = evidence.loss()
    if loss is not None and loss.verdict == LOSS_UNSEEN:
        notes.append(loss.because)
    return (*notes, *dict.fromkeys(note for run in runs for note in run.trial.notes))


def _few_steps(counted: Sequence[Measured]) -> list[str]:
    fewest = min((len(run.trial.step_ns) for run in counted), default=FEW_STEPS)
    if fewest >= FEW_STEPS:
        return []
    few = "one step" if fewest == 1 else f"{fewest} steps"
    more = "more (--steps) make"
    if any(not run.trial.is_cut for run in counted):
        more = "the job ends by itself, and a longer one makes"
    return [f"a run timed as few as {few}: {more} each run surer"]


def _means_note(evidence: Evidence, interval: Interval | None) -> list[str]:
    """Where the mean of all steps differs from the pace, rare long steps are why."""
    before = evidence.summary(BASELINE).mean_ms
    after = evidence.summary(CANDIDATE).mean_ms
    if before is None or after is None or interval is None:
        return []
    whole = before / after
    if interval.lowest / 1.02 <= whole <= interval.highest * 1.02:
        return []
    what = "with the rare long steps that the pace leaves out, the ratio of mean step times is"
    return [f"{what} {whole:.3f}"]


def refused_notes(last: Trial) -> tuple[str, ...]:
    """What the run said that ended it; a setting's own reason stands in the refusal."""
    return tuple(note for note in last.notes if note.partition(": ")[0] not in last.change.knobs)


def unseen_words(trial: Trial) -> str:
    if trial.step_ns or trial.setup.world_size:
        return ""
    return ", and no step of a PyTorch optimizer was seen"


def memory_words(trial: Trial) -> str:
    if trial.is_killed:
        return "was killed (SIGKILL), most likely by the kernel for want of memory"
    return "ran out of memory"


def failure_words(side: Side, trial: Trial) -> str:
    if trial.is_out_of_memory:
        how = memory_words(trial)
    elif trial.is_timed_out:
        how = f"did not end in time ({trial.wall_s:.0f} s){unseen_words(trial)}"
    elif trial.exit_code:
        num = len(trial.step_ns)
        after = f" after {num} timed step{'s' if num > 1 else ''}" if num else ""
        how = f"failed with exit code {trial.exit_code}{after}"
    else:
        how = NO_STEPS
    return f"the {side} {how} (its output is kept in {trial.folder})"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}\u00a0%"
