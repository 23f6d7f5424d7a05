"""The sweep: references first, then every configuration checked, then the right ones timed.

What is wrong is never timed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.hardware import DeviceRates
from stepscope.core.timings import counted, followed
from stepscope.errors import UsageError
from stepscope.hardware.lookup import find_spec_by_key
from stepscope.tune.kernels.checking import CheckResult, ReferenceResult
from stepscope.tune.kernels.errors import FACTOR, times, widest
from stepscope.tune.kernels.search import KernelSearch
from stepscope.tune.kernels.space import MAX_SWEPT, Settings
from stepscope.tune.kernels.timing import MAX_INNER, REFERENCE, Race, Sampler
from stepscope.tune.kernels.worker import Described
from stepscope.tune.shapes.kernel_tuning import (
    FAILED,
    NOT_TRIED,
    RIGHT,
    WRONG,
    Case,
    CaseResult,
    Check,
    Deviation,
    Device,
    Error,
    Floor,
    KernelTuning,
    Timing,
    Trying,
    best_overall,
)

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


def datasheet_roofs(key: str | None) -> DeviceRates | None:
    """Rates by the datasheet, where the device is surely known."""
    spec = None if key is None else find_spec_by_key(key)
    return None if spec is None else spec.rates(f"datasheet of {spec.name}")


def floor_of(
    roofs: DeviceRates | None,
    dtype: str,
    bytes_moved: int,
    flops: float | None,
    *,
    cache_bytes: int,
    allows_tf32: bool,
) -> Floor:
    fits = bytes_moved <= cache_bytes
    if roofs is None:
        return Floor(bytes_moved=bytes_moved, flops=flops, ns=None, bound=None, fits_cache=fits)
    memory_ns = bytes_moved / roofs.bandwidth_bytes_per_s * 1e9
    # The best unit for this precision: TF32 only where the process allows it.
    name = PRECISIONS.get(dtype, dtype)
    names = [name, f"{name}_tensor"] + (["tf32"] if name == "fp32" and allows_tf32 else [])
    peaks = [roofs.peak_flops[unit] for unit in names if unit in roofs.peak_flops]
    peak = max(peaks) if peaks else None
    arithmetic_ns = flops / peak * 1e9 if flops and peak else 0.0
    bound = "arithmetic" if arithmetic_ns > memory_ns else "memory"
    return Floor(
        bytes_moved=bytes_moved,
        flops=flops,
        ns=max(memory_ns, arithmetic_ns),
        bound=bound,
        fits_cache=fits,
    )


CHECKING = 0.7
"""Share of the budget, before the rest of the configurations is left untried: there must be time to
time those that were checked."""


QUICK_SAMPLES = 3
"""Samples of a configuration that is one of many, in each case, after one that warms it up."""
MAX_RACED = 32
"""Configurations of many that run the race: the first few samples are no choice between the
fastest."""
NOISY = 0.3
"""Share of the median, between the tenth and the ninetieth percentile of a configuration's samples:
half of all have more."""


class Bench(Sampler, Protocol):
    def warm_up(self) -> None: ...

    def refer(self, case: Case) -> ReferenceResult: ...

    def begin(self, settings: Settings) -> None:
        """Starts the process that checks it, where there is none."""

    def check(
        self, settings: Settings, case: Case, allowed: Error, limit_s: float
    ) -> CheckResult: ...


class Plan(Struct, frozen=True, kw_only=True):
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
    roofs: DeviceRates | None


class SweepPolicy(Struct, frozen=True, kw_only=True):
    budget_s: float = 120.0
    """Seconds for all of it. A configuration under way is not cut short by it."""
    config_s: float = 60.0
    """Seconds for checking one configuration, compiling included: beyond it hangs."""
    tolerance: float = FACTOR
    """Times the reference's own error."""
    sample_s: float = 1e-3
    """A sample is made of calls enough to last this long."""
    trials: int = 200
    """Configurations that are tried, where there are more than a sweep takes."""


