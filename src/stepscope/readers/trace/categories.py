"""Which Kind each recorded category is.

The names are libkineto's activity types (ActivityType.h), present and past, for CUDA, ROCm, XPU,
HPU, MTIA and out-of-tree back ends, with those of two public forks of it (MLU, GCU). Whether a type
lies on the host or on the device follows PyTorch's `deviceTypeFromActivity`
(torch/csrc/profiler/kineto_shim.cpp) and the plugins that write it. A category that is not here
becomes Kind.OTHER and is counted by name; so does `mtia_insight`, of which nothing public says what
it measures.
"""

from __future__ import annotations

from stepscope.core.trace import Kind

KIND_OF_CATEGORY: dict[str, Kind] = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.MARK,
    "cpu_instant_event": Kind.MARK,
    # The XPU plugin writes these on the calling thread: the call, not the device's work for it.
    "collective_comm": Kind.MARK,
    "python_function": Kind.PYTHON,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "hip_driver": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "driver": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    # Gaudi's plugin writes kernels as `kernel` and everything else as this; libkineto calls it
    # host-side, PyTorch the device's.
    "hpu_op": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "glow_runtime": Kind.RUNTIME,
    "mlu_runtime": Kind.RUNTIME,
    "gcu_runtime": Kind.RUNTIME,
    "gcu_driver": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "mlu_memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "mlu_memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "cuda_event": Kind.SYNC,
    "xpu_sync": Kind.SYNC,
    "gcu_sync": Kind.SYNC,
    "gpu_user_annotation": Kind.DEVICE_MARK,
    "mlu_user_annotation": Kind.DEVICE_MARK,
    # Ranges the device's counters were read over.
    "cuda_profiler_range": Kind.DEVICE_MARK,
    "mlu_profiler_range": Kind.DEVICE_MARK,
    "gcu_profiler_range": Kind.DEVICE_MARK,
    "overhead": Kind.OVERHEAD,
    "trace": Kind.OVERHEAD,
    "dynamo_timed": Kind.COMPILE,
}
"""By lower-case category. `trace` is the profiler's own span over the whole recording."""

UNNAMED = "(no category)"

SILENT_PHASES = frozenset("stfMiIR")
"""Phases that carry no duration of their own: flow arrows, metadata, instants. Understood, and not
events of the timeline."""

OTHER_PHASES = {
    "C": "counter",
    "b": "async start",
    "e": "async end",
    "n": "async instant",
    "S": "async start",
    "T": "async step",
    "F": "async end",
    "p": "async step",
    "P": "sample",
    "N": "object",
    "O": "object",
    "D": "object",
    "V": "memory dump",
    "v": "memory dump",
    "c": "clock",
    "(": "context",
    ")": "context",
}
"""The trace format's phases that we do not use, with their meaning: counted under it."""


def kind_of_category(category: str) -> Kind:
    """The kind of a category, in whatever case the recorder wrote it."""
    return KIND_OF_CATEGORY.get(category.lower(), Kind.OTHER)


def phase_label(phase: str) -> str:
    """What to call a phase in a count."""
    if phase in OTHER_PHASES:
        return f"phase {phase} ({OTHER_PHASES[phase]})"
    return f"phase {phase[:32]!r}"
