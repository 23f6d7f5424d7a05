"""Steps of a training run on an H200, built by hand: `case_of_steps(launch(...), ...)` repeats
them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import DeviceProperties, OpInputs, TraceMeta
from stepscope.hardware.lookup import find_spec
from stepscope.rules.case import Case, case_of
from tests import tracing
from tests.tracing import call, kernel, mark, op, trace_of

H200 = DeviceProperties(
    index=0,
    name="NVIDIA H200",
    memory_bytes=150109880320,
    num_sms=132,
    compute_capability=(9, 0),
    warp_size=32,
)
US = 1000


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An operator with one kernel."""

    op: str
    kernel: str
    us: float
    detail: OpInputs | None
    sequence: int = -1
    node: str | None = None
    """The backward node it runs in; `again` when it is a forward operator run again there."""
    again: bool = False
    within: str | None = None
    """The operator that it is a part of."""


def launch(
    name: str,
    kernel: str,
    us: float,
    dims: str | None = None,
    types: str | None = None,
    *,
    strides: str | None = None,
    concrete: str | None = None,
    sequence: int = -1,
    node: str | None = None,
    again: bool = False,
    within: str | None = None,
) -> Launch:
    detail = (
        None
        if dims is None
        else OpInputs(dims=dims, types=types, strides=strides, concrete=concrete)
    )
    return Launch(
        op=name,
        kernel=kernel,
        us=us,
        detail=detail,
        sequence=sequence,
        node=node,
        again=again,
        within=within,
    )


def recomputed(*launches: Launch) -> list[Launch]:
    """Forward operators, and the same again in a backward node."""
    first = [replace(one, sequence=5) for one in launches]
    again = [replace(one, sequence=9, node="MmBackward0", again=True) for one in launches]
    return first + again


def case_of_steps(
    *launches: Launch, host_us: float = 1.0, shapes: bool = True, steps: int = 4
) -> Case:
    """The case of these launches, repeated; the host takes `host_us` for each."""
    events: list[tracing.Event] = []
    host, device, number = 0, 0, 0
    each = max(int(host_us * US), 100)
    for step in range(steps):
        began = host
        for one in launches:
            number += 1
            start, end = host, host + each
            host = end
            if one.node is not None:
                events.append(
                    op(f"autograd::engine::evaluate_function: {one.node}", start, end, sequence=-1)
                )
                start, end = start + 2, end - 2
                events.append(
                    op(
                        one.node,
                        start,
                        end,
                        sequence=one.sequence if not one.again else -1,
                        fwd_thread=1,
                    )
                )
                start, end = start + 2, end - 2
            if one.within is not None:
                events.append(op(one.within, start, end))
                start, end = start + 2, end - 2
            seq = one.sequence if one.node is None or one.again else -1
            events.append(op(one.op, start, end, detail=one.detail, sequence=seq, fwd_thread=0))
            events.append(call("cudaLaunchKernel", start + 10, end - 10, number))
            device = max(device, start + min(each, 3 * US))
            events.append(kernel(one.kernel, device, device + int(one.us * US), number))
            device += int(one.us * US)
        events.append(mark(f"ProfilerStep#{step}", began, host + 1))
        host += 2
    meta = TraceMeta(path="built", devices=(H200,), has_shapes=shapes)
    trace = trace_of(*events, meta=meta)
    return case_of(build_context(trace, find_spec(H200)), 0, None)
