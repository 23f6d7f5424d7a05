"""The allocator holds far more memory than tensors use.

What it sees: reserved against allocated bytes at the moment tensors hold most. In a memory snapshot
also the pieces that the free bytes lie in, and memory that ran out with enough of it free. Pools of
CUDA graphs are not counted as free: a graph uses them when it is replayed, though the allocator
knows of no tensor there.

Why it costs: free blocks of the wrong size are of no use. The allocator asks the driver for more
until the device is full, then gives back and retries; a run ends out of memory with gigabytes free.

Evidence it needs: the allocator's events: profile with `profile_memory=True`. Or a memory snapshot,
or memory_stats; these do not say how large the device is, which nvidia-smi's log beside them does.

What to do: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; pad or bucket shapes so that sizes
repeat; no `empty_cache()` in the loop.

Example: (for illustration, not measured) 71 GB reserved for 48 GB of tensors on an 80 GB device,
with sequence lengths that change every step.
"""

from __future__ import annotations

from msgspec import Struct

from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.memory import MemoryRecord
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.unrecorded import REASON, device_memory

CODE = "fragmentation"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    least_unused: float = 0.25
    """Share of the reserved bytes that no tensor uses at the peak: rounding and a warm cache leave
    some (a judgement, not measured)."""
    least_full: float = 0.5
    """Share of the device's memory that must be reserved: below, the cache is in nobody's way."""
    least_bytes: float = 1e9
    """Unused, where the device's size is not known: less is in nobody's way on any device that
    trains (a judgement)."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Tell what is reserved and unused when it matters; there is no step time in it."""
    memory = device_memory(case)
    if memory is None:
        return Abstention(code=CODE, reason=REASON, needs=case.recorder.with_memory)
    peak = int(memory.allocated.argmax())
    allocated, reserved = int(memory.allocated[peak]), int(memory.reserved[peak])
    total = None if case.context.device is None else case.context.device.memory_bytes
    if reserved - allocated < POLICY.least_unused * reserved or (
        total and reserved < POLICY.least_full * total
    ):
        return None
    return Remark(
        code=CODE,
        text=f"{reserved / 1e9:.1f} GB are reserved for {allocated / 1e9:.1f} GB of tensors at the "
        "peak: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )


def advise(auxiliary: Auxiliary) -> Advice | None:
    """What memory recordings say of it: the worst record that is fragmented."""
    records = () if auxiliary.memory is None else auxiliary.memory.sized(auxiliary.system).records
    worst = max((record for record in records if _is_fragmented(record)), key=_unused, default=None)
    if worst is None:
        return None
    assert worst.reserved_bytes is not None
    unused = _unused(worst)
    reserved_text = (
        f"{worst.reserved_bytes / 1e9:.1f} GB were reserved for at most "
        f"{worst.peak_bytes / 1e9:.1f} GB of tensors"
    )
    action = "pad or bucket shapes so that sizes repeat, and keep empty_cache() out of the loop"
    if not worst.expandable:
        action = f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; {action}"
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{_failed_words(worst)}; {reserved_text}"
        if _failed_in_vain(worst)
        else reserved_text,
        action=action,
        evidence=tuple(_evidence(worst)),
        weight=unused,
        weight_of="what is reserved",
    )


def _is_fragmented(record: MemoryRecord) -> bool:
    if record.reserved_bytes is None:
        return False
    if _failed_in_vain(record):
        return True
    unused = _unused(record)
    if record.capacity_bytes is None:
        return (
            unused >= POLICY.least_unused and unused * record.reserved_bytes >= POLICY.least_bytes
        )
    return (
        unused >= POLICY.least_unused
        and record.reserved_bytes >= POLICY.least_full * record.capacity_bytes
    )


def _failed_in_vain(record: MemoryRecord) -> bool:
    """Memory ran out, and the bytes were there, in pieces."""
    return record.oom_bytes is not None and (_oom_free(record) or 0) >= record.oom_bytes > 0


def _failed_words(record: MemoryRecord) -> str:
    free = _oom_free(record)
    assert record.oom_bytes is not None and free is not None
    return (
        f"memory ran out for {record.oom_bytes / 1e9:.2f} GB with {free / 1e9:.2f} GB free, in "
        "pieces too small"
    )


def _oom_free(record: MemoryRecord) -> int | None:
    """What anybody could have had: pools of their own serve nobody else."""
    if record.oom_free_bytes is None:
        return None
    return max(0, record.oom_free_bytes - (record.pool_free_bytes or 0))


def _unused(record: MemoryRecord) -> float:
    """Share of the reserved bytes that is not used: at the peak of tensors, or at the most
    reserved, when no more than that peak can have been in use. What pools of their own have free is
    taken for used; they are known as they were at the end.

    What pools of their own have free is taken for used; they are known as they were at the end.
    """
    used = record.peak_bytes + (record.pool_free_bytes or 0)
    recorded = [
        reserved for reserved in (record.reserved_bytes, record.reserved_at_peak_bytes) if reserved
    ]
    return max((max(0.0, 1 - used / reserved) for reserved in recorded), default=0.0)


def _evidence(record: MemoryRecord) -> list[str]:
    lines = []
    if record.free_at_peak_bytes is not None and record.largest_free_bytes is not None:
        largest = f"the largest block {record.largest_free_bytes / 1e9:.2f} GB"
        lines.append(
            f"{record.free_at_peak_bytes / 1e9:.2f} GB free at the peak of tensors, {largest}"
        )
    if record.split_bytes is not None:
        lines.append(
            f"up to {record.split_bytes / 1e9:.2f} GB of free blocks lay beside used ones and "
            "could not be given back"
        )
    if record.pool_free_bytes:
        lines.append(
            f"{record.pool_free_bytes / 1e9:.2f} GB more lie in pools of CUDA graphs, and are not "
            "counted here"
        )
    if record.capacity_bytes is None:
        lines.append(
            "how large the device is was not recorded: whether the unused memory is in anybody's "
            "way is not known"
        )
    return lines


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, advise=advise)
