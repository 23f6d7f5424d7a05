"""Each step leaves more memory in use than the one before.

What it sees: the least bytes that tensors hold during each step, growing with every step by about
as much.

Why it costs: something keeps tensors of finished steps, often a loss with its whole graph. The run
gets to the device's limit after hours, and slows down before that.

Evidence it needs: the allocator's events (`profile_memory=True`) over three steps or more, after
the first few: the optimizer makes its state in the first. Or a memory snapshot of as many, which
also says which line made what is kept. Of the host's memory a run recorded by `stepscope run` has
samples, one a second: ten or more that rise to the end.

What to do: keep `loss.detach()` or `loss.item()`, never `loss`; empty lists of outputs and hooks;
`del` what the next step does not need.

Example: (for illustration, not measured) `losses.append(loss)` kept 40 MB a step; out of memory
after 1,400 steps.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.memory import MemoryRecord
from stepscope.core.run import RankMetadata, RunFacts
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.unrecorded import REASON, device_memory

CODE = "memory-growth"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    least_steps: int = 3
    """Two growths in a row, at least."""
    least_share: float = 1e-4
    """Share of the memory in use that it must grow by per step: smaller than that is rounding."""
    alike: float = 0.5
    """The smallest growth against the largest: what is kept every step is about the same every
    step."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Tell how much each step leaves behind; there is no step time in it."""
    memory = device_memory(case)
    if memory is None:
        return Abstention(code=CODE, reason=REASON, needs=case.recorder.with_memory)
    step = np.searchsorted(case.context.cut.host_start, memory.time_ns, side="right") - 1
    inside = step >= 0
    first = np.unique(step[inside], return_index=True)[1]
    if len(first) < POLICY.least_steps:
        return Abstention(
            code=CODE,
            reason="too few steps were recorded",
            needs=f"record {POLICY.least_steps} steps or more",
        )
    left = _left_behind(np.minimum.reduceat(memory.allocated[inside], first))
    if left is None:
        return None
    return Remark(
        code=CODE,
        text=f"each step leaves {left / 1e6:.1f} MB more in use than the one before: detach what "
        "is kept",
    )


def _left_behind(floors: np.ndarray) -> float | None:
    """Bytes a step leaves in use, where each leaves about as much; None where they do not."""
    growth = np.diff(floors)
    if (
        growth.min() < POLICY.least_share * floors[-1]
        or growth.min() < POLICY.alike * growth.max()
        or growth.min() <= 0
    ):
        return None
    return float(np.median(growth))


def advise(auxiliary: Auxiliary) -> Advice | None:
    """What memory snapshots say of it: how much each step leaves, and who made that."""
    for record in () if auxiliary.memory is None else auxiliary.memory.records:
        floors = np.array([step.floor_bytes for step in record.steps[1:]], dtype=float)
        left = _left_behind(floors) if len(floors) >= POLICY.least_steps else None
        if left is not None:
            return _advice(record, floors, left)
    return None


def _advice(record: MemoryRecord, floors: np.ndarray, left: float) -> Advice:
    least = ", ".join(f"{floor / 1e9:.2f} GB" for floor in floors[:8])
    evidence = [f"the least held in each step, after the first: {least}"]
    evidence += [
        f"{kept.frame} made {kept.size_bytes / 1e6:.1f} MB of it, in {kept.num_tensors} tensors"
        for kept in record.kept_frames[:3]
    ]
    if record.capacity_bytes is not None:
        room = max(0.0, record.capacity_bytes - record.peak_bytes)
        evidence.append(f"the device is full after {room / left:,.0f} more steps like these")
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"each step leaves {left / 1e6:.1f} MB more in use than the one before",
        action="keep loss.detach() or loss.item(), never loss; empty lists of outputs; del what "
        "the next step does not need",
        evidence=tuple(evidence),
        weight=min(1.0, float(floors[-1] - floors[0]) / record.peak_bytes)
        if record.peak_bytes
        else None,
        weight_of="the peak",
    )


def advise_run(run: RunFacts) -> Advice | None:
    """Memory of the host, by a run's own samples."""
    growing = [rank for rank in run.ranks if rank.growth is not None]
    if not growing:
        return None
    worst = max(growing, key=_grown_a_step)
    growth = worst.growth
    assert growth is not None
    seen = (
        f"rank {worst.rank}: {growth.first_bytes / 1e9:.2f} GB at step {growth.first_step}, "
        f"{growth.last_bytes / 1e9:.2f} GB at step {growth.last_step}, by {growth.num_samples} "
        "samples"
    )
    evidence = [seen]
    if worst.memory_available_bytes is not None:
        left = worst.memory_available_bytes / growth.bytes_per_step
        evidence.append(f"the machine is full after {left:,.0f} more steps like these")
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The process holds {growth.bytes_per_step / 1e6:.1f} MB more of the host's memory "
        "from step to step.",
        action="empty lists of losses, outputs and metrics (loss.item(), .cpu() copies); bounded "
        "caches in the dataset; tracemalloc or memray names the line",
        evidence=tuple(evidence),
        ranks=tuple(rank.rank for rank in growing) if len(growing) < len(run.ranks) else (),
    )


def _grown_a_step(rank: RankMetadata) -> float:
    return 0.0 if rank.growth is None else rank.growth.bytes_per_step


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose=propose,
    advise=advise,
    advise_run=advise_run,
)
