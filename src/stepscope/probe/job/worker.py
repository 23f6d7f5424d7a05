"""The process that times cases: standard library and torch alone, in the job's own Python.

    python -c ... stepscope.probe.job.worker CASES OUT

CASES is a JSON file:
{"budget_s": 15, "device": null, "on": "NVIDIA H200", "cases": [{"index": 0, "call": {...}, "way":
"bf16"}]}. On another device than that nothing is timed, nor on one that is in use. With "compile":
true nothing is timed either: what is compiled is left in torch's cache for the process that times,
which keeps "reserved_s" of its budget for chains and what else is compiled.
OUT gets a line of JSON for each case as it is done, first one about the device. What fails says so
in its line; a device that is broken ends the process. It ends by itself when its budget is spent.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from stepscope.probe.job import host
from stepscope.probe.job.chains import chain_calls, compiled_chain
from stepscope.probe.job.operators import Call, Way, make_call
from stepscope.probe.job.tensors import Maker, UnbuildableError, made_bytes, stored_bytes
from stepscope.probe.job.timing import DeviceTimer, HostTimer, warm_up
from stepscope.protocol.json_text import json_text

GRACE_S = 10.0
"""Seconds after the budget, for the case that runs then; what takes longer is cut off."""
WARM_S = 0.5
ROOM = 0.7
"""Share of the free memory that a case may take."""
TIMES_STORED = 4.0
"""Bytes that a case takes while it runs, over those of its recorded tensors: outputs, workspace,
gradients."""
MAX_UNEVEN = 1.5
"""Times as long as the quickest of equal rounds of products; on a device of its own, 1.02. Two
processes that share one take turns."""
MAX_COPIES = 8
USUAL_CACHE_BYTES = 64 << 20
COMPILE_S = 4.0
"""What compiling takes at least with a cache that is cold: less is left for no case that does."""
BROKEN = ("CUDA error", "device-side assert", "an illegal memory access", "HIP error")


def main(arguments: list[str]) -> int:
    """Time the cases of a file, and write the lines."""
    begun = time.monotonic()
    cases_path, out_path = arguments
    with open(cases_path, encoding="utf-8") as file:
        asked = json.load(file)
    budget_s = float(asked["budget_s"])
    cutter = threading.Timer(budget_s + GRACE_S, os._exit, (3,))
    cutter.daemon = True
    cutter.start()
    try:
        with open(out_path, "a", encoding="utf-8") as out:
            return Worker(asked, out, begun + budget_s).run()
    finally:
        cutter.cancel()


class Worker:
    """One device, and what is written about it."""

    def __init__(self, asked: dict[str, Any], out: IO[str], deadline: float) -> None:
        import torch

        self.torch: Any = torch
        self._asked, self._out, self._deadline = asked, out, deadline
        has_gpu = bool(torch.cuda.is_available())
        self.device = asked.get("device") or ("cuda" if has_gpu else "cpu")
        self._timer: DeviceTimer | HostTimer = (
            DeviceTimer(torch) if self.device == "cuda" else HostTimer()
        )
        self._maker = Maker(torch, self.device)
        self._failed, self._is_broken = 0, False

    def run(self) -> int:
        """All cases in their order, as far as the budget goes."""
        about = describe(self.torch, self.device)
        if self._asked.get("compile"):
            return self._compile()
        uneven = warm_up(self.torch, self.device, WARM_S)
        wanted = self._asked.get("on", about["device"])
        if about["device"] != wanted:
            about["refused"] = f"the recording is of {wanted}, and this is {about['device']}"
        elif uneven > MAX_UNEVEN:
            about["refused"] = f"another process uses {about['device']}"
        self._say({"about": about})
        if "refused" in about:
            return 0
        cases = self._asked["cases"]
        chains = [case for case in cases if is_of_chain(case)]
        # Chains were compiled meanwhile; of the host each case is compiled here.
        compiling = [*chains, *(case for case in cases if compiles(case) and case not in chains)]
        plain = [case for case in cases if case not in compiling]
        reserved_s = float(self._asked.get("reserved_s", 0.0)) if compiling else 0.0
        groups = ((plain, self._deadline - reserved_s), (compiling, self._deadline))
        left = [self._time_until(*group) for group in groups]
        left[0] = self._time_until(left[0], self._deadline)
        if self._is_broken:
            return 4
        undone = len(left[0]) + len(left[1]) + self._failed
        self._say({"done": len(cases) - undone, "left": undone})
        return 0

    def _time_until(self, cases: list[dict[str, Any]], end: float) -> list[dict[str, Any]]:
        """Time cases until the end and return those for which there was no time."""
        left = []
        for case in cases:
            needed_s = COMPILE_S if compiles(case) else 0.0
            if self._is_broken or time.monotonic() + needed_s >= end:
                left.append(case)
                continue
            row: dict[str, Any] = {"index": case["index"]}
            try:
                row["time"] = self.time(case)
            except Exception as problem:  # noqa: BLE001 - whatever an operator raises is what is said of its case
                row["problem"] = first_line(problem)
                self._failed += 1
                self._is_broken = any(word in str(problem) for word in BROKEN)
            self._say(row)
        return left

    def _compile(self) -> int:
        """Run each once; what cannot be is said by the process that times it."""
        for case in self._asked["cases"]:
            if time.monotonic() >= self._deadline:
                break
            if is_of_chain(case) and compiles(case):
                with contextlib.suppress(Exception), self.torch.no_grad():
                    self.compiled(case["call"])
        return 0

    def compiled(self, call: dict[str, Any]) -> Callable[..., Any]:
        """A chain by torch.compile."""
        return compiled_chain(self._maker, call)

    def _calls(self, call: dict[str, Any], way: Way, copies: int) -> list[Call]:
        if call["op"] == "chain":
            run = self.compiled(call) if way.compiled else None
            return chain_calls(self._maker, call, copies, run=run)
        return [make_call(self._maker, call, way) for _ in range(copies)]

    def time(self, case: dict[str, Any]) -> dict[str, Any]:
        """One case; whatever an operator raises where it cannot be run."""
        call, way = case["call"], Way(case["way"])
        if call["op"].startswith("host:"):
            name = call["op"].removeprefix("host:")
            return host.time_case(self.device, name)
        size = stored_bytes(call)
        needed, free = TIMES_STORED * size + made_bytes(call), ROOM * self._free_bytes()
        if needed > free:
            raise UnbuildableError(f"it needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} are free")
        way.set_switches(self.torch)
        copies = self._copies(size, needed, free)
        calls = []
        try:
            context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
            if not call["op"].endswith("_backward") or call["op"].startswith("aten::"):
                context = self.torch.no_grad()
            with context:
                calls = self._calls(call, way, copies)
                return self._timer.time(calls)
        finally:
            calls.clear()
            if self.device == "cuda" and needed > 0.1 * free:
                gc.collect()
                self.torch.cuda.empty_cache()

    def _copies(self, size: int, needed: float, free: float) -> int:
        """Number of copies of its tensors for which they are larger than the cache together."""
        cache_bytes = USUAL_CACHE_BYTES
        if self.device == "cuda":
            properties = self.torch.cuda.get_device_properties(0)
            cache_bytes = int(getattr(properties, "L2_cache_size", 0)) or cache_bytes
        wanted = 2 * cache_bytes // max(size, 1) + 1
        return int(max(min(wanted, MAX_COPIES, free / max(needed, 1)), 1))

    def _free_bytes(self) -> float:
        if self.device == "cuda":
            cached = self.torch.cuda.memory_reserved() - self.torch.cuda.memory_allocated()
            return float(self.torch.cuda.mem_get_info(0)[0]) + float(cached)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        return 1e9

    def _say(self, row: dict[str, Any]) -> None:
        self._out.write(json_text(row) + "\n")
        self._out.flush()


def is_of_chain(case: dict[str, Any]) -> bool:
    """Whether it is timed beside what is compiled."""
    return bool(case["call"]["op"] == "chain")


def compiles(case: dict[str, Any]) -> bool:
    """Whether torch.compile is a part of it."""
    return Way(case["way"]).compiled or case["call"]["op"].startswith(("host:comp", "host:capt"))


def describe(torch: Any, device: str) -> dict[str, Any]:
    """The device and the torch that was measured with."""
    about: dict[str, Any] = {"torch": str(torch.__version__), "kind": device}
    if device == "cuda":
        about["device"] = str(torch.cuda.get_device_name(0))
        about["runtime"] = str(torch.version.cuda or torch.version.hip or "")
        about["cudnn"] = torch.backends.cudnn.version()
    else:
        about["device"] = cpu_name()
        about["threads"] = int(torch.get_num_threads())
    return about


def cpu_name() -> str:
    """The processor's model."""
    with (
        contextlib.suppress(OSError),
        open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()[:100]
    return "cpu"


def first_line(problem: BaseException) -> str:
    """What an error says, in a line."""
    lines = str(problem).strip().splitlines()
    return (lines[0] if lines else type(problem).__name__)[:200]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
