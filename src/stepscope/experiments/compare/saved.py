"""A side from a diagnosis that was kept as JSON (`stepscope diagnose --format json`): its step, parts, ranks and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stepscope.core.comms_facts import CommsFacts
from stepscope.core.contract import ContractRank, DiagnosisContract, decode_contract
from stepscope.core.facts import PARTS
from stepscope.core.scaling import RANK_SPREAD, UNPROFILED
from stepscope.errors import FormatError
from stepscope.experiments.compare.knobs import knobs_of_facts
from stepscope.experiments.compare.side import (
    CompareSide,
    RankSide,
    WorkDone,
    kept_steps,
    late_ranks,
    side_notes,
    with_known,
)


def side_of_json(text: bytes | str, label: str) -> CompareSide:
    """The kept diagnosis as a side; FormatError where it is none."""
    told = _decoded(text, label)
    parts = [_parts(rank) for rank in told.ranks]
    step_ns = None if told.step.ms is None else told.step.ms * 1e6
    known = None if told.run is None or not told.run.ranks else told.run.ranks[0]
    world = None if told.comms is None else told.comms.world_size
    work = WorkDone(world_size=world or (len(told.run.ranks) if told.run is not None and told.run.ranks else None))
    return CompareSide(
        label=label,
        kind="diagnosis",
        step_ns=step_ns,
        step_source=told.step.source,
        kept=kept_steps(told.run),
        recorded_ns=None if told.step.profiled_ms is None else told.step.profiled_ms * 1e6,
        parts_ns=_mean_parts(told, step_ns),
        bound=told.verdict.bound,
        findings=tuple(told.findings),
        ladder=tuple(told.ladder),
        abstained=frozenset(each.code for each in told.abstentions),
        is_judged=told.replay is not None,
        num_ranks=len(told.ranks),
        ranks=tuple(_rank_side(rank, mine, told.comms) for rank, mine in zip(told.ranks, parts, strict=True)),
        late=late_ranks(told.comms),
        comms=told.comms,
        work=work if known is None else with_known(work, known),
        knobs=None if told.run is None else knobs_of_facts(told.run),
        notes=(
            f"{label} is a kept diagnosis: it has the step's parts, and no table of operators or kernels to pair",
            *side_notes(label, told.notes),
        ),
    )


def _decoded(text: bytes | str, label: str) -> DiagnosisContract:
    told = decode_contract(text, label)
    _refuse_nonsense(told, label)
    return told


def _refuse_nonsense(told: DiagnosisContract, label: str) -> None:
    numbers: list[float | None] = [told.step.ms, told.step.profiled_ms]
    numbers += [ms for rank in told.ranks for ms in (rank.partition_ms or {}).values()]
    numbers += [one for finding in told.findings for one in (finding.predicted_speedup, finding.predicted_step_ms)]
    if any(ms is not None and not (math.isfinite(ms) and 0 <= ms < 1e12) for ms in numbers):
        raise FormatError(f"{label} holds a time or a gain that is none. Diagnose its traces again")


def _parts(rank: ContractRank) -> Mapping[str, float | None] | None:
    parts = rank.partition_ms
    return None if parts is None or set(parts) != set(PARTS) else {part: _ns(parts[part]) for part in PARTS}


def _ns(ms: float | None) -> float | None:
    return None if ms is None else ms * 1e6


def _mean_parts(told: DiagnosisContract, step_ns: float | None) -> dict[str, int | None] | None:
    """The mean over ranks, and what it leaves of the step time: as analyses.width_run has it for facts."""
    split = [parts for rank in told.ranks if (parts := _parts(rank)) is not None]
    if not split or step_ns is None or told.step.profiled_ms is None:
        return None
    mean: dict[str, int | None] = {part: round(sum(parts[part] or 0.0 for parts in split) / len(split)) for part in PARTS}
    if any(parts["comms_wait"] is None for parts in split):
        mean["comms_transfer"] = (mean["comms_transfer"] or 0) + (mean["comms_wait"] or 0)
        mean["comms_wait"] = None
    profiled = round(told.step.profiled_ms * 1e6)
    spread = profiled - sum(ns or 0 for ns in mean.values())
    return mean | {RANK_SPREAD: spread, UNPROFILED: round(step_ns) - profiled}


def _rank_side(rank: ContractRank, parts: Mapping[str, Any] | None, comms: CommsFacts | None) -> RankSide:
    waits = None if comms is None else next((one.wait_ns for one in comms.ranks if one.rank == rank.rank), None)
    return RankSide(
        rank=rank.rank,
        step_ns=None if parts is None else sum(ns or 0.0 for ns in parts.values()),
        wait_ns=waits if waits is not None or parts is None else parts["comms_wait"],
    )
