"""A made-up training process: it launches, waits and marks, and its events become a trace. Times in
microseconds."""

from __future__ import annotations

from typing import Any

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import Trace
from stepscope.rules.case import Case, case_of
from tests.tracing import Event, call, copy, kernel, mark, op, trace_of

US = 1000


class Recorder:
    """One host thread and one stream."""

    def __init__(self) -> None:
        self.now = 0
        self.free = 0
        self.events: list[Event] = []
        self.number = 0

    def work(self, us: float) -> None:
        self.now += int(us * US)

    def launch(
        self,
        name: str,
        *,
        kernel_us: float,
        host_us: float = 10,
        kernel_name: str | None = None,
        **more: Any,
    ) -> None:
        """An operator that takes the host `host_us` and launches one kernel half-way through."""
        self.number += 1
        at, end = self.now + int(host_us * US) // 2, self.now + int(host_us * US)
        begin = max(at + 4 * US, self.free + US)
        self.free = begin + int(kernel_us * US)
        self.events += [
            op(name, self.now, end, **more),
            call("cudaLaunchKernel", at, min(at + 5 * US, end), self.number),
            kernel(kernel_name or f"{name}_kernel", begin, self.free, self.number),
        ]
        self.now = end

    def item(self, **more: Any) -> None:
        """Read a number: a small copy, then a wait for it."""
        self.number += 1
        start = self.now
        begin = max(start + 6 * US, self.free + US)
        self.free = begin + US
        back = self.free + 2 * US
        self.events += [
            op("aten::item", start, back + US, **more),
            op("aten::_local_scalar_dense", start + 1, back + US - 1),
            call("cudaMemcpyAsync", start + 2 * US, start + 4 * US, self.number),
            copy("Memcpy DtoH (Device -> Pageable)", begin, self.free, self.number, size=4),
            call("cudaStreamSynchronize", start + 5 * US, back),
        ]
        self.now = back + US

    def span(self, name: str, start: int, *, kind: Any = mark) -> None:
        """A range from `start` until now."""
        self.events.append(kind(name, start, self.now))

    def step(self, number: int, start: int) -> None:
        self.span(f"ProfilerStep#{number}", start)
        self.now += 10

    @property
    def trace(self) -> Trace:
        return trace_of(*self.events)

    def case(self, step_ns: int | None = None) -> Case:
        return case_of(build_context(self.trace, None), 0, step_ns)


def gain(case: Case, said: object) -> float:
    """What the proposal gives; 1 when the rule said nothing."""
    change = getattr(said, "change", None)
    return 1.0 if change is None or case.unprofiled is None else case.speedup(change(case.graph))
