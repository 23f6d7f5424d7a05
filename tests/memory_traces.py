"""A trace with the allocator's events, as `profile_memory=True` records them: a model of one layer,
steps with a forward pass, a backward pass and AdamW."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.analyses.rank_context import RankContext, build_context
from stepscope.hardware.lookup import find_spec_by_key
from tests.builders import Event, event, kernel, read, trace_text

MB = 1 << 20
WEIGHTS, BASE = 64 * MB, 200 * MB
"""A weight of 4096 x 4096 floats; with two states of AdamW and 8 MiB of others."""
ACTIVATION, TEMPORARY, CAST, LOGITS = 96 * MB, 16 * MB, 32 * MB, 48 * MB
SHAPES: dict[str, Any] = {
    "Input Dims": [[4096, 4096]],
    "Input type": ["float"],
    "Input Strides": [[4096, 1]],
}


@dataclass
class MemoryTrace:
    now: float = 0.0
    held: int = BASE
    events: list[Event] = field(default_factory=list)
    address: int = 1
    open: dict[str, tuple[int, int]] = field(default_factory=dict)
    launched: int = 0
    busy_until: float = 0.0
    """The device; the host runs ahead of it."""
    update_us: float = 2.0
    """Of the optimizer's kernel."""
    optimizer: str = "AdamW"

    def alloc(self, name: str, size: int) -> None:
        self.address += 1
        self.open[name] = self.address, size
        self._memory(self.address, size)

    def free(self, name: str) -> None:
        address, size = self.open.pop(name)
        self._memory(address, -size)

    def _memory(self, address: int, size: int) -> None:
        self.now += 1
        self.held += size
        args = {
            "Bytes": size,
            "Addr": address,
            "Total Allocated": self.held,
            "Total Reserved": 600 * MB,
            "Device Type": 1,
            "Device Id": 0,
        }
        self.events.append(
            {
                "ph": "i",
                "s": "t",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 10,
                "tid": 20,
                "ts": self.now,
                "args": args,
            }
        )

    def op(
        self,
        name: str,
        *,
        cat: str = "cpu_op",
        launches: bool = True,
        kernel_us: float = 2.0,
        **args: object,
    ) -> Op:
        return Op(self, name, cat, launches, args, kernel_us)

    def step(self, number: int) -> None:
        with self.op(f"ProfilerStep#{number}", cat="user_annotation", launches=False):
            with self.op("nn.Module: Net_0", cat="user_annotation", launches=False):
                with self.op("aten::_to_copy", **SHAPES):
                    self.alloc("cast", CAST)
                with self.op("aten::mm"):
                    self.alloc("activation", ACTIVATION)
                with self.op("aten::gelu"):
                    self.alloc("temporary", TEMPORARY)
                with self.op("aten::add"):
                    self.free("temporary")
            with self.op("autograd::engine::evaluate_function: MmBackward0"):
                with self.op("aten::mul"):
                    self.alloc("grad_logits", LOGITS)
                with self.op("torch::autograd::AccumulateGrad", **SHAPES):
                    self.alloc("gradient", WEIGHTS)
                self.free("grad_logits")
                self.free("activation")
                self.free("cast")
            name = f"Optimizer.step#{self.optimizer}.step"
            with self.op(name, cat="user_annotation", launches=False):
                with self.op("aten::_foreach_add_", kernel_us=self.update_us):
                    self.alloc("update", TEMPORARY)
                self.free("update")
            with self.op("Optimizer.zero_grad#AdamW.zero_grad", cat="user_annotation"):
                self.free("gradient")
            self.now += 200

    def context(self, folder: Path) -> RankContext:
        text = trace_text(sorted(self.events, key=lambda entry: entry["ts"]))
        trace = read(folder / "memory.pt.trace.json", text)
        return build_context(trace, find_spec_by_key("h100-sxm"))


@dataclass
class Op:
    trace: MemoryTrace
    name: str
    cat: str
    launches: bool
    args: dict[str, object]
    kernel_us: float = 2.0
    began: float = 0.0

    def __enter__(self) -> None:
        self.trace.now += 1
        self.began = self.trace.now
        self.trace.now += 1

    def __exit__(self, *_: object) -> None:
        trace = self.trace
        if self.launches:
            trace.launched += 1
            args = {"correlation": trace.launched}
            trace.events.append(
                event(cat="cuda_runtime", name="cudaLaunchKernel", ts=trace.now, dur=1, args=args)
            )
            start = max(trace.now + 2, trace.busy_until)
            trace.events.append(kernel(trace.launched, start, self.kernel_us))
            trace.busy_until = start + self.kernel_us + 1
            trace.now += 4
        trace.now += 1
        trace.events.append(
            event(
                cat=self.cat,
                name=self.name,
                ts=self.began,
                dur=trace.now - self.began,
                args=self.args,
            )
        )


def steps(num: int = 3) -> MemoryTrace:
    made = MemoryTrace()
    for number in range(num):
        made.step(number)
    return made
