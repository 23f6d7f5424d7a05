"""Pinned copies run on the stream of the computation, which waits for them.

What it sees: `Memcpy HtoD (Pinned -> Device)` on a stream that also runs kernels. Copies from
memory that is not pinned are pageable-copy's fault; where they would still stand in the way once
they are pinned, both fixes together are told here.

Why it costs: a stream does one thing after the other. The device's copy engine could bring the next
batch while this one is being computed, but on the same stream the kernels wait until the bytes are
there.

Evidence it needs: the copies in the trace, and a device that is busy: where the host holds the step
up, it gives nothing.

What to do: prefetch one batch ahead on a side stream: `batch.to(device, non_blocking=True)` under
`torch.cuda.stream(side)`, then `current_stream().wait_stream(side)` and
`batch.record_stream(current_stream())` before use. Copy smaller: uint8 images, normalised on the
device, are a quarter of float32.

Example: 154 MB of pinned images took 2.8 of each 27.5 ms step, in the way.
"""

from __future__ import annotations

import re

from msgspec import Struct

from stepscope.analyses.grouping import distinct, is_among
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool, Kind
from stepscope.replay.changes import on_own_stream
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.pcie_copies import (
    PAGEABLE_TO_DEVICE,
    PINNED_TO_DEVICE,
    copy_tasks,
    per_step,
    pinned_bytes_per_s,
)
from stepscope.rules.transfer.pageable_copy import pinned

CODE = "unoverlapped-copy"
BOUND = "transfer"
PREFETCH = "copy the next batch on a side stream during the step (wait_stream, record_stream)"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Share of the step spent in such copies below which nothing is reported."""
    worth: float = 1.02
    """Times what pinning gives, from which a stream of their own is worth a word."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """The copies on a stream of their own, asked for a step ahead."""
    tasks = _in_the_way(case, PINNED_TO_DEVICE)
    copied_ns = per_step(case.graph, float(case.graph.task_ns[tasks].sum()))
    if copied_ns < POLICY.least_share * case.step_interval_ns:
        return _not_yet_pinned(case)
    return Proposal(
        summary=f"Pinned copies stand in the computation's way: {copied_ns / 1e6:.1f} ms a step on "
        "its own stream.",
        action=f"send uint8, not float32, and convert on the device; {PREFETCH}",
        evidence=(
            (
                f"{per_step(case.graph, float(tasks.sum())):.0f} pinned copies a step on a stream "
                "that runs kernels"
            ),
        ),
        events=case.graph.task_event[tasks],
        change=lambda graph: on_own_stream(graph, tasks, early=True),
        cautious=lambda graph: on_own_stream(graph, tasks, early=False),
    )


def _in_the_way(case: Case, copies: re.Pattern[str]) -> Bool:
    graph = case.graph
    kernels = case.context.trace.kind[graph.task_event] == Kind.KERNEL
    return copy_tasks(case, copies) & is_among(
        graph.task_stream, distinct(graph.task_stream[kernels])
    )


def _not_yet_pinned(case: Case) -> Proposal | None:
    """What a stream of their own gives pageable copies beyond pinning them."""
    graph, tasks = case.graph, _in_the_way(case, PAGEABLE_TO_DEVICE)
    if not tasks.any():
        return None
    on_their_stream = pinned(case, tasks, pinned_bytes_per_s(case))
    likely = on_their_stream(graph)
    ahead = on_own_stream(likely, tasks, early=True)
    if case.speedup(ahead) < POLICY.worth * case.speedup(likely):
        return None
    copied_ns = per_step(graph, float(likely.task_ns[tasks].sum()))
    return Proposal(
        summary="Pinned, the copies would still stand in the computation's way: "
        f"{copied_ns / 1e6:.1f} ms a step on its own stream.",
        action=f"pin the batches (pageable-copy), and {PREFETCH}",
        evidence=(
            (
                f"{per_step(graph, float(tasks.sum())):.0f} pageable copies a step on a stream "
                "that runs kernels"
            ),
        ),
        events=graph.task_event[tasks],
        change=lambda graph: on_own_stream(on_their_stream(graph), tasks, early=True),
        cautious=on_their_stream,
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, includes=("pageable-copy",))
