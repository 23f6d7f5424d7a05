"""Step times that follow from a diagnosis: today's, and what each fix leaves of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.core.diagnosis import DiagnosisDocument, Finding, ReplayCheck, StepTime

SAME_STEP = 0.02
"""Share of the recorded step up to which what the profiler adds to it is not mentioned."""
MIN_RARE = 0.001
"""Share of a usual step from which what only some steps hold is told apart from it."""
MIN_MORE = 0.001
"""Share of the step from which a fix is said to add to those above it."""
MAX_STEPS_DOWN = 8
"""Fixes that are followed; a list of findings has them all."""


class StepAfter(Struct, frozen=True, kw_only=True):
    """The step after a fix and those before it."""

    finding: Finding
    ms: float
    is_more: bool
    """Whether the fix adds to those before it."""


class PredictedSteps(Struct, frozen=True, kw_only=True):
    """Today's step and what it becomes. Where fixes spare what only some steps hold, all of them
    are steps over all of the run."""

    today_ms: float
    over_all_steps: bool
    after: tuple[StepAfter, ...]


def rare_share(finding: Finding, replay: ReplayCheck | None) -> float:
    """Share of a usual step that the fix spares beside it: in those alone that hold more than
    it."""
    if replay is None or not replay.ms:
        return 0.0
    share = finding.predicted_speedup * finding.predicted_step_ms / replay.ms - 1
    return share if share > MIN_RARE else 0.0


def is_of_rare_steps(finding: Finding, replay: ReplayCheck | None) -> bool:
    """Whether most of the gain is of steps that are longer than the usual one."""
    return rare_share(finding, replay) > (finding.predicted_speedup - 1) / 2 > 0


def unprofiled_ms(step: StepTime, replay: ReplayCheck | None) -> float | None:
    """The step that gains are of, where the recorded one alone is known and the profiler lengthens
    it."""
    if step.source != "trace" or step.ms is None or replay is None:
        return None
    return replay.ms if replay.ms < (1 - SAME_STEP) * step.ms else None


def all_steps_ms(findings: Sequence[Finding], replay: ReplayCheck | None) -> float:
    """Today's step over all steps of the run, with what only some hold that the fixes spare."""
    first = findings[0]
    rare = sum(rare_share(finding, replay) for finding in findings)
    usual_ms = first.predicted_step_ms * first.predicted_speedup / (1 + rare_share(first, replay))
    return usual_ms * (1 + rare)


def has_unprofiled_gains(diagnosis: DiagnosisDocument) -> bool:
    """Whether gains are of a step that only the replay knows: without the profiler's cost."""
    return diagnosis.step.source == "trace" and bool(diagnosis.findings)


def predicted_steps(diagnosis: DiagnosisDocument) -> PredictedSteps | None:
    """None where no step time is known."""
    usual_ms = _usual_ms(diagnosis)
    if usual_ms is None:
        return None
    # With one finding, or an older file, what is known of it alone.
    alone = [finding.predicted_speedup for finding in diagnosis.findings[:1]]
    ladder = diagnosis.ladder[:MAX_STEPS_DOWN] or alone
    pairs = list(zip(ladder, diagnosis.findings, strict=False))
    rare = sum(rare_share(finding, diagnosis.replay) for _, finding in pairs)
    after = []
    before, spared = 1.0, 0.0
    for gain, finding in pairs:
        is_more = gain > before * (1 + MIN_MORE)
        if is_more:
            spared += rare_share(finding, diagnosis.replay)
        left_ms = usual_ms * (1 + spared) / gain + usual_ms * (rare - spared)
        after.append(StepAfter(finding=finding, ms=left_ms, is_more=is_more))
        before = gain
    return PredictedSteps(
        today_ms=usual_ms * (1 + rare), over_all_steps=bool(rare), after=tuple(after)
    )


def _usual_ms(diagnosis: DiagnosisDocument) -> float | None:
    """The step that gains are gains of: where only the trace tells it, less what the profiler
    costs, as the replay has it."""
    if not has_unprofiled_gains(diagnosis):
        return diagnosis.step.ms or diagnosis.step.profiled_ms
    first = diagnosis.findings[0]
    all_ms = first.predicted_step_ms * first.predicted_speedup
    return all_ms / (1 + rare_share(first, diagnosis.replay))
