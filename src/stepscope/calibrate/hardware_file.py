"""Writes a hardware file, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from msgspec import to_builtins

from stepscope.core.calibrated import Calibrated
from stepscope.errors import UsageError
from stepscope.protocol.json_text import json_text
from stepscope.protocol.whole_write import write_whole


def save(calibration: Calibrated, path: Path) -> None:
    # One point a line, so that a file can be read and compared by eye.
    text = _text(to_builtins(calibration), 0) + "\n"
    try:
        write_whole(path, text.encode())
    except OSError as problem:
        raise UsageError(
            f"cannot write {path}: {problem.strerror or problem}. Give another place with --out "
            "FILE"
        ) from None


def _text(value: object, depth: int) -> str:
    if depth < 2 and isinstance(value, dict) and value:
        inner = (
            f"{' ' * (depth + 1)}{json_text(key)}: {_text(part, depth + 1)}"
            for key, part in value.items()
        )
        return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"
    if depth < 2 and isinstance(value, list | tuple) and value:
        inner = (f"{' ' * (depth + 1)}{_text(part, depth + 2)}" for part in value)
        return "[\n" + ",\n".join(inner) + "\n" + " " * depth + "]"
    return json_text(value)
