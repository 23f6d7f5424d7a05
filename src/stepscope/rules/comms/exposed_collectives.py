"""Collectives overlap with no compute, and the step waits for their bytes.

What it sees: time in which a collective moves bytes (all ranks have arrived) and no kernel
computes. Waiting for a late rank is not counted: that is imbalance.

Why it costs: the wire and the compute units can work at the same time. What is not overlapped adds
to the step.

Evidence it needs: NCCL / RCCL kernels in the trace; traces of several ranks tell waiting from
moving.

What to do: let the exchange begin earlier and run beside the backward pass (DDP's buckets with
gradient_as_bucket_view=True, FSDP's prefetch); fewer bytes (bf16 gradients, a compression hook);
more compute per exchange (a larger batch, accumulation with no_sync). Where most of it is sends of
a pipeline, more micro-batches or another schedule; where it is an expert exchange, two
micro-batches in turns; where layers are cut (tensor parallelism), sequence parallel and async TP,
or a lower degree inside one node. The gain is what perfect overlap would give: a step no longer
than its compute or its communication, the longer of them.

Example: a two-rank DDP step over a socket spent 114 of 121 ms in all-reduces; overlap hides no more
than the 6 ms of compute.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.core.trace import NONE, Bool
from stepscope.rules.job_case import JobCase, JobProposal, with_moving_ns
from stepscope.rules.rule import Rule

CODE = "exposed-collectives"
BOUND = "comms"
MIN_SHARE = 0.02
"""Share of the step in exposed collectives below which nothing is reported."""
GRADIENTS = (
    "Overlap them: gradient_as_bucket_view=True and DDP's default buckets, FSDP's prefetch; send "
    "fewer bytes (bf16 gradients); or more compute per exchange (larger batch, accumulation with "
    "no_sync)"
)
PIPELINE = (
    "Send beside compute: more micro-batches, an interleaved or zero-bubble schedule "
    "(torch.distributed.pipelining), isend and irecv posted before the work they go beside; "
    "neighbouring stages inside a node"
)
EXPERTS = (
    "Exchange tokens beside compute: two micro-batches in turns, or shared experts, while the "
    "all-to-all runs; expert groups inside a node; fewer bytes (bf16 or fp8 tokens, a lower "
    "capacity factor)"
)
SHARDS = (
    "Overlap them: FSDP's prefetch (set_modules_to_forward_prefetch, backward_prefetch), "
    "reshard_after_forward=False where memory allows, larger groups of layers; for tensor "
    "parallelism sequence parallel and async TP (torch._inductor.config._micro_pipeline_tp), or a "
    "lower degree"
)
OF_KIND = {
    **dict.fromkeys(("send", "recv", "sendrecv"), PIPELINE),
    **dict.fromkeys(("all_to_all",), EXPERTS),
    **dict.fromkeys(("all_gather", "reduce_scatter"), SHARDS),
}
"""Advice by the collective whose time it is about; any other is treated as for gradients."""


def propose_job(job: JobCase) -> JobProposal | None:
    """Propose that as much of the moving is gone as there is compute to hide it behind."""
    exposed = _exposed_ms(job)
    if exposed * 1e6 < MIN_SHARE * job.step_interval_ns:
        return None
    masks = [
        job.tasks(index, np.ones(len(records), np.bool_))
        for index, records in enumerate(job.rank_records)
    ]
    moving, room = _moving_ms(job, masks), _room_ms(job)
    hidden = min(exposed, room)
    if moving <= 0 or hidden <= 0:
        return None
    left = max(1.0 - hidden / moving, 0.0)
    return JobProposal(
        summary=f"Collectives {_doing(job)} for {exposed:.1f} ms of a step with no kernel running.",
        action=_action(job),
        evidence=(
            f"{moving:.1f} ms a step of moving bytes, {exposed:.1f} ms of it exposed",
            (
                f"{room:.1f} ms of compute a step overlap with no collective yet: so much could be "
                "hidden"
            ),
        ),
        change=lambda job_graph: with_moving_ns(job_graph, masks, lambda ns: ns * left),
        cautious=lambda job_graph: with_moving_ns(job_graph, masks, lambda ns: ns * (1 + left) / 2),
    )


def _action(job: JobCase) -> str:
    """Action for what most of the time in collectives is spent on."""
    spent: Counter[str] = Counter()
    for records in job.rank_records:
        took = (records.end_ns - records.start_ns).tolist()
        for kind, ns in zip(records.kind.tolist(), took, strict=True):
            spent[OF_KIND.get(records.kinds[kind].op, GRADIENTS)] += ns
    return max(spent, key=lambda action: spent[action], default=GRADIENTS)


def _doing(job: JobCase) -> str:
    """Words for what they surely do: one rank's trace cannot tell moving from waiting."""
    split = all(
        case.facts.partition is not None and case.facts.partition.waits_split for case in job.cases
    )
    return "move bytes" if split else "move bytes or wait for other ranks"


def _moving_ms(job: JobCase, masks: list[Bool]) -> float:
    """Moving bytes a step, the median over the ranks."""
    values = []
    for part, mask in zip(job.job_graph.parts, masks, strict=True):
        shared = part.shared[mask & (part.shared != NONE)]
        own = part.graph.task_ns[mask & (part.shared == NONE)].sum()
        values.append(
            (float(job.job_graph.moving_ns[shared].sum()) + float(own))
            / max(part.graph.num_steps, 1)
            / 1e6
        )
    return float(np.median(values)) if values else 0.0


def _room_ms(job: JobCase) -> float:
    """Compute a step that overlaps with no collective, the median over the ranks."""
    values = []
    for case in job.cases:
        steps, parts = case.facts.steps, case.facts.typical_parts_ns
        hidden = steps.typical(case.facts.comms_hidden_ns)
        values.append(0.0 if parts is None else max(parts["compute"] - (hidden or 0.0), 0.0) / 1e6)
    return float(np.median(values)) if values else 0.0


def _exposed_ms(job: JobCase) -> float:
    """Exposed moving of bytes a step, the median over the ranks."""
    values = []
    for case in job.cases:
        parts = case.facts.typical_parts_ns
        values.append(0.0 if parts is None else parts["comms_transfer"] / 1e6)
    return float(np.median(values)) if values else 0.0


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
