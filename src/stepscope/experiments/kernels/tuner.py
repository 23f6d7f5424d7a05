"""The sweep: references first, then every configuration checked, then the right ones timed. What is wrong is never timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from stepscope.core.hardware import Roofs
from stepscope.core.kernel_tuning import (
    FAILED,
    NOT_TRIED,
    RIGHT,
    WRONG,
    Case,
    CaseResult,
    Deviation,
    Error,
    KernelTuning,
    Trying,
)
from stepscope.errors import UsageError
from stepscope.experiments.kernels.bench import Compared, Referred, Sampled
from stepscope.experiments.kernels.errors import FACTOR, times, widest
from stepscope.experiments.kernels.floor import floor_of
from stepscope.experiments.kernels.space import Settings
from stepscope.experiments.kernels.timing import REFERENCE, Race
from stepscope.experiments.kernels.worker import Described

CHECKING = 0.7
"""Of the budget, before the rest of the configurations is left untried: there must be time to time those that were checked."""


NOISY = 0.3
"""Of the median, between the tenth and the ninetieth percentile of a configuration's samples: half of all have more."""


class Bench(Protocol):
    def warm_up(self) -> None: ...

    def refer(self, case: Case) -> Referred: ...

    def check(self, settings: Settings, case: Case, allowed: Error, limit_s: float) -> Compared: ...

    def sample(self, settings: Settings | None, case: Case, inner: int, limit_s: float) -> Sampled: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is swept."""

    described: Described
    cases: tuple[Case, ...]
    configs: tuple[Settings, ...]
    """The baseline first."""
    has_baseline: bool
    """Whether the first is how the function runs when nothing is set."""
    by: str
    cold: bool
    gradients: bool
    roofs: Roofs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPolicy:
    budget_s: float = 120.0
    """For all of it. A configuration under way is not cut short by it."""
    config_s: float = 60.0
    """For checking one configuration, compiling included: beyond it hangs."""
    tolerance: float = FACTOR
    """Times the reference's own error."""
    sample_s: float = 1e-3
    """A sample is made of calls enough to last this long."""


Told = Callable[[str], None]


def tune_kernel(
    bench: Bench, plan: Plan, policy: SweepPolicy, told: Told, now: Callable[[], float] = time.monotonic
) -> KernelTuning:
    start = now()
    told(f"reference in {len(plan.cases)} cases")
    referred, cases, notes = _refer(bench, plan)
    allowed = _allowed(referred, policy.tolerance)
    notes += _truth_notes(referred)
    tryings, has_gradients = _check_all(bench, plan, policy, cases, allowed, told, now, start)
    bench.warm_up()
    results = []
    timed_cases = [case for case in cases if case.is_timed]
    for at, case in enumerate(timed_cases):
        told(f"timing {case.words}")
        share = max(start + policy.budget_s - now(), 0.0) / (len(timed_cases) - at)
        result, tryings = _race(bench, plan, policy, case, referred[case], tryings, now, now() + share)
        results.append(result)
    results = [_without_wrong(result, tryings) for result in results]
    described = plan.described
    return KernelTuning(
        what=described.name,
        reference=described.reference,
        device=described.device,
        device_kind=described.kind,
        versions=described.versions,
        by=plan.by,
        caches="cold" if plan.cold else "warm",
        has_gradients=plan.gradients,
        gradients_checked=has_gradients,
        roofs=None if plan.roofs is None else plan.roofs.source,
        tolerance=policy.tolerance,
        allowed=allowed,
        tryings=tuple(tryings),
        cases=tuple(results),
        checked=tuple(cases),
        wall_s=now() - start,
        notes=(*notes, *_notes(plan, tryings, results, has_gradients)),
    )


def _refer(bench: Bench, plan: Plan) -> tuple[dict[Case, Referred], list[Case], list[str]]:
    """An edge that the reference cannot take is left out; a case to time is the user's, and must work."""
    found: dict[Case, Referred] = {}
    left: dict[str, None] = {}
    for case in plan.cases:
        told = bench.refer(case)
        if told.problem is None:
            found[case] = told
        elif case.is_timed:
            raise UsageError(f"the reference ({plan.described.reference}) fails at {case.words}: {told.problem}")
        else:
            left[case.words.rpartition(" ")[0]] = None
    notes = [f"edge shapes that the reference does not take were left out: {', '.join(left)}"] if left else []
    return found, list(found), notes


def _allowed(referred: dict[Case, Referred], factor: float) -> dict[str, Error]:
    """By precision, the widest over the cases: a small output may be exact by luck."""
    dtypes = dict.fromkeys(case.dtype for case in referred)
    return {
        dtype: times(widest([one.error for case, one in referred.items() if case.dtype == dtype and one.error]), factor)
        for dtype in dtypes
    }


def _truth_notes(referred: dict[Case, Referred]) -> list[str]:
    poor = dict.fromkeys(case.dtype for case, one in referred.items() if one.truth == case.dtype and case.dtype != "float64")
    if not poor:
        return []
    return [
        f"the reference gives {', '.join(poor)} whatever it is given: its own error could not be measured, eight roundings taken"
    ]


