"""A host and a device that write their own trace: `run.launch(us)`, `run.copy(...)`,
`run.fetch(...)`, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.analyses.rank_context import build_context
from stepscope.core.diagnosis import Finding
from stepscope.core.trace import DeviceProperties, MemoryEvents, TraceMeta
from stepscope.hardware.lookup import find_spec_by_key
from stepscope.rules.case import Case, case_of
from stepscope.rules.judge import Judgement
from tests.rules.judging import judge
from tests.tracing import Event, call, copy, kernel, mark, op, trace_of

US = 1_000
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
SERIAL = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
PINNED = "Memcpy HtoD (Pinned -> Device)"
TO_HOST = "Memcpy DtoH (Device -> Pinned)"


@dataclass
class Run:
    """Times in microseconds in, nanoseconds in the trace; one stream, number 7."""

    now: int = 0
    free: int = 0
    events: list[Event] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    launched: int = 0

    def step(self) -> None:
        """A new step begins here."""
        self.steps.append(self.now)

    def host(self, us: int) -> None:
        """The host works without launching anything."""
        self.now += us

    def fetch(self, us: int, name: str = WORKERS) -> None:
        self._mark(name, us)

    def launch(self, us: int, host_us: int = 10) -> None:
        """A kernel of `us`, launched in `host_us`."""
        self._launch("cudaLaunchKernel", host_us)
        start = max(self.now + 4, self.free + 1)
        self.free = start + us
        self.events.append(
            kernel("ampere_sgemm_128x64_nn", start * US, self.free * US, self.launched)
        )
        self.now += host_us

    def copy(
        self, kind: str, size: int, us: int, *, host_us: int = 10, staged: bool = False
    ) -> None:
        """A copy in `us`; a staged one holds the host until just before it is done."""
        start = max(self.now + 4, self.free + 1)
        self.free = start + us
        held = self.free - self.now - 1 if staged else host_us
        self._launch("cudaMemcpyAsync", held, operator="aten::copy_")
        self.events.append(copy(kind, start * US, self.free * US, self.launched, size=size))
        self.now += held

    def sync(self) -> None:
        until = max(self.now, self.free) + 5
        self.events.append(call("cudaStreamSynchronize", self.now * US, until * US))
        self.now = until

    def _mark(self, name: str, us: int) -> None:
        self.events.append(mark(name, self.now * US, (self.now + us) * US))
        self.now += us

    def _launch(self, name: str, us: int, operator: str = "aten::mm") -> None:
        self.launched += 1
        self.events.append(op(operator, self.now * US, (self.now + us) * US))
        self.events.append(call(name, self.now * US + 1, (self.now + us) * US - 1, self.launched))

    def case(self, memory: MemoryEvents | None = None) -> Case:
        """As the rules see it, on an H200."""
        ends = [*self.steps[1:], self.now + 1]
        marks = [
            mark(f"ProfilerStep#{i}", a * US, b * US - 1)
            for i, (a, b) in enumerate(zip(self.steps, ends, strict=True))
        ]
        device = DeviceProperties(
            index=0,
            name="NVIDIA H200",
            memory_bytes=140 * 10**9,
            num_sms=132,
            compute_capability=(9, 0),
            warp_size=32,
        )
        trace = trace_of(*marks, *self.events, meta=TraceMeta(path="built", devices=(device,)))
        return case_of(
            build_context(replace(trace, memory=memory), find_spec_by_key("h200-sxm")), 0, None
        )

    def judged(self, memory: MemoryEvents | None = None) -> Judgement:
        return judge(self.case(memory))

    def finding(self, code: str) -> Finding | None:
        return next((finding for finding in self.judged().findings if finding.code == code), None)

    def gain(self, code: str) -> float:
        """What the finding promises; 1.0 when there is none."""
        finding = self.finding(code)
        return 1.0 if finding is None else finding.predicted_speedup


def allocator(times_us: list[int], allocated: list[int], reserved: list[int]) -> MemoryEvents:
    """The allocator's events on the device."""
    n = len(times_us)
    return MemoryEvents(
        time_ns=np.array(times_us, np.int64) * US,
        size_bytes=np.zeros(n, np.int64),
        address=np.zeros(n, np.int64),
        allocated_bytes=np.array(allocated, np.int64),
        reserved_bytes=np.array(reserved, np.int64),
        device_type=np.ones(n, np.int16),
        device=np.zeros(n, np.int16),
    )
