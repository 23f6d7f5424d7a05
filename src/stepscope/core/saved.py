"""A Diagnosis as a file: saved whole, loaded again, drawn without the traces it came from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.json_decode import convert_json
from stepscope.errors import FormatError, InputError
from stepscope.protocol.json_text import json_text
from stepscope.protocol.untrusted import MAX_JSON_BYTES, read_regular

FORMAT = "stepscope.saved-diagnosis/1"


class _File(msgspec.Struct):
    format: str
    diagnosis: Diagnosis


def save(diagnosis: Diagnosis, path: Path) -> None:
    """Write everything that was measured and said. Half characters, which a path may hold and JSON may not, become '?'."""
    plain = msgspec.to_builtins(_File(format=FORMAT, diagnosis=diagnosis))
    path.write_bytes(json_text(plain, ensure_ascii=False).encode("utf-8", "replace"))


def load(path: Path) -> Diagnosis:
    """Read what `save` wrote; anything else is refused in words."""
    try:
        data = read_regular(path, MAX_JSON_BYTES)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from problem
    try:
        file = convert_json(data, _File)
    except ValueError as problem:
        raise FormatError(f"{path} is not a saved diagnosis of this version: {problem}") from None
    if file.format != FORMAT:
        raise FormatError(f"{path} has the format {file.format!r}; this version reads {FORMAT!r}. Diagnose the traces again.")
    try:
        file.diagnosis.facts.self_check()
    except (AssertionError, IndexError, KeyError):
        raise FormatError(f"{path}: the times in it do not add up. Diagnose the traces again.") from None
    return file.diagnosis
