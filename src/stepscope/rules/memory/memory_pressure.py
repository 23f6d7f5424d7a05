"""The device's memory is nearly full.

What it sees: the most bytes that tensors held at once, against the device's memory. In a memory
snapshot or memory_stats also allocations that failed, and cached memory given back to make room.

Why it costs: at the limit the allocator gives back its cache and asks the driver again, with the
device standing still, and a longer sequence or a second process ends the run. It also rules out
fixes that need room: larger batches, no checkpointing.

Evidence it needs: the allocator's events: profile with `profile_memory=True`. Or a memory snapshot,
which also says what holds the peak, or memory_stats; these tell how full the device was only after
memory ran out, or with `total_memory` beside the counters, or with nvidia-smi's log of the device
beside them.

What to do: checkpoint activations, shard optimizer and parameters, bf16, a fused loss that never
holds the logits, a smaller micro-batch with accumulation; last, offload.

Example: (for illustration, not measured)
134 of 140 GB held at the end of the forward pass; with every second block checkpointed, 96.
"""

from __future__ import annotations

import math

from msgspec import Struct

from stepscope.analyses.memory.ways_out import FORWARD_SHARE, SURELY_CHECKPOINTED
from stepscope.analyses.run.memory_breakdown import (
    REMEDIES,
    breakdown_text,
    frame_lines,
    largest_category,
)
from stepscope.core.diagnosis import Abstention
from stepscope.core.numbers import times
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    UNKNOWN,
    MemoryRecord,
    MemoryReport,
)
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.unrecorded import REASON, device_memory

CODE = "memory-pressure"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    most: float = 0.92
    """Share of the device's memory from which it is nearly full: the rest goes to the context, to
    libraries' workspaces and to rounding."""
    aim: float = 0.85
    """Share of the device's memory at which the allocator need not give back its cache."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Tell how full the device is; there is no step time in it."""
    memory = device_memory(case)
    if memory is None:
        return Abstention(code=CODE, reason=REASON, needs=case.recorder.with_memory)
    total = None if case.context.device is None else case.context.device.memory_bytes
    if not total:
        return Abstention(
            code=CODE,
            reason="the device's memory is not in the trace",
            needs="a trace that names its device",
        )
    peak = int(memory.allocated.max())
    if peak < POLICY.most * total:
        return None
    text = (
        f"tensors hold {peak / 1e9:.1f} of {total / 1e9:.1f} GB at the peak ({peak / total:.0%}): "
        f"{_relief(case, peak - POLICY.aim * total)}"
    )
    return Remark(code=CODE, text=text)


def _relief(case: Case, too_much: float) -> str:
    """What to checkpoint to free so much, where it is known what is held; by module, the most
    first."""
    memory = case.facts.memory
    activations = 0 if memory is None or memory.kinds is None else memory.kinds.get(ACTIVATIONS, 0)
    if memory is None or SURELY_CHECKPOINTED * activations < too_much:
        return "checkpoint or shard"
    tenths = max(math.ceil(10 * too_much / (SURELY_CHECKPOINTED * activations)), 1)
    freed = SURELY_CHECKPOINTED * activations * tenths / 10
    largest = next((row.name for row in memory.modules if row.kind == ACTIVATIONS), None)
    most = "" if largest is None else f" (most are made in {largest})"
    return (
        f"checkpointing {tenths} of 10 blocks frees {freed / 1e9:.1f} GB or more{most}, for at "
        f"most {FORWARD_SHARE * tenths / 10:.0%} of the step; or shard"
    )


def advise(auxiliary: Auxiliary) -> Advice | None:
    """What memory recordings say of it: the trouble there was, what holds the peak, and what makes
    that smaller."""
    if auxiliary.memory is None:
        return None
    report = auxiliary.memory.sized(auxiliary.system)
    record, trouble = _trouble(report)
    if record is None:
        return None
    detailed = record if record.held else report.detailed
    holder = largest_category(detailed)
    name, share = holder if holder is not None else (UNKNOWN, None)
    weight, weight_of = share, "the peak"
    if share is None and record.capacity_bytes is not None:
        weight, weight_of = record.peak_bytes / record.capacity_bytes, "the device's memory"
    elif share is None:
        weight_of = ""
    evidence = list(trouble[1:])
    if detailed is not None:
        peak = f"the peak of {detailed.peak_bytes / 1e9:.2f} GB{_where(report, detailed)}"
        evidence += [f"what holds {peak}: {breakdown_text(detailed)}", *frame_lines(detailed)]
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=trouble[0],
        action=REMEDIES[name],
        evidence=tuple(evidence),
        weight=weight,
        weight_of=weight_of,
    )


def _trouble(report: MemoryReport) -> tuple[MemoryRecord | None, list[str]]:
    """The first record that had any, the worst kind first, with what there was to see."""
    failed = max(report.records, key=lambda record: record.num_ooms or 0, default=None)
    retried = max(report.records, key=lambda record: record.num_retries or 0, default=None)
    fullest = max(report.records, key=_fullness, default=None)
    troubles: list[tuple[MemoryRecord, str]] = []
    if failed is not None and failed.num_ooms:
        asked = ""
        if failed.oom_bytes is not None:
            asked = f"; the last one asked for {failed.oom_bytes / 1e9:.2f} GB"
        words = (
            f"memory ran out {times(failed.num_ooms)}, with {failed.peak_bytes / 1e9:.1f} GB held "
            f"at the peak{asked}"
        )
        troubles.append((failed, words))
    if retried is not None and retried.num_retries:
        words = (
            "the allocator gave its cache back and asked the driver again "
            f"{times(retried.num_retries)}"
        )
        troubles.append((retried, words))
    if fullest is not None and fullest.capacity_bytes and _fullness(fullest) >= POLICY.most:
        words = (
            f"tensors hold {fullest.peak_bytes / 1e9:.1f} of {fullest.capacity_bytes / 1e9:.1f} "
            "GB at the peak"
        )
        troubles.append((fullest, f"{words} ({_fullness(fullest):.0%})"))
    return (troubles[0][0] if troubles else None), [
        f"{words}{_where(report, record)}" for record, words in troubles
    ]


def _where(report: MemoryReport, record: MemoryRecord) -> str:
    """Words for which of several it is: a rank's own recording, or a device of one."""
    if len(report.records) < 2:
        return ""
    device = "" if record.device is None else f", device {record.device}"
    return f" ({record.label}{device})"


def _fullness(record: MemoryRecord) -> float:
    return record.peak_bytes / record.capacity_bytes if record.capacity_bytes else 0.0


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, advise=advise)
