"""Reads a hardware file: what `stepscope calibrate` wrote, on this machine or another.

The file may come from anyone. Its shape is checked by its types; its numbers must be finite and
make sense; its texts are cut.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stepscope.core.calibrated import SCHEMA, Calibrated
from stepscope.core.codec import convert_json, decode_json
from stepscope.errors import FormatError, InputError
from stepscope.protocol.untrusted import finite, read_regular

MAX_BYTES = 16 << 20
LONGEST_TEXT = 500
LARGEST = 1e18
"""More than any count, size or rate of a machine."""
MAY_BE_ZERO = {"half_k", "floor_s", "alpha_s", "r2"}


def read_hardware(path: Path) -> Calibrated:
    """The file's content; an error in words where it holds none."""
    try:
        text = read_regular(path, MAX_BYTES)
    except OSError as problem:
        reason = problem.strerror or problem
        raise InputError(
            f"cannot read {path}: {reason}. `stepscope calibrate` writes a hardware file"
        ) from None
    return parse_hardware(text, str(path))


def parse_hardware(text: bytes, where: str) -> Calibrated:
    schema = _schema(text)
    if schema != SCHEMA:
        what = "is not a hardware file"
        if schema is not None:
            what = f"is a hardware file of the kind {schema[:40]!r}"
        raise FormatError(
            f"{where} {what}; this version reads {SCHEMA!r}. `stepscope calibrate` writes one"
        )
    try:
        hardware = convert_json(text, Calibrated)
    except ValueError as problem:
        raise FormatError(
            f"{where} is not a whole hardware file: {problem}. Write it again: stepscope calibrate"
        ) from None
    fault = _fault(hardware, "$")
    if fault:
        raise FormatError(
            f"{where} is not a sound hardware file: {fault}. Write it again: stepscope calibrate"
        )
    return hardware


def is_hardware(text: bytes) -> bool:
    """Whether it says it is a hardware file, of whatever version."""
    return _schema(text) is not None


def _schema(text: bytes) -> str | None:
    class Head(msgspec.Struct):
        schema: str

    try:
        schema = decode_json(text, Head).schema
    except ValueError:
        return None
    return schema if schema.startswith("stepscope.hardware/") else None


def _fault(value: object, where: str) -> str | None:
    """The first thing that cannot be, in words."""
    if isinstance(value, msgspec.Struct):
        parts = [
            (f"{where}.{name}", name, getattr(value, name)) for name in value.__struct_fields__
        ]
    elif isinstance(value, tuple):
        parts = [(f"{where}[{index}]", "", part) for index, part in enumerate(value)]
    else:
        return None
    for path, name, part in parts:
        if isinstance(part, str):
            if len(part) > LONGEST_TEXT:
                return f"{path} is longer than {LONGEST_TEXT} characters"
        elif isinstance(part, int | float) and not isinstance(part, bool):
            least = 0 if name in MAY_BE_ZERO else 1e-18
            if finite(part, -LARGEST, LARGEST) is None or (part < least and name != "r2"):
                return f"{path} is {part}"
        elif name == "regions" and not part:
            return f"{path} is empty"
        else:
            fault = _fault(part, path)
            if fault:
                return fault
    return None
