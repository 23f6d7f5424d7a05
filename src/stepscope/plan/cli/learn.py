"""What `compare PLAN.json RUN` does: a run compared with its plan, and the rates after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.analyses.run.width import width_run
from stepscope.cli.printing import note
from stepscope.cli.report import put_document, put_or_write, write
from stepscope.core.codec import decode, encode
from stepscope.errors import InputError, UsageError
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import measure
from stepscope.plan.contract.plan import Account, PlanContract
from stepscope.plan.contract.plan_calibration import (
    MAX_BYTES,
    ComparedMemory,
    ComparedPart,
    PlanCalibration,
    PlanComparisonContract,
)
from stepscope.plan.job import TrainingJob
from stepscope.plan.learn import (
    as_factors,
    as_mapping,
    factors_of,
    fitted,
    layout_of,
    measured_parts,
    planned_flops,
    planned_parts,
    rebuilt,
)
from stepscope.plan.report.learned import learned_document
from stepscope.protocol.untrusted import read_regular
from stepscope.report.words import plural, teraflops
from stepscope.rules.job_case import Job

OTHER_WORK = 2.5
"""Times as much or as little arithmetic as planned, from which on a run is of another model or
batch. A causal attention that is counted as a half takes off up to half of it."""


def run_learned(
    paths: list[str], data: bytes, reading: Options, style: str, out: Path | None, kept: Path | None
) -> int:
    if style not in ("text", "json"):
        raise UsageError("a plan and its run have text and JSON: take --format text or json")
    comparison, calibration = learned(paths[0], data, paths[1:], reading)
    if kept is not None:
        planned, width = comparison.planned_devices, comparison.measured_ranks
        if planned != width:
            raise UsageError(
                f"{paths[0]} is a plan for {plural(planned, 'device')} and the run has "
                f"{plural(width, 'rank')}: nothing is learned from that; plan for {width}"
            )
        if comparison.factors == as_factors({}):
            why = comparison.other_work or "no part of both is large enough"
            raise UsageError(f"nothing is learned from {paths[1]}, {kept} is not written: {why}")
        write(encode(calibration) + "\n", kept)
        note(kept)
    if style == "json":
        put_or_write(encode(comparison) + "\n", out)
    else:
        put_document(learned_document(comparison, kept), out)
    return 0


def learned(
    name: str, data: bytes, runs: list[str], reading: Options
) -> tuple[PlanComparisonContract, PlanCalibration]:
    plan = decode(data, PlanContract, name, is_strict=True)
    account = plan.explained or plan.best
    if account is None:
        raise UsageError(f"{name}: no layout fits there, so there is nothing to hold a run against")
    times = account.time.values()
    if not account.step_s > 0 or not all(value >= 0 for value in times):
        raise InputError(f"{name}: the plan's step is no time; make the plan again")
    job = measure(runs, reading)
    run = width_run(runs[0], job.facts, job.world_size)
    if run.parts_ns is None or run.step.ns is None:
        raise InputError(f"{runs[0]}: no whole step was recorded, so there is nothing to compare")
    parts_s = {part: ns / 1e9 for part, ns in run.parts_ns.items() if ns is not None}
    planned, measured = planned_parts(account.time), measured_parts(parts_s)
    step_s = run.step.ns / 1e9
    again, recalibrated_s = rebuilt(plan), None
    other = _other_work(again, run.flops)
    factors = {} if other else factors_of(planned, measured, step_s)
    layout = None if again is None else layout_of(account.layout, again)
    if again is not None and layout is not None and factors:
        factors, recalibrated_s = fitted(again, layout, measured, factors)
    memory = _memory(account, job)
    if memory[1] is not None and memory[0] > 0 and not other:
        factors["memory"] = min(max(memory[1] / memory[0], 0.02), 50.0)
    return _documents(
        name, runs[0], plan, account, (planned, measured, step_s), factors, recalibrated_s, memory,
        run.width, run.step.source, other,
    )  # fmt: skip


def _other_work(job: TrainingJob | None, flops: float | None) -> str | None:
    """What tells that the run is not of the plan's model and batch."""
    if job is None or flops is None:
        return None
    planned = planned_flops(job)
    if planned / OTHER_WORK < flops < planned * OTHER_WORK:
        return None
    return (
        f"its model does {teraflops(flops)} a step on a rank and the plan's {teraflops(planned)}, "
        "so that it is another model or batch"
    )


