"""A kernel's tuning as JSON: the document `stepscope.kernel_tuning/1`."""

from __future__ import annotations

import math

from stepscope.core.contract import kernel_tuning as contract
from stepscope.core.contract.codec import encode
from stepscope.core.experiments.kernel_tuning import (
    Case,
    CaseResult,
    Deviation,
    Gain,
    KernelTuning,
    Timed,
    Trying,
)


def kernel_tuning_json(tuning: KernelTuning) -> str:
    """The document as indented text."""
    return encode(kernel_tuning_contract(tuning))


def kernel_tuning_contract(tuning: KernelTuning) -> contract.KernelTuningContract:
    """What was not measured is null, never 0. Configurations are named by their index."""
    return contract.KernelTuningContract(
        what=tuning.what,
        reference=tuning.reference,
        device=contract.Device(name=tuning.device, kind=tuning.device_kind),
        versions=tuning.versions,
        measured=contract.Measured(
            by=tuning.by, caches=tuning.caches, gradients=tuning.has_gradients
        ),
        check=contract.Check(
            tolerance=tuning.tolerance,
            allowed=tuning.allowed,
            cases=tuple(map(_case, tuning.checked)),
            gradients=tuning.gradients_checked,
        ),
        roofs=tuning.roofs,
        configs=tuple(map(_config, tuning.tryings)),
        cases=tuple(_result(result, tuning) for result in tuning.cases),
        overall=tuning.overall,
        wall_s=tuning.wall_s,
        notes=tuning.notes,
    )


def _case(case: Case) -> contract.Case:
    return contract.Case(shapes=case.shapes, dtype=case.dtype, timed=case.is_timed)


def _config(trying: Trying) -> contract.Config:
    return contract.Config(
        settings=trying.settings,
        outcome=trying.outcome,
        why=trying.why,
        failed_at=None if trying.failed_at is None else _case(trying.failed_at),
        worst=None if trying.worst is None else _deviation(trying.worst),
        num_checks=trying.num_checks,
    )


def _deviation(deviation: Deviation) -> contract.Deviation:
    return contract.Deviation(
        case=_case(deviation.case),
        output=deviation.output,
        error=_finite(deviation.error),
        allowed=_finite(deviation.allowed),
        measure=deviation.measure,
    )


def _result(result: CaseResult, tuning: KernelTuning) -> contract.Result:
    floor = result.floor
    return contract.Result(
        case=_case(result.case),
        floor=contract.Floor(
            bytes=floor.bytes_moved,
            flops=floor.flops,
            ns=floor.ns,
            bound=floor.bound,
            fits_cache=floor.fits_cache,
        ),
        times=tuple(map(_time, result.times)),
        reference=_time(result.reference),
        baseline=result.baseline,
        winner=result.winner,
        settings=None if result.winner is None else tuning.tryings[result.winner].settings,
        speedup=None if result.gain is None else _speedup(result.gain),
        share_of_floor=result.share_of_floor,
        ties=result.ties,
    )


def _time(timed: Timed | None) -> contract.Time | None:
    if timed is None:
        return None
    return contract.Time(
        ns=timed.ns, low_ns=timed.low_ns, high_ns=timed.high_ns, samples=timed.num_samples
    )


def _speedup(gain: Gain) -> contract.Speedup:
    return contract.Speedup(
        value=gain.value, low=gain.low, high=_finite(gain.high), pairs=gain.num_pairs
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