def tune_kernel(
    bench: Bench,
    plan: Plan,
    policy: SweepPolicy,
    now: Callable[[], float] = time.monotonic,
) -> KernelTuning:
    return _Sweep(bench, plan, policy, now).run()


@dataclass(slots=True)
class _Sweep:
    bench: Bench
    plan: Plan
    policy: SweepPolicy
    now: Callable[[], float]
    tryings: list[Trying] = field(default_factory=list)
    has_gradients: bool = False
    kept: frozenset[int] | None = None
    """Indices of the tryings that run the race; None: all."""

    def run(self) -> KernelTuning:
        start, plan, policy = self.now(), self.plan, self.policy
        referred, cases, notes = _refer(self.bench, plan)
        allowed = _allowed(referred, policy.tolerance)
        notes += _truth_notes(referred)
        timed_cases = [case for case in cases if case.is_timed]
        if len(plan.configs) > MAX_SWEPT:
            self._search(cases, timed_cases, allowed, start)
        else:
            self._check_all(cases, allowed, start)
        self.bench.warm_up()
        results = []
        for index, case in enumerate(timed_cases):
            share = max(start + policy.budget_s - self.now(), 0.0) / (len(timed_cases) - index)
            results.append(self._race(case, referred[case], self.now() + share))
        results = [_with_winner(result, self.tryings) for result in results]
        described = plan.described
        return KernelTuning(
            what=described.name,
            reference=described.reference,
            device=Device(name=described.device, kind=described.kind),
            versions=described.versions,
            measured=Timing(
                by=plan.by, caches="cold" if plan.cold else "warm", gradients=plan.gradients
            ),
            check=Check(
                tolerance=policy.tolerance,
                allowed=allowed,
                cases=tuple(cases),
                gradients=self.has_gradients,
            ),
            roofs=None if plan.roofs is None else plan.roofs.source,
            tryings=tuple(self.tryings),
            cases=tuple(results),
            overall=best_overall(self.tryings, results),
            wall_s=self.now() - start,
            notes=(*notes, *_notes(plan, self.tryings, results, self.has_gradients)),
        )

    def _check_all(self, cases: Sequence[Case], allowed: dict[str, Error], start: float) -> None:
        configs = self.plan.configs
        to_check = counted("configurations to check", configs, len(configs), is_long=True)
        for index, settings in enumerate(to_check):
            if index and self.now() - start > self.policy.budget_s * CHECKING:
                why = "the budget was spent before its turn"
                self.tryings.append(Trying(settings=settings, outcome=NOT_TRIED, why=why))
                continue
            self.tryings.append(self._check(settings, cases, allowed))

    def _search(
        self,
        cases: Sequence[Case],
        timed_cases: Sequence[Case],
        allowed: dict[str, Error],
        start: float,
    ) -> None:
        """Some of them, each timed as soon as it is right: what comes next goes by that. The
        fastest run the race."""
        configs, policy = self.plan.configs, self.policy
        search = KernelSearch(configs[1:] if self.plan.has_baseline else configs, policy.trials)
        taken: dict[int, float] = {}
        num = min(policy.trials, len(configs))
        with followed("configurations to try", num, is_long=True) as advance:
            while len(self.tryings) < num:
                spent = self.now() - start
                if self.tryings and spent > policy.budget_s * CHECKING:
                    break
                settings = configs[0] if not self.tryings else search.ask()
                if settings is None:
                    break
                trying = self._check(settings, cases, allowed)
                ns = self._quick_ns(settings, timed_cases) if trying.outcome == RIGHT else None
                if ns is not None:
                    taken[len(self.tryings)] = ns
                search.tell(settings, ns)
                self.tryings.append(trying)
                advance(len(self.tryings))
        self.kept = frozenset({0, *sorted(taken, key=lambda index: taken[index])[:MAX_RACED]})

    def _quick_ns(self, settings: Settings, cases: Sequence[Case]) -> float | None:
        """The geometric mean over the cases of a few samples each; None where one fails."""
        logs = []
        for case in cases:
            samples = []
            inner = 1
            for number in range(QUICK_SAMPLES + 1):
                sample = self.bench.sample(settings, case, inner, self.policy.config_s)
                if sample.ns is None:
                    return None
                if number:
                    samples.append(sample.ns)
                inner = min(
                    max(int(self.policy.sample_s * 1e9 / max(sample.ns, 1.0)), 1), MAX_INNER
                )
            logs.append(math.log(max(median(samples), 1e-9)))
        return math.exp(sum(logs) / len(logs)) if logs else None

    def _check(
        self, settings: Settings, cases: Sequence[Case], allowed: dict[str, Error]
    ) -> Trying:
        """Every case, also after a wrong one: the worst is reported. The first failure ends it."""
        # What came before may have ended the process: to import torch anew is not this one's time.
        self.bench.begin(settings)
        start, num, has_gradients = self.now(), 0, False
        worst: Deviation | None = None
        for case in cases:
            left_s = max(self.policy.config_s - (self.now() - start), 1.0)
            result = self.bench.check(settings, case, allowed[case.dtype], left_s)
            if result.why is not None:
                is_wrong = worst is not None and worst.share > 1
                return Trying(
                    settings=settings,
                    outcome=WRONG if is_wrong else FAILED,
                    why=result.why,
                    failed_at=case,
                    worst=worst,
                    num_checks=num,
                )
            num += result.num_checks
            has_gradients |= result.has_gradients
            deviation = Deviation(
                case=case,
                output=result.output,
                error=result.error,
                allowed=result.allowed,
                measure=result.measure,
            )
            worst = deviation if worst is None or deviation.share > worst.share else worst
        self.has_gradients |= has_gradients
        outcome = RIGHT if worst is not None and worst.share <= 1 else WRONG
        return Trying(settings=settings, outcome=outcome, worst=worst, num_checks=num)

    def _race(self, case: Case, referred: ReferenceResult, deadline: float) -> CaseResult:
        described, tryings = self.plan.described, self.tryings
        right = {
            index: trying.settings
            for index, trying in enumerate(tryings)
            if trying.outcome == RIGHT and (self.kept is None or index in self.kept)
        }
        race = Race(
            bench=self.bench,
            case=case,
            settings=right,
            baseline=0 if 0 in right else None,
            has_reference=described.has_reference and not described.is_module,
            sample_s=self.policy.sample_s,
            limit_s=self.policy.config_s,
            now=self.now,
            deadline=deadline,
        )
        raced = race.run()
        for index, why in raced.failed.items():
            if index != REFERENCE:
                tryings[index] = replace(tryings[index], outcome=FAILED, why=why, failed_at=case)
        floor = floor_of(
            self.plan.roofs,
            case.dtype,
            referred.bytes_moved,
            referred.flops,
            cache_bytes=described.cache_bytes,
            allows_tf32=described.allows_tf32,
        )
        return CaseResult(
            case=case,
            floor=floor,
            times=tuple(raced.times.get(index) for index in range(len(tryings))),
            reference=raced.times.get(REFERENCE),
            baseline=race.baseline if race.baseline in raced.times else None,
            winner=raced.winner,
            gain=raced.gain,
            ties=raced.ties,
        )


