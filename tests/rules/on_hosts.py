"""Steps of one rank of several without a device, whose gradients gloo exchanges."""

from __future__ import annotations

from stepscope.core.trace import CollectiveArgs, Trace
from tests.tracing import Event, mark, op, trace_of

MS = 1_000_000
SENT = CollectiveArgs(
    name="allreduce",
    group=None,
    description=None,
    ranks=None,
    group_size=2,
    dtype="Float",
    in_elements=1_000_000,
    out_elements=1_000_000,
    in_split=None,
    out_split=None,
    sequence=None,
)


def on_hosts(*exchanged: bool, messages: int = 1) -> Trace:
    """Four steps of one rank without a device: each micro-batch takes 4 ms, and 8 ms more for each
    message of its gradients, where they are handed over and waited for; the update takes 1 ms."""
    events: list[Event] = []
    now = 0
    for step in range(4):
        began = now
        for each in exchanged:
            events.append(op("aten::addmm", now, now + 2 * MS, sequence=1))
            node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            events.append(op(node, now + 2 * MS, now + 4 * MS, sequence=1, fwd_thread=1))
            now += 4 * MS
            for more in range(messages if each else 0):
                if more:
                    events.append(op(node, now, now + MS, sequence=1, fwd_thread=1))
                    now += MS
                events.append(op("c10d::allreduce_", now - MS // 2, now, collective=SENT))
                begun = now - MS // 4
                events.append(
                    mark("gloo:all_reduce", begun, now + 8 * MS, thread="worker", collective=SENT)
                )
                now += 8 * MS + 1000
        events.append(op("aten::add_", now, now + MS))
        now += MS
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    return trace_of(*events)
