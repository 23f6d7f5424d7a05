"""Tensors go over PCIe to host memory and back in every step: offloaded optimizer or parameters.

What it sees: large copies to the host and back whose sizes pair up, step after step.

Why it costs: the bus is some hundred times slower than device memory (64 GB/s against 4,800 on an
H200), and an update on the host runs at the host's memory rate with the device idle. Offloading
buys memory with time; where the memory is not needed, the time is lost.

Evidence it needs: the copies in the trace, with their bytes. Whether all would fit on the device is
not in it: compare `torch.cuda.max_memory_allocated()` plus the offloaded bytes (12 per parameter
for Adam in fp32 with its master copy) with the device.

What to do: keep optimizer and parameters on the device when they fit (FSDP without `cpu_offload`,
ZeRO stage 2 or 3 without `offload_optimizer`); shard them over more ranks; when they do not fit,
pinned buffers and a side stream, so that copies run beside the backward pass.

Example: (for illustration, not measured) 1.3 GB of gradients out and of parameters back took 90 of
160 ms a step, the update on the host another 40.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import Change, without_tasks
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.pcie_copies import (
    TO_DEVICE,
    TO_HOST,
    copy_tasks,
    launching,
    per_step,
    sizes,
    without_blocking,
)

CODE = "host-offload"
BOUND = "transfer"

HOST_COLLECTIVE = re.compile(r"^gloo:")
"""Gradients that such a collective takes through host memory go out and come back too, and nothing
is offloaded."""


class Policy(Struct, frozen=True, kw_only=True):
    least_tensor_bytes: int = 64 << 10
    """Smaller ones (scalars, statistics) have the same size by chance."""
    least_bytes: int = 16 << 20
    """Bytes there and back, in a step: less is no model's state."""
    update_passes: float = 7.0
    """Passes over the parameters through device memory for Adam's update: reads p, g, m, v, writes
    p, m, v."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """The traffic and the host's update gone, the update at device memory rate; cautiously, the
    copies hidden and no more."""
    if matching(case.context.trace, HOST_COLLECTIVE).any():
        return None
    size = sizes(case)
    out, back = _pairs(size, copy_tasks(case, TO_HOST), copy_tasks(case, TO_DEVICE))
    moved = per_step(case.graph, float(size[out | back].sum()))
    if moved < POLICY.least_bytes:
        return None
    copied_ms = per_step(case.graph, float(case.graph.task_ns[out | back].sum())) / 1e6
    return Proposal(
        summary=f"{moved / 1e6:.0f} MB a step go to the host and come back: {copied_ms:.1f} ms of "
        "copies, and the work there.",
        action="turn the offload off if its state fits on the device (FSDP: no CPUOffloadPolicy / "
        "CPUOffload; DeepSpeed: offload_optimizer and offload_param device none); else from pinned "
        "memory (pin_memory=True) with non_blocking=True",
        evidence=(
            (
                f"{per_step(case.graph, float(out.sum())):.0f} copies out and as large ones back "
                "in a step"
            ),
            "whether they fit on the device is not in the trace",
        ),
        events=case.graph.task_event[out | back],
        change=_on_device(case, out, back),
        cautious=lambda graph: without_tasks(graph, out | back),
    )


def _pairs(size: Float64, out: Bool, back: Bool) -> tuple[Bool, Bool]:
    """The copies of sizes that go both ways about as often: masks of those out and those back."""
    large = size >= POLICY.least_tensor_bytes
    there = np.unique(size[out & large], return_counts=True)
    come = np.unique(size[back & large], return_counts=True)
    both, i, j = np.intersect1d(there[0], come[0], return_indices=True)
    often = np.minimum(there[1][i], come[1][j]) * 2 >= np.maximum(there[1][i], come[1][j])
    paired: Bool = large & np.isin(size, both[often])
    return out & paired, back & paired


def _on_device(case: Case, out: Bool, back: Bool) -> Change:
    roofs = case.context.roofs
    bandwidth = (
        None if roofs is None else roofs.spec.bandwidth_bytes_per_s.value * roofs.stream_share(1.0)
    )

    def change(graph: Graph) -> Graph:
        tasks = out | back
        freed = without_tasks(without_blocking(case, graph, tasks), tasks)
        updating = _work_between(graph, tasks)
        work = np.where(updating, 0.0, graph.call_parts["work"])
        lasting = freed.task_ns
        if bandwidth is not None and updating.any():
            lasting = np.where(back, sizes(case) * POLICY.update_passes / bandwidth * 1e9, lasting)
        return replace(freed, task_ns=lasting, call_parts=freed.call_parts | {"work": work})

    return change


def _work_between(graph: Graph, tasks: Bool) -> Bool:
    """The calls from one such copy to the next with nothing else launched between: there the host
    works on what came."""
    copies = launching(graph, tasks)
    launches = np.flatnonzero(np.diff(graph.call_first) > 0)
    calls = np.arange(len(graph.call_event))
    previous = launches[np.maximum(np.searchsorted(launches, calls, side="right") - 1, 0)]
    following = launches[
        np.minimum(np.searchsorted(launches, calls, side="right"), len(launches) - 1)
    ]
    between: Bool = (
        copies[previous] & copies[following] & (following != previous) & (graph.call_event != NONE)
    )
    return between


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