def _memory(account: Account, job: Job) -> tuple[float, float | None]:
    """What the allocator was planned to reserve, and the most that it did."""
    parts = account.memory
    planned = account.memory_bytes - parts.get("context", 0.0)
    auxiliary = job.facts.auxiliary
    report = None if auxiliary is None else auxiliary.memory
    if report is None:
        return planned, None
    kinds = ("reserved_bytes", "reserved_at_peak_bytes", "reserved_now_bytes")
    reserved = [
        size
        for record in report.records
        for kind in kinds
        if (size := getattr(record, kind)) is not None
    ]
    return planned, float(max(reserved)) if reserved else None


def _documents(
    name: str,
    run: str,
    plan: PlanContract,
    account: Account,
    figures: tuple[Mapping[str, float], Mapping[str, float], float],
    factors: Mapping[str, float],
    recalibrated_s: float | None,
    memory: tuple[float, float | None],
    width: int,
    source: str,
    other: str | None,
) -> tuple[PlanComparisonContract, PlanCalibration]:
    planned, measured, step_s = figures
    parts = []
    for part in dict.fromkeys((*planned, *measured)):
        was, came = planned.get(part), measured.get(part)
        off = None if came is None else came - (was or 0.0)
        parts.append(ComparedPart(part=part, planned_s=was, measured_s=came, difference_s=off))
    cluster = plan.job.cluster
    taught = as_factors(factors)
    comparison = PlanComparisonContract(
        plan=name,
        run=run,
        cluster=f"{cluster.num_devices} x {cluster.device}",
        planned_devices=cluster.num_devices,
        measured_ranks=width,
        ratio=step_s / account.step_s,
        most_off=_most_off(parts, account.step_s, step_s),
        parts=tuple(parts),
        memory=ComparedMemory(planned_bytes=memory[0], measured_bytes=memory[1]),
        recalibrated_step_s=recalibrated_s,
        other_work=other,
        notes=tuple(
            _notes(
                cluster.num_devices,
                width,
                source,
                memory[1],
                is_remade=recalibrated_s is not None or other is not None,
            )
        ),
        model=plan.job.model.name,
        layout=account.name,
        planned_step_s=account.step_s,
        measured_step_s=step_s,
        factors=taught,
    )
    calibration = PlanCalibration(
        device=cluster.device,
        num_devices=cluster.num_devices,
        framework=plan.job.framework,
        precision=plan.job.precision,
        source=run,
        model=plan.job.model.name,
        layout=account.name,
        planned_step_s=account.step_s,
        measured_step_s=step_s,
        factors=taught,
    )
    return comparison, calibration


NEAR = 0.03


def _most_off(parts: list[Any], planned_s: float, measured_s: float) -> str | None:
    """The part whose difference has the sign of the whole and the largest share of it."""
    gap = measured_s - planned_s
    if abs(gap) < NEAR * planned_s:
        return None
    known = [part for part in parts if part.difference_s is not None]
    same = [part for part in known if part.difference_s * gap > 0]
    return max(same, key=lambda part: abs(part.difference_s)).part if same else None


def _notes(
    planned: int, width: int, source: str, reserved: float | None, *, is_remade: bool
) -> list[str]:
    notes = []
    if planned != width:
        notes.append(
            f"planned for {plural(planned, 'device')} and recorded on {plural(width, 'rank')}: the "
            "run is not the plan's"
        )
    if source == "trace":
        notes.append("the step was timed under the profiler; --step-ms gives it without")
    if reserved is None:
        notes.append("memory was not recorded: give a memory snapshot with the run")
    if not is_remade:
        notes.append("the plan cannot be made again from its file, so factors are plain ratios")
    return notes


def read_calibration(path: Path, device: str) -> PlanCalibration:
    """What a run taught; refused where it was another device."""
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as problem:
        raise InputError(
            f"cannot read {path}: {problem.strerror or problem}. "
            "`stepscope compare PLAN.json RUN --recalibrate FILE` writes one"
        ) from None
    calibration = decode(data, PlanCalibration, str(path), is_strict=True)
    if calibration.device != device:
        raise UsageError(
            f"{path} was learned on {calibration.device[:80]}, and the cluster has {device}: "
            "leave out --calibration"
        )
    return calibration


def words_of(calibration: PlanCalibration) -> str:
    """What was taken over, for the plan's notes."""
    factors = as_mapping(calibration.factors)
    listed = ", ".join(f"{name} x {factor:.2f}" for name, factor in factors.items())
    return f"recalibrated by {calibration.source[:120]}: {listed or 'nothing was off enough'}"
