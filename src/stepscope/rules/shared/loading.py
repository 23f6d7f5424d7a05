"""The input loader: its calls, the time per step in them, and what more workers leave of it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.loader import FETCH_NS, MESSAGE_NS, TENSOR_NS
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.core.trace import NONE, Float64, Int64
from stepscope.replay.changes import with_part_ns
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import play
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.pcie_copies import TO_DEVICE, copy_tasks, per_step, sizes

SEND_NS_PER_BYTE = 0.4
"""Of the worker: each page of shared memory is new to it (0.5 to 0.7 ms a megabyte of collated
batches on that ARM core, at most 0.3 on the x86 host: one worker of a board's mnasnet_serial)."""
TAKE_NS_PER_BYTE = 0.1
"""Of the training process, where no thread that pins does it."""
BISECTIONS = 8


class Handover(Struct, frozen=True, kw_only=True):
    """What batches of a step cost that come from other processes, beside making them."""

    fetch_ns: float
    """Of the training process."""
    send_ns: float
    """Of the workers."""


@once_a_case
def handover(case: Case) -> Handover:
    """By the tensors of a batch and their bytes: as a run recorded them, else what is copied to the
    device in a step."""
    loader = None if case.metadata is None else case.metadata.loader
    steps = None if case.metadata is None else case.metadata.steps
    num_batches = (None if steps is None else steps.num_batches) or 1.0
    if loader is None or loader.batch_tensors is None or loader.batch_bytes is None:
        return Handover(fetch_ns=FETCH_NS, send_ns=SEND_NS_PER_BYTE * _copied_bytes(case))
    each_ns = MESSAGE_NS + TENSOR_NS * loader.batch_tensors
    taken_ns = TAKE_NS_PER_BYTE * loader.batch_bytes if case.graph.on_host else 0.0
    return Handover(
        fetch_ns=num_batches * (each_ns + taken_ns),
        send_ns=num_batches * (each_ns + SEND_NS_PER_BYTE * loader.batch_bytes),
    )


def _copied_bytes(case: Case) -> float:
    if case.graph.on_host:
        return 0.0
    copied = sizes(case)[copy_tasks(case, TO_DEVICE)]
    return per_step(case.graph, float(np.nansum(copied)))


def loading_frames(case: Case, calls: Int64) -> tuple[Int64, Float64]:
    """What the user's code does in the loader's calls: its outermost frames there, and the calls
    with what time is left."""
    trace, parent, stacks = case.context.trace, case.context.links.parent, case.stacks
    own = trace.dur_ns.astype(np.float64)
    if stacks is None or len(calls) == 0:
        return calls, own[calls]
    called = np.zeros(len(trace), np.bool_)
    called[calls] = True
    frames = np.flatnonzero(stacks.user)
    inside = ancestor_with(parent, frames, called)
    outermost = ancestor_with(parent, parent[frames], stacks.user | called) == inside
    frames, inside = frames[(inside != NONE) & outermost], inside[(inside != NONE) & outermost]
    np.subtract.at(own, inside, trace.dur_ns[frames])
    events = np.concatenate([frames, calls])
    return events, np.maximum(own[events], 0.0)


def input_per_step(graph: Graph) -> Float64:
    """The host's time in the loader, per step that has any.

    A batch is fetched after the last call of the step before, and the first fetch may lie before
    the first call: a step at either end of the recording can be without.
    """
    inside = graph.call_step >= 0
    totals = np.bincount(
        graph.call_step[inside], graph.call_parts["input"][inside], minlength=graph.num_steps
    )
    return totals[totals > 0].astype(np.float64)


def with_input(graph: Graph, factor: float, least_ns: float = 0.0) -> Graph:
    """The loader's calls take `factor` of their time, and `least_ns` (or what they take now, if
    that is less) at least."""
    part = graph.call_parts["input"]
    return with_part_ns(graph, "input", np.maximum(part * factor, np.minimum(part, least_ns)))


def loaded_every(graph: Graph, batch_ns: float, fetch_ns: float = FETCH_NS) -> Graph:
    """Batches come from beside the step, one every `batch_ns`: the step waits only if it is done
    before that."""
    free = with_input(graph, 0.0, fetch_ns)
    if play(free).step_interval_ns >= batch_ns:
        return free
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if play(with_input(graph, middle, fetch_ns)).step_interval_ns > batch_ns:
            high = middle
        else:
            low = middle
    return with_input(graph, high, fetch_ns)