def _refer(bench: Bench, plan: Plan) -> tuple[dict[Case, ReferenceResult], list[Case], list[str]]:
    """An edge that the reference cannot take is left out.

    A case to time is the user's, and must work.
    """
    results: dict[Case, ReferenceResult] = {}
    left_out: dict[str, None] = {}
    for case in counted("cases of the reference", plan.cases, len(plan.cases), is_long=True):
        result = bench.refer(case)
        if result.problem is None:
            results[case] = result
        elif case.is_timed:
            raise UsageError(
                f"the reference ({plan.described.reference}) fails at {case.words}: "
                f"{result.problem}"
            )
        else:
            left_out[case.words.rpartition(" ")[0]] = None
    notes = []
    if left_out:
        notes.append(
            f"edge shapes that the reference does not take were left out: {', '.join(left_out)}"
        )
    return results, list(results), notes


def _allowed(referred: dict[Case, ReferenceResult], factor: float) -> dict[str, Error]:
    """Errors allowed by precision, the widest over the cases: a small output may be exact by
    luck."""
    dtypes = dict.fromkeys(case.dtype for case in referred)
    return {
        dtype: times(
            widest(
                [
                    result.error
                    for case, result in referred.items()
                    if case.dtype == dtype and result.error
                ]
            ),
            factor,
        )
        for dtype in dtypes
    }


