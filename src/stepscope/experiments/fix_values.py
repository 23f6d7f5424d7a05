"""Which settings to try first for a finding, from outside, and why these values."""

from __future__ import annotations

import os

from stepscope.protocol.control_group import cpu_quota
from stepscope.protocol.settings import SETTINGS, Value, raised_by

MAX_WORKERS = 8
"""Loader workers to try first: beyond this, memory and start-up grow faster than what is gained."""


def fixes(code: str, *, num_ranks: int = 1) -> dict[str, Value] | None:
    """What to try first for a finding, with so many ranks on this machine; None where nothing can
    be set from outside."""
    cores = max(1, own_cores() // max(num_ranks, 1))
    workers = min(MAX_WORKERS, max(1, cores - 1))
    tried: dict[str, dict[str, Value]] = {
        "serial-loader": {"num_workers": workers, "persistent_workers": True},
        "starved-loader": {
            "num_workers": min(2 * MAX_WORKERS, max(2, cores)),
            "prefetch_factor": 4,
        },
        "loader-respawn": {"persistent_workers": True},
        "shallow-prefetch": {"prefetch_factor": 8},
        "pageable-copy": {"pin_memory": True},
        "tiny-buckets": {"bucket_cap_mb": 100.0},
        "oversized-buckets": {"bucket_cap_mb": 25.0},
        "unused-parameter-scan": {"find_unused_parameters": False},
        "buffer-broadcast": {"broadcast_buffers": False},
        "looped-optimizer": {"fused_optimizer": True},
        "launch-overhead": {"compile_mode": "reduce-overhead"},
        "unfused-pointwise": {"compile_mode": "default"},
        "python-overhead": {"compile_mode": "default"},
        "recompilation": {"compile_dynamic": True},
        "fp32-matmul": {"amp": "bf16"},
        "tf32-off": {"tf32": True},
        "untuned-convolution": {"cudnn_benchmark": True},
        "nchw-layout": {"channels_last": True},
        "thread-oversubscription": {"num_threads": cores},
        "fragmentation": {"allocator": "expandable_segments:True"},
        "allocator-churn": {"allocator": "expandable_segments:True", "empty_cache": False},
        "debug-mode": {"anomaly_mode": False, "launch_blocking": False},
        "gc-pause": {"gc": "freeze"},
    }
    return tried.get(code)


def fix_reasons(code: str) -> dict[str, str]:
    """Why these values are tried where there is no run to go by, for each setting of the fix."""
    tried = fixes(code) or {}
    cores = own_cores()
    what = "one core" if cores == 1 else f"{cores} cores"
    basis = f"the {what} that this process may use"
    serial = f"{basis}, less one for the training process, and {MAX_WORKERS} at most"
    given = {
        ("serial-loader", "num_workers"): serial,
        ("starved-loader", "num_workers"): f"{basis}, between 2 and {2 * MAX_WORKERS}",
        ("thread-oversubscription", "num_threads"): basis,
        ("shallow-prefetch", "prefetch_factor"): "four times PyTorch's own, 2",
        ("starved-loader", "prefetch_factor"): "twice PyTorch's own, 2",
        ("tiny-buckets", "bucket_cap_mb"): "four times DDP's own, 25",
        ("oversized-buckets", "bucket_cap_mb"): "what DDP takes by itself",
    }
    reasons = {name: given.get((code, name), SETTINGS[name].words) for name in tried}
    more = "a job that has as much already keeps its own"
    raised = raised_by(code, tried)
    return {name: f"{why}; {more}" if name in raised else why for name, why in reasons.items()}


def own_cores() -> int:
    """Cores that this machine lets us use: affinity, and the container's quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, round(quota)))
