"""Batches are copied from memory that is not pinned, and the host moves the bytes itself.

What it sees: `Memcpy HtoD (Pageable -> Device)` copies, the time the host is held inside their
calls, and the waits that follow in the same operator.

Why it costs: the device cannot read memory that may be paged out. The driver first waits for its
turn on the stream, then moves the bytes through a small pinned buffer, a chunk at a time; the host
launches nothing meanwhile and the device runs dry. A pinned copy runs at the link's rate and the
host goes on at once.

Evidence it needs: the copies in the trace (activities with CUDA), with their bytes.

What to do: `DataLoader(pin_memory=True)` and `batch.to(device, non_blocking=True)`; both are
needed. For tensors made by hand, allocate the buffer once with `pin_memory=True` and fill it:
pinning anew in every step copies the bytes once more.

Example: 154 MB of images a step, pageable at 9.6 GB/s, took 16 of 43 ms on the device and held the
host for 33; pinned they took 2.8 ms and the step 27.5.
"""

from __future__ import annotations

import numpy as np

from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool
from stepscope.replay.changes import Change, on_own_stream, with_part_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.pcie_copies import (
    PAGEABLE_TO_DEVICE,
    at_rate,
    copy_tasks,
    launching,
    per_step,
    pinned_bytes_per_s,
    sizes,
    without_blocking,
)

CODE = "pageable-copy"
BOUND = "transfer"
CAUTIOUS_SHARE = 0.6
"""Share of the link's rate where the trace has no pinned copy to read it off: a socket away, or a
link shared by two devices."""


def propose(case: Case) -> Proposal | Abstention | None:
    """The copies at pinned rate on the stream they are on, the host free of them."""
    tasks = copy_tasks(case, PAGEABLE_TO_DEVICE)
    if not tasks.any():
        return None
    graph, size = case.graph, sizes(case)
    calls = launching(graph, tasks)
    held_ms = per_step(graph, float((graph.call_end_ns - graph.call_start_ns)[calls].sum())) / 1e6
    copied_ms = per_step(graph, float(graph.task_ns[tasks].sum())) / 1e6
    moved = "bytes not recorded"
    if not np.isnan(size[tasks]).any():
        moved = f"{per_step(graph, float(size[tasks].sum())) / 1e6:.1f} MB"
    likely = pinned(case, tasks, pinned_bytes_per_s(case))
    return Proposal(
        summary=f"Copies from memory that is not pinned: {copied_ms:.1f} ms a step on the device, "
        "the host busy feeding them.",
        action="DataLoader(pin_memory=True) and batch.to(device, non_blocking=True); reuse pinned "
        "buffers for tensors made by hand",
        evidence=(
            f"{per_step(graph, float(tasks.sum())):.0f} pageable copies a step, {moved}",
            f"from their calls to the next the host spends {held_ms:.1f} ms a step",
        ),
        events=graph.task_event[tasks],
        change=likely,
        cautious=pinned_each_step(case, tasks, pinned_bytes_per_s(case, CAUTIOUS_SHARE)),
        hopeful=lambda graph: on_own_stream(likely(graph), tasks, early=True),
    )


def pinned(case: Case, tasks: Bool, bytes_per_s: float | None) -> Change:
    """The masked copies from pinned memory."""

    def change(graph: Graph) -> Graph:
        return at_rate(case, without_blocking(case, graph, tasks), tasks, bytes_per_s)

    return change


def pinned_each_step(case: Case, tasks: Bool, bytes_per_s: float | None) -> Change:
    """The same, but the host itself moves the bytes into pinned memory, at the rate at which it fed
    them to the driver."""

    def change(graph: Graph) -> Graph:
        moving = np.add.reduceat(
            np.append(np.where(tasks, graph.task_ns, 0.0), 0.0), graph.call_first[:-1]
        )
        moving = np.where(np.diff(graph.call_first) > 0, moving, 0.0)
        freed = at_rate(case, without_blocking(case, graph, tasks), tasks, bytes_per_s)
        feeding = np.where(
            launching(graph, tasks),
            np.minimum(graph.call_parts["transfer"], moving),
            freed.call_parts["transfer"],
        )
        return with_part_ns(freed, "transfer", feeding)

    return change


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
