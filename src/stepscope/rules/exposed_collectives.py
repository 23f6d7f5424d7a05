"""Collectives run with no compute beside them, and the step waits for their bytes.

What it sees: time in which a collective moves bytes (all ranks have arrived) and no kernel computes. Waiting for a late rank is
not counted: that is imbalance.

Why it costs: the wire and the compute units can work at the same time. What is not overlapped adds to the step.

Evidence it needs: NCCL / RCCL kernels in the trace; traces of several ranks tell waiting from moving.

What to do: let the exchange begin earlier and run beside the backward pass (DDP's buckets with gradient_as_bucket_view=True,
FSDP's prefetch); fewer bytes (bf16 gradients, a compression hook); more compute per exchange (a larger batch, accumulation with
no_sync). The gain is what perfect overlap would give: a step no longer than its compute or its communication, the longer of them.

Example: a two-rank DDP step over a socket spent 114 of 121 ms in all-reduces; overlap hides no more than the 6 ms of compute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.core.trace import NONE, Bool
from stepscope.replay.graph import Graph
from stepscope.replay.team import with_graphs
from stepscope.replay.together import Team
from stepscope.rules.crew import Crew, TeamProposal

CODE = "exposed-collectives"
BOUND = "comms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    least_share: float = 0.02
    """Of the step in exposed collectives below which there is nothing to say."""


POLICY = Policy()


def propose_team(crew: Crew) -> TeamProposal | None:
    """Nobody waits for a collective but the next one, and the step's end."""
    exposed = _exposed_ms(crew)
    if exposed * 1e6 < POLICY.least_share * crew.pitch_ns:
        return None
    masks = [crew.tasks(place, np.ones(len(ledger), np.bool_)) for place, ledger in enumerate(crew.ledgers)]
    total = float(sum(float(part.graph.task_ns[mask].sum()) for part, mask in zip(crew.team.parts, masks, strict=True)))
    per_step = total / sum(part.graph.num_steps for part in crew.team.parts) / 1e6
    return TeamProposal(
        code=CODE,
        bound=BOUND,
        summary=f"Collectives run alone for {exposed:.1f} ms of a step.",
        action="Overlap them: gradient_as_bucket_view=True and DDP's default buckets, FSDP's prefetch; send fewer bytes (bf16"
        " gradients); or more compute per exchange (larger batch, accumulation with no_sync)",
        evidence=(f"{per_step:.1f} ms a step in collectives, {exposed:.1f} ms of it with no kernel beside them",),
        ranks=crew.ranks,
        change=lambda team: _overlapped(team, masks),
        cautious=lambda team: team,
    )


def _exposed_ms(crew: Crew) -> float:
    """Exposed moving of bytes a step, in the middle over the ranks."""
    values = []
    for case in crew.cases:
        parts = case.facts.typical_parts_ns
        values.append(0.0 if parts is None else parts["comms_transfer"] / 1e6)
    return float(np.median(values)) if values else 0.0


def _overlapped(team: Team, masks: list[Bool]) -> Team:
    return with_graphs(team, [unhooked(part.graph, mask) for part, mask in zip(team.parts, masks, strict=True)])


def unhooked(graph: Graph, mask: Bool) -> Graph:
    """Neither the host nor a task of another kind waits for the masked tasks."""
    after, wait = graph.task_after, graph.call_wait
    freed = (after != NONE) & mask[np.maximum(after, 0)] & ~mask
    return replace(
        graph,
        task_after=np.where(freed, NONE, after),
        call_wait=np.where((wait != NONE) & mask[np.maximum(wait, 0)], NONE, wait),
    )
