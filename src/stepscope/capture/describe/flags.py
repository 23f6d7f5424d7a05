"""Switches of torch as a whole: precision, determinism, attention kernels, autocast.

Reading none of them warns or waits.
"""

from __future__ import annotations

import gc
from typing import Any

from stepscope.capture.describe.peek import ask, attempt, plain


def flag_notes(torch: Any) -> dict[str, Any]:
    """Every switch as it is at this moment; None for one that this torch has not."""
    cuda = getattr(torch.backends, "cuda", None)
    cudnn = getattr(torch.backends, "cudnn", None)
    notes = {
        "float32_matmul_precision": ask(torch, "get_float32_matmul_precision"),
        "matmul_fp32_precision": attempt(lambda: cuda.matmul.fp32_precision),  # type: ignore[union-attr]
        "conv_fp32_precision": attempt(lambda: cudnn.conv.fp32_precision),  # type: ignore[union-attr]
        "matmul_tf32": _is_tf32(cuda, "matmul"),
        "conv_tf32": _is_tf32(cudnn, "conv"),
        "cudnn_enabled": attempt(getattr, cudnn, "enabled"),
        "cudnn_benchmark": attempt(getattr, cudnn, "benchmark"),
        "cudnn_deterministic": attempt(getattr, cudnn, "deterministic"),
        "deterministic_algorithms": ask(torch, "are_deterministic_algorithms_enabled"),
        "anomaly_mode": ask(torch, "is_anomaly_enabled"),
        "default_dtype": plain(ask(torch, "get_default_dtype")),
        "gc_enabled": gc.isenabled(),
        "gc_threshold": list(gc.get_threshold()),
    }
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        notes[f"sdp_{name}"] = ask(cuda, f"{name}_sdp_enabled")
    return notes | autocast_notes(torch)


def autocast_notes(torch: Any) -> dict[str, Any]:
    """Autocast at this moment, which is between two steps.

    A job that casts inside its forward alone is seen as off.
    """
    notes = {}
    for device in ("cuda", "cpu"):
        # Releases before 2.4 ask without naming a device, and mean CUDA.
        is_on = ask(torch, "is_autocast_enabled", device)
        if is_on is None and device == "cuda":
            is_on = ask(torch, "is_autocast_enabled")
        notes[f"autocast_{device}"] = is_on
        notes[f"autocast_{device}_dtype"] = plain(ask(torch, "get_autocast_dtype", device))
    return notes


def _is_tf32(backend: Any, operation: str) -> bool | None:
    """Whether TF32 may be used.

    Later releases warn at the old switch, and earlier ones have no other.
    """
    precision = attempt(lambda: getattr(backend, operation).fp32_precision)
    if precision is None:
        has_own_switch = operation == "matmul" and backend is not None
        holder = getattr(backend, operation) if has_own_switch else backend
        return attempt(getattr, holder, "allow_tf32")  # type: ignore[no-any-return]
    return bool(precision == "tf32")
