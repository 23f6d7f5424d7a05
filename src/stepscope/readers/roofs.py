"""Reads a machine's measured roofs: what its matrix products and copies really reach.

The file is JSON with flat names: `gemm_bf16_8192_tflops` for a product of that precision and size, `copy_TBps` for the device's
own memory, `device` for its name. The best size of each precision is its roof. What `stepscope calibrate` writes is read too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from stepscope.core.hardware import Roofs
from stepscope.errors import InputError
from stepscope.readers.hardware_file import is_hardware, read_hardware

MAX_BYTES = 1 << 20
GEMM = re.compile(r"gemm_([a-z0-9]{2,8})_(\d{1,9})_tflops")


def read_roofs(path: Path) -> Roofs:
    """The roofs in a file; an error in words where it holds none."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES or is_hardware(text):
            return _calibrated_roofs(path)
        told = json.loads(text)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise InputError(f"{path} is not a file of measured roofs: JSON with gemm_bf16_8192_tflops, copy_TBps and the like")
    peaks: dict[str, float] = {}
    for name, value in told.items():
        found = GEMM.fullmatch(name)
        if found and _is_rate(value):
            peaks[found[1]] = max(peaks.get(found[1], 0.0), value * 1e12)
    copy = told.get("copy_TBps")
    if not peaks or copy is None or not _is_rate(copy):
        missing = "no gemm_PRECISION_SIZE_tflops" if not peaks else "no copy_TBps"
        raise InputError(f"{path} has {missing} in it: measured roofs need the rates of matrix products and of a copy")
    device = told.get("device")
    return Roofs(
        device=device[:100] if isinstance(device, str) else path.name,
        source=f"measured, {path.name}",
        peak_flops=peaks,
        bandwidth_bytes_per_s=copy * 1e12,
    )


def _calibrated_roofs(path: Path) -> Roofs:
    roofs = read_hardware(path).roofs(f"measured, {path.name}")
    if roofs is None:
        raise InputError(
            f"{path} has no matrix products and copies in it: run `stepscope calibrate` there, without --only collectives"
        )
    return roofs


def _is_rate(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < 1e9
