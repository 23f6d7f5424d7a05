"""nn.DataParallel copies the whole model to every device in every step.

What it sees: one process that drives several devices inside DataParallel.forward: parameters
broadcast, inputs scattered, outputs gathered, gradients reduced to the first device.

Why it costs: one Python thread per device takes turns at the interpreter's lock; the parameters
cross the links in every forward; the first device holds all outputs and updates alone while the
others wait.

Evidence it needs: DataParallel's mark (`ProfilerActivity.CPU`) and NCCL / RCCL kernels on several
devices of one trace.

What to do: DistributedDataParallel with one process per device (torchrun --nproc_per_node=...). The
gain is a range: from nothing to all of copying and reducing gone; DDP's own exchange overlaps with
backward, and its hosts no longer share a lock.

Example: with nn.DataParallel a model of 1 GB crosses to each other device in every forward, and its
gradients back in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct
from stepscope.core.trace import Bool
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import launched_inside

CODE = "data-parallel-module"
BOUND = "comms"
FORWARD = "DataParallel.forward"


class Policy(Struct, frozen=True, kw_only=True):
    ranges: tuple[str, ...] = (
        "Broadcast", "Scatter", "Gather", "BroadcastBackward", "ScatterBackward", "GatherBackward",
        "ReduceAddCoalesced",
    )  # fmt: skip
    """The autograd functions of torch.nn.parallel; their work is DataParallel's own."""
    kept: float = 0.5
    """Share of that work that the likely figure keeps: what DDP's exchange costs instead is not in
    the trace."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """Half of the copying gone, all of it hoped for, none of it sure."""
    masks = [_own_work(job, index) for index in range(len(job.cases))]
    if not any(mask.any() for mask in masks):
        return None
    trace = job.cases[0].context.trace
    devices = len(distinct(trace.device[trace.device_work]))
    busy = sum(
        float(part.graph.task_ns[mask].sum())
        for part, mask in zip(job.job_graph.parts, masks, strict=True)
    )
    per_step = busy / max(sum(part.graph.num_steps for part in job.job_graph.parts), 1) / 1e6
    return JobProposal(
        summary=f"nn.DataParallel drives {devices} devices from one process and copies the model "
        "to them in every step.",
        action="DistributedDataParallel, one process per device: torchrun --nproc_per_node=...",
        evidence=(
            (
                f"{per_step:.1f} ms a step of broadcasts, scatters, gathers and reductions over "
                f"{devices} devices"
            ),
        ),
        change=lambda job_graph: _shorter(job_graph, masks, POLICY.kept),
        cautious=lambda job_graph: job_graph,
        hopeful=lambda job_graph: _shorter(job_graph, masks, 0.0),
    )


def _own_work(job: JobCase, index: int) -> Bool:
    """Tasks of DataParallel's own functions, and the collectives of that process; none when it
    drives one device."""
    case = job.cases[index]
    trace, graph = case.context.trace, job.job_graph.parts[index].graph
    none = np.zeros(len(graph), np.bool_)
    if FORWARD not in trace.names or len(distinct(trace.device[trace.device_work])) < 2:
        return none
    assert case.kinds is not None
    return launched_inside(job, index, lambda name: name in POLICY.ranges) | case.kinds.comms


def _shorter(job_graph: JobGraph, masks: Sequence[Bool], share: float) -> JobGraph:
    """The masked tasks take `share` of their time."""
    graphs = [
        replace(part.graph, task_ns=np.where(mask, share * part.graph.task_ns, part.graph.task_ns))
        for part, mask in zip(job_graph.parts, masks, strict=True)
    ]
    return with_graphs(job_graph, graphs)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
