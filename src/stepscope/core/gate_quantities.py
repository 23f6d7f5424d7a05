"""The quantities that a gate can ask of a diagnosis, and their values."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from stepscope.core.codec import decode
from stepscope.core.diagnosis import (
    BOUNDS,
    Abstention,
    DiagnosisDocument,
    Rank,
    median_rank,
    unjudged_fixes,
)
from stepscope.core.facts import PARTS
from stepscope.core.gate import ANY_FINDING, Quantities
from stepscope.core.memory import MemoryUse

SHARES = tuple(f"share.{bound}" for bound in BOUNDS if bound != "unknown")
PART_NAMES = tuple(f"{part}_ms" for part in PARTS)
NAMES = (
    *("step_ms", "profiled_ms", "mfu", "gpu_busy", "gpu_busy_ms", "exposed_comms_ms", "idle_ms"),
    "peak_memory_gb",
    "memory_share",
    *PART_NAMES,
    *SHARES,
    ANY_FINDING,
)
"""Names of what can be asked of a diagnosis, beside finding.CODE."""
MORE_IS_BETTER = ("mfu", "gpu_busy", "speedup", "speedup_low", "speedup_high")
"""Quantities of which a bare number in a budget could be meant either way."""
BY_STEP_TIME = ("step_ms", "mfu")
"""Quantities that follow the run's step time, so they tell nothing beside one that was taken
another way."""
NO_STEP = "was not measured: no rank has a whole step recorded"
NO_MEMORY = (
    "was not recorded: profile_memory=True, stepscope run --memory, or a recording of memory does"
)
NO_SIZE = "is not known: how large the device is was not recorded"
NOT_JUDGED = "was not judged: without a replay of the step most findings cannot be judged"


def known_names(codes: Collection[str]) -> frozenset[str]:
    """Every name that an expression may use."""
    return frozenset((*NAMES, *(f"finding.{code}" for code in codes)))


def read_quantities(
    text: str | bytes, where: str, codes: Collection[str]
) -> tuple[Quantities, str]:
    """The quantities of a diagnosis in JSON, and where its step time comes from."""
    diagnosis = decode(text, DiagnosisDocument, where)
    values: dict[str, float | None] = dict.fromkeys(NAMES)
    values |= {"step_ms": diagnosis.step.ms, "profiled_ms": diagnosis.step.profiled_ms}
    values |= {name: diagnosis.verdict.shares.get(name.removeprefix("share.")) for name in SHARES}
    rank = median_rank(sorted(diagnosis.ranks, key=lambda rank: rank.rank))
    values |= {} if rank is None else _of_rank(rank)
    values |= _of_memory(() if diagnosis.memory is UNSET else diagnosis.memory)
    # The findings that were not judged, each with what it lacked.
    abstained = {f"finding.{each.code}": _abstained_words(each) for each in diagnosis.abstentions}
    values |= _of_findings(diagnosis, codes, abstained)
    of_steps = (*PART_NAMES, "idle_ms", "exposed_comms_ms", "gpu_busy", "gpu_busy_ms")
    why = dict.fromkeys(of_steps, NO_STEP) if rank is None or rank.partition_ms is None else {}
    if values["peak_memory_gb"] is None:
        why["peak_memory_gb"] = NO_MEMORY
    if values["memory_share"] is None:
        why["memory_share"] = NO_MEMORY if values["peak_memory_gb"] is None else NO_SIZE
    unjudged = unjudged_fixes(diagnosis.abstentions)
    not_judged = NOT_JUDGED if unjudged is None else _abstained_words(unjudged)
    why |= {
        name: abstained.get(name, not_judged)
        for name, value in values.items()
        if value is None and "finding" in name
    }
    if rank is not None and rank.partition_ms is not None and values["comms_wait_ms"] is None:
        why["comms_wait_ms"] = (
            "was not separated from moving bytes: it needs the traces of the other ranks"
        )
    finite = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in values.items()
    }
    return Quantities(values=finite, why=why), diagnosis.step.source


def comparable(baseline: Quantities, source: str, run_source: str) -> Quantities:
    """The baseline without what cannot stand beside this run's: a profiled step time beside one
    without a profiler."""
    if (source == "trace") == (run_source == "trace"):
        return baseline
    how = {True: "while profiled", False: "without a profiler"}
    words = (
        f"cannot be compared: it was timed {how[source == 'trace']}, and this run's "
        f"{how[run_source == 'trace']}"
    )
    return replace(
        baseline,
        values={**baseline.values, **dict.fromkeys(BY_STEP_TIME)},
        why={
            **baseline.why,
            **{name: words for name in BY_STEP_TIME if baseline.values[name] is not None},
        },
    )


def _of_rank(rank: Rank) -> dict[str, float | None]:
    values: dict[str, float | None] = {"mfu": rank.mfu, "gpu_busy_ms": rank.gpu_busy_ms}
    parts, total = rank.parts_ms, rank.step_ms
    if not parts:
        return values
    if rank.gpu_busy_ms is not None and total:
        values["gpu_busy"] = rank.gpu_busy_ms / total
    values |= {f"{part}_ms": parts[part] for part in PARTS}
    idle = [parts[part] for part in PARTS if part.startswith("idle_")]
    values["idle_ms"] = None if None in idle else sum(value for value in idle if value is not None)
    moved, waited = parts["comms_transfer"], parts["comms_wait"]
    values["exposed_comms_ms"] = None if moved is None else moved + (waited or 0.0)
    return values


def _of_memory(memory: Sequence[MemoryUse]) -> dict[str, float | None]:
    """The most that tensors held on any device, and the fullest device's share of it."""
    shares = [use.peak_bytes / use.capacity_bytes for use in memory if use.capacity_bytes]
    return {
        "peak_memory_gb": max((use.peak_bytes / 1e9 for use in memory), default=None),
        "memory_share": max(shares, default=None),
    }


def _abstained_words(each: Abstention) -> str:
    return f"was not judged: {each.reason}: {each.needs}"


def _of_findings(
    diagnosis: DiagnosisDocument,
    codes: Collection[str],
    abstained: Collection[str],
) -> dict[str, float | None]:
    """The gain of each finding. One that was looked for and is not there gives 1: nothing to
    gain."""
    unjudged = unjudged_fixes(diagnosis.abstentions)
    absent = None if diagnosis.replay is None or unjudged is not None else 1.0
    values = {
        name: None if name in abstained else absent
        for name in (f"finding.{code}" for code in codes)
    }
    for finding in diagnosis.findings:
        name = f"finding.{finding.code}"
        values[name] = max(values.get(name) or 0.0, finding.predicted_speedup)
    values[ANY_FINDING] = max(
        (finding.predicted_speedup for finding in diagnosis.findings), default=absent
    )
    return values