def _truth_notes(referred: dict[Case, ReferenceResult]) -> list[str]:
    unmeasured = [case.dtype for case, result in referred.items() if result.truth == case.dtype]
    poor = dict.fromkeys(dtype for dtype in unmeasured if dtype != "float64")
    if not poor:
        return []
    return [
        (
            f"the reference gives {', '.join(poor)} whatever it is given: its own error could not "
            "be measured, eight roundings taken"
        )
    ]


def _with_winner(result: CaseResult, tryings: Sequence[Trying]) -> CaseResult:
    """The case with its winner's settings. One that failed in a later case wins no earlier one: the
    fastest that never failed does, with no gain claimed."""
    if result.winner is not None and tryings[result.winner].outcome != RIGHT:
        result = _without_wrong(result, tryings)
    settings = None if result.winner is None else tryings[result.winner].settings
    return replace(result, settings=settings)


def _without_wrong(result: CaseResult, tryings: Sequence[Trying]) -> CaseResult:
    still_right = [
        (timing.ns, index)
        for index, timing in enumerate(result.times)
        if timing is not None and tryings[index].outcome == RIGHT
    ]
    _, winner = min(still_right, default=(0.0, None))
    return replace(result, winner=winner, gain=None, ties=())


def _notes(
    plan: Plan, tryings: Sequence[Trying], results: Sequence[CaseResult], has_gradients: bool
) -> list[str]:
    described = plan.described
    notes = []
    if not described.has_reference:
        notes.append(
            "no reference was given: configurations were compared with the function as it is. "
            "Give --reference"
        )
    if described.is_interpreted:
        notes.append(
            "Triton's interpreter ran the kernels on the host: its times say nothing about a GPU"
        )
    if plan.roofs is None:
        notes.append(
            "this device's roofs are not known, so there is no floor: `stepscope calibrate`, then "
            "--hardware FILE"
        )
    if not has_gradients and any(item.outcome == RIGHT for item in tryings):
        notes.append(
            "no gradients were checked: the outputs carry none, or they were not asked for"
        )
    if not plan.has_baseline:
        notes.append("the function needs its settings, so the first configuration is the baseline")
    spread = [
        item for result in results for item in (*result.times, result.reference) if item is not None
    ]
    if spread and median((item.high_ns - item.low_ns) / item.ns for item in spread) > NOISY:
        notes.append(
            "the samples spread widely: something else runs on this machine, and small gains "
            "could not be shown"
        )
    if len(plan.configs) > MAX_SWEPT:
        notes.append(
            f"of {len(plan.configs):,} configurations {len(tryings):,} were tried, chosen by what "
            f"was timed (Optuna), and the fastest {MAX_RACED} raced: more of them with --trials "
            "and --budget"
        )
    skipped = sum(item.outcome == NOT_TRIED for item in tryings)
    if skipped:
        notes.append(
            f"{skipped} configurations were not tried: the budget was spent. Give a larger "
            "--budget, or fewer values"
        )
    return notes