def _check_all(
    bench: Bench,
    plan: Plan,
    policy: SweepPolicy,
    cases: Sequence[Case],
    allowed: dict[str, Error],
    told: Told,
    now: Callable[[], float],
    start: float,
) -> tuple[list[Trying], bool]:
    tryings: list[Trying] = []
    has_gradients = False
    for at, settings in enumerate(plan.configs):
        if at and now() - start > policy.budget_s * CHECKING:
            tryings.append(Trying(settings=settings, outcome=NOT_TRIED, why="the budget was spent before its turn"))
            continue
        told(f"checking {at + 1} of {len(plan.configs)}")
        trying, gradients = _check(bench, settings, cases, allowed, policy, now)
        has_gradients |= gradients
        tryings.append(trying)
    return tryings, has_gradients


def _check(
    bench: Bench,
    settings: Settings,
    cases: Sequence[Case],
    allowed: dict[str, Error],
    policy: SweepPolicy,
    now: Callable[[], float],
) -> tuple[Trying, bool]:
    """Every case, also after a wrong one: the worst is told. The first failure ends it."""
    start, num, has_gradients = now(), 0, False
    worst: Deviation | None = None
    for case in cases:
        found = bench.check(settings, case, allowed[case.dtype], max(policy.config_s - (now() - start), 1.0))
        if found.why is not None:
            is_wrong = worst is not None and worst.share > 1
            outcome = WRONG if is_wrong else FAILED
            return Trying(settings=settings, outcome=outcome, why=found.why, failed_at=case, worst=worst, num_checks=num), False
        num += found.num_checks
        has_gradients |= found.has_gradients
        here = Deviation(case=case, output=found.output, error=found.error, allowed=found.allowed, measure=found.measure)
        worst = here if worst is None or here.share > worst.share else worst
    outcome = RIGHT if worst is not None and worst.share <= 1 else WRONG
    return Trying(settings=settings, outcome=outcome, worst=worst, num_checks=num), has_gradients


def _race(
    bench: Bench,
    plan: Plan,
    policy: SweepPolicy,
    case: Case,
    referred: Referred,
    tryings: list[Trying],
    now: Callable[[], float],
    deadline: float,
) -> tuple[CaseResult, list[Trying]]:
    right = {at: one.settings for at, one in enumerate(tryings) if one.outcome == RIGHT}
    race = Race(
        bench=bench,
        case=case,
        settings=right,
        baseline=0 if 0 in right else None,
        has_reference=plan.described.has_reference and not plan.described.is_module,
        sample_s=policy.sample_s,
        limit_s=policy.config_s,
        now=now,
        deadline=deadline,
    )
    raced = race.run()
    tryings = [
        replace(one, outcome=FAILED, why=raced.failed[at], failed_at=case) if at in raced.failed else one
        for at, one in enumerate(tryings)
    ]
    floor = floor_of(
        plan.roofs,
        case.dtype,
        referred.bytes_moved,
        referred.flops,
        cache_bytes=plan.described.cache_bytes,
        allows_tf32=plan.described.allows_tf32,
    )
    result = CaseResult(
        case=case,
        floor=floor,
        times=tuple(raced.times.get(at) for at in range(len(tryings))),
        reference=raced.times.get(REFERENCE),
        baseline=race.baseline if race.baseline in raced.times else None,
        winner=raced.winner,
        gain=raced.gain,
        ties=raced.ties,
    )
    return result, tryings


def _without_wrong(result: CaseResult, tryings: Sequence[Trying]) -> CaseResult:
    """One that failed in a later case wins no earlier one: the fastest that never failed does, with no gain claimed."""
    if result.winner is None or tryings[result.winner].outcome == RIGHT:
        return result
    left = [(one.ns, at) for at, one in enumerate(result.times) if one is not None and tryings[at].outcome == RIGHT]
    return replace(result, winner=min(left)[1] if left else None, gain=None, ties=())


def _notes(plan: Plan, tryings: Sequence[Trying], results: Sequence[CaseResult], has_gradients: bool) -> list[str]:
    described = plan.described
    notes = []
    if not described.has_reference:
        notes.append("no reference was given: configurations were compared with the function as it is. Give --reference")
    if described.is_interpreted:
        notes.append("Triton's interpreter ran the kernels on the host: its times say nothing about a GPU")
    if plan.roofs is None:
        notes.append("this device's roofs are not known, so there is no floor: `stepscope calibrate`, then --hardware FILE")
    if not has_gradients and any(one.outcome == RIGHT for one in tryings):
        notes.append("no gradients were checked: the outputs carry none, or they were not asked for")
    if not plan.has_baseline:
        notes.append("the function needs its settings, so the first configuration is the baseline")
    spread = [one for result in results for one in (*result.times, result.reference) if one is not None]
    if spread and median((one.high_ns - one.low_ns) / one.ns for one in spread) > NOISY:
        notes.append("the samples spread widely: something else runs on this machine, and small gains could not be shown")
    skipped = sum(one.outcome == NOT_TRIED for one in tryings)
    if skipped:
        notes.append(f"{skipped} configurations were not tried: the budget was spent. Give a larger --budget, or fewer values")
    return notes
