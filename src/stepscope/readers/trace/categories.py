"""Kinds of events by their category and phase, and times in whole nanoseconds.

A trace's times are decimal microseconds. `float * 1000` is wrong from 2^43 us on: a double there
cannot hold a nanosecond. Below that, the whole and the fractional part converted apart are exact;
above it only the text is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

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
"""Kinds by lower-case category. `trace` is the profiler's own span over the whole recording."""

UNNAMED = "(no category)"

SILENT_PHASES = frozenset("stfMiIR")
"""Phases that carry no duration of their own: flow arrows, metadata, instants. Understood, and not
events of the timeline."""

OTHER_PHASES = {
    "C": "counter", "b": "async start", "e": "async end", "n": "async instant", "S": "async start",
    "T": "async step", "F": "async end", "p": "async step", "P": "sample", "N": "object",
    "O": "object", "D": "object", "V": "memory dump", "v": "memory dump", "c": "clock",
    "(": "context", ")": "context",
}  # fmt: skip
"""The trace format's phases that we do not use, with their meaning: counted under it."""


def kind_of_category(category: str) -> Kind:
    """The kind of a category, in whatever case the recorder wrote it."""
    return KIND_OF_CATEGORY.get(category.lower(), Kind.OTHER)


def phase_label(phase: str) -> str:
    """What to call a phase in a count."""
    if phase in OTHER_PHASES:
        return f"phase {phase} ({OTHER_PHASES[phase]})"
    return f"phase {phase[:32]!r}"


EXACT_DOUBLE_US = float(2**43)
"""Microseconds below which a double still tells nanoseconds apart (its step is at most 2^-10
us)."""

LIMIT_NS = 2**62
"""Times beyond this are taken for damage: sums of two stay inside 64 bits."""

LONGEST_NUMBER = 64
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,9})?", re.ASCII)
_WIDE = Context(prec=128)
_THREE_DECIMALS = re.compile(rb"(?:\d{1,15}\.\d{3},)+")
_WHOLE = re.compile(rb"(?:\d{1,15},)+")


def ns_from_double(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Nanoseconds from microseconds as doubles; exact below EXACT_DOUBLE_US, and for whole
    microseconds below 2^53."""
    whole = np.floor(us)
    ns: NDArray[np.int64] = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000.0).astype(
        np.int64
    )
    return ns


def ns_from_texts(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Nanoseconds from many numbers' JSON text, and which of them could not be read (0 there)."""
    joined = b",".join(texts) + b","
    unread = np.zeros(len(texts), np.bool_)
    # Nearly every file writes all its times alike; then the text of all of them converts at once.
    if _THREE_DECIMALS.fullmatch(joined):
        return np.fromstring(joined.replace(b".", b"").decode("ascii"), np.int64, sep=","), unread
    if _WHOLE.fullmatch(joined):
        return np.fromstring(joined.decode("ascii"), np.int64, sep=",") * 1000, unread
    values = [ns_from_text(text.decode("utf-8", "replace")) for text in texts]
    unread[:] = [value is None for value in values]
    return np.array([value or 0 for value in values], np.int64), unread


def ns_from_text(text: str) -> int | None:
    """Nanoseconds from microseconds as JSON number text (also quoted); None when it is no finite
    number in range."""
    if len(text) > LONGEST_NUMBER:
        return None
    number = text.strip().strip('"').strip()
    if not NUMBER.fullmatch(number):
        return None
    value = Decimal(number)
    if value.adjusted() > 18:
        return None
    ns = int(_WIDE.to_integral_value(_WIDE.multiply(value, Decimal(1000))))
    return ns if abs(ns) < LIMIT_NS else None
