"""Steps of one rank of several without a device, whose gradients gloo exchanges."""

from __future__ import annotations

from stepscope.core.trace import CollectiveArgs, OpInputs, Trace
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


def one_after_the_other(
    num: int, dims: str, *, after_update: bool, is_awaited: bool = True, inside: str | None = None
) -> Trace:
    """Four steps of one rank without a device: 8 ms of forward and backward, 2 ms of the optimizer,
    and after one or the other so many tensors summed over the ranks, each in 1 ms, for which the
    host waits or not."""
    events: list[Event] = []
    now = 0
    sizes = OpInputs(dims=dims, types='["float"]', strides=None, concrete=None)

    def exchange(now: int) -> int:
        began = now
        for _ in range(num):
            events.append(op("c10d::allreduce_", now, now + MS // 10))
            done = now + MS
            events.append(op("gloo:all_reduce", now + MS // 5, done, thread="worker", detail=sizes))
            now = done + 1_000 if is_awaited else now + MS // 10
            events.append(op("aten::div_", now, now + MS // 10))
            now += MS // 10
        if inside is not None:
            events.append(mark(inside, began - 1_000, now))
        return now

    for step in range(4):
        began = now
        events.append(op("aten::mm", now, now + 4 * MS))
        node = "autograd::engine::evaluate_function: MmBackward0"
        events.append(op(node, now + 4 * MS, now + 8 * MS, sequence=1, fwd_thread=1))
        now += 8 * MS
        now = now if after_update else exchange(now)
        events.append(op("aten::add_", now, now + 2 * MS))
        events.append(mark("Optimizer.step#SGD.step", now, now + 2 * MS))
        now += 2 * MS
        now = exchange(now) if after_update else now
        events.append(op("aten::randn", now, now + MS // 10))
        now += MS // 10
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    return trace_of(*events)
