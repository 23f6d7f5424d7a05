"""Reads a machine's measured roofs: what its matrix products and copies really reach.

The file is JSON with flat names: `gemm_bf16_8192_tflops` for a product of that precision and size,
`copy_TBps` for the device's own memory, `device` for its name. The best size of each precision is
its roof. What `stepscope calibrate` writes is read too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.core.hardware import DeviceRates
from stepscope.core.recordings.system import MeasuredRates, SystemRecording
from stepscope.errors import InputError
from stepscope.protocol.untrusted import finite, open_regular, parse_json_object
from stepscope.readers.format import Reader, Source
from stepscope.readers.hardware_file import is_hardware, parse_hardware, read_hardware
from stepscope.readers.whole_file import whole_text

MAX_BYTES = 1 << 20
MAX_HARDWARE_BYTES = 16 << 20
GEMM = re.compile(r"gemm_([a-z0-9]{2,8})_(\d{1,9})_tflops")
HEAD = re.compile(
    rb'\A[\s\xef\xbb\xbf]*\{(?:[^{}]{0,8000}?"gemm_[a-z0-9]{2,8}_\d{1,9}_tflops"\s*:|\s*"schema"\s*:\s*"stepscope\.hardware/)'
)
COPIES = ("h2d_pinned_GBps", "h2d_pageable_GBps", "d2h_pinned_GBps", "d2h_pageable_GBps")


def is_mine(head: bytes, _name: str) -> bool:
    return HEAD.match(head) is not None


def read_file(source: Source) -> SystemRecording:
    """Measured rates, given like a recording: what they are, and what they are for."""
    text = _text(source)
    rates = _of_hardware(source, text) if is_hardware(text) else _of_rates(source, text)
    return SystemRecording(format="measured-rates", paths=(source.label,), rates=(rates,))


def _of_rates(source: Source, text: bytes) -> MeasuredRates:
    rates = _object(text)
    if rates is None:
        raise _none(source.label)
    return MeasuredRates(
        path=source.label,
        roofs=_roofs(rates, source.label, _name(source)),
        products=tuple(
            (match[1], int(match[2]), value)
            for name, value in rates.items()
            if (match := GEMM.fullmatch(name)) and _is_rate(value)
        ),
        copies=tuple((name, rates[name]) for name in COPIES if _is_rate(rates.get(name))),
        launch_us=rates["launch_us"] if _is_rate(rates.get("launch_us")) else None,
        torch=rates["torch"][:100] if isinstance(rates.get("torch"), str) else None,
    )


def _text(source: Source) -> bytes:
    text, problem = whole_text(source, MAX_HARDWARE_BYTES, "it cannot be of measured rates")
    if problem:
        raise InputError(f"{source.label} is damaged: {problem}. Write it again")
    return text


def _of_hardware(source: Source, text: bytes) -> MeasuredRates:
    hardware = parse_hardware(text, source.label)
    roofs = hardware.roofs(f"measured, {_name(source)}")
    if roofs is None:
        raise _no_roofs(source.label)
    origin = f"{hardware.date}, by {hardware.made_by}"
    return MeasuredRates(path=source.label, roofs=roofs, is_hardware=True, made=origin)


def _name(source: Source) -> str:
    return source.label.replace("\\", "/").rpartition("/")[2]


def read_roofs(path: Path) -> DeviceRates:
    """The roofs in a file; an error in words where it holds none."""
    try:
        with open_regular(path) as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from None
    if len(text) > MAX_BYTES or is_hardware(text):
        roofs = read_hardware(path).roofs(f"measured, {path.name}")
        if roofs is None:
            raise _no_roofs(str(path))
        return roofs
    rates = _object(text)
    if rates is None:
        raise _none(str(path))
    return _roofs(rates, str(path), path.name)


def _object(text: bytes) -> dict[str, Any] | None:
    return parse_json_object(text) or None


def _roofs(rates: Mapping[str, Any], where: str, name: str) -> DeviceRates:
    peaks: dict[str, float] = {}
    for key, value in rates.items():
        match = GEMM.fullmatch(key)
        if match and _is_rate(value):
            peaks[match[1]] = max(peaks.get(match[1], 0.0), value * 1e12)
    copy = rates.get("copy_TBps")
    if not peaks or copy is None or not _is_rate(copy):
        missing = "no gemm_PRECISION_SIZE_tflops" if not peaks else "no copy_TBps"
        raise InputError(
            f"{where} has {missing} in it: measured roofs need the rates of matrix products and "
            "of a copy"
        )
    device = rates.get("device")
    return DeviceRates(
        device=device[:100] if isinstance(device, str) else name,
        source=f"measured, {name}",
        peak_flops=peaks,
        bandwidth_bytes_per_s=copy * 1e12,
    )


def _none(where: str) -> InputError:
    return InputError(
        f"{where} is not a file of measured roofs: JSON with gemm_bf16_8192_tflops, copy_TBps and "
        "the like"
    )


def _no_roofs(where: str) -> InputError:
    return InputError(
        f"{where} has no matrix products and copies in it: run `stepscope calibrate` there, "
        "without --only collectives"
    )


def _is_rate(value: object) -> bool:
    return finite(value, 1e-9, 1e9) is not None


READER = Reader(is_mine=is_mine, read_file=read_file)
