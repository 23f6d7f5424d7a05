"""A side from a diagnosis that was kept as JSON (`stepscope diagnose --format json`): its step,
parts, ranks and findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.analyses.run.width import mean_of_parts
from stepscope.core.codec import decode
from stepscope.core.comms import CommsFacts
from stepscope.core.diagnosis import DiagnosisDocument, Rank, unjudged_fixes
from stepscope.core.kept_diagnosis import refuse_impossible
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
    diagnosis = decode(text, DiagnosisDocument, label)
    refuse_impossible(diagnosis, label)
    run, comms = diagnosis.run or None, diagnosis.comms or None
    step_ns = _ns(diagnosis.step.ms)
    rank_record = None if run is None or not run.ranks else run.ranks[0]
    world = None if comms is None else comms.world_size
    work = WorkDone(world_size=world or (len(run.ranks) if run is not None and run.ranks else None))
    return CompareSide(
        label=label,
        kind="diagnosis",
        step_ns=step_ns,
        step_source=diagnosis.step.source,
        kept=kept_steps(run),
        recorded_ns=_ns(diagnosis.step.profiled_ms),
        parts_ns=_mean_parts(diagnosis, step_ns),
        bound=diagnosis.verdict.bound,
        findings=diagnosis.findings,
        ladder=diagnosis.ladder,
        abstained=frozenset(abstention.code for abstention in diagnosis.abstentions),
        is_judged=diagnosis.replay is not None and unjudged_fixes(diagnosis.abstentions) is None,
        num_ranks=len(diagnosis.ranks),
        ranks=tuple(_rank_side(rank, _parts_ns(rank), comms) for rank in diagnosis.ranks),
        late=late_ranks(comms),
        comms=comms,
        work=work if rank_record is None else with_known(work, rank_record),
        knobs=None if run is None else knobs_of_facts(run),
        notes=(
            (
                f"{label} is a kept diagnosis: it has the step's parts, and no table of operators "
                "or kernels to pair"
            ),
            *side_notes(label, diagnosis.notes),
        ),
    )


def _parts_ns(rank: Rank) -> dict[str, float | None] | None:
    return {part: _ns(ms) for part, ms in rank.parts_ms.items()} or None


def _ns(ms: float | None) -> float | None:
    return None if ms is None else ms * 1e6


def _mean_parts(
    diagnosis: DiagnosisDocument, step_ns: float | None
) -> dict[str, int | None] | None:
    split = [parts for rank in diagnosis.ranks if (parts := _parts_ns(rank)) is not None]
    if not split or step_ns is None or diagnosis.step.profiled_ms is None:
        return None
    is_unsplit = any(parts["comms_wait"] is None for parts in split)
    profiled_ns = round(diagnosis.step.profiled_ms * 1e6)
    return mean_of_parts(split, round(step_ns), profiled_ns, is_unsplit=is_unsplit)


def _rank_side(rank: Rank, parts: Mapping[str, Any] | None, comms: CommsFacts | None) -> RankSide:
    ranks = () if comms is None else comms.ranks
    waits = next((row.wait_ns for row in ranks if row.rank == rank.rank), None)
    return RankSide(
        rank=rank.rank,
        step_ns=None if parts is None else sum(ns or 0.0 for ns in parts.values()),
        wait_ns=waits if waits is not None or parts is None else parts["comms_wait"],
    )
