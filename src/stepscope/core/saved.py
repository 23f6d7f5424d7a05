"""A Diagnosis as a file: saved whole, loaded again, drawn without the traces it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from stepscope.core.diagnosis import Diagnosis
from stepscope.errors import FormatError, InputError
from stepscope.protocol.json_text import json_text
from stepscope.protocol.untrusted import MAX_JSON_BYTES, parse_json, read_regular

FORMAT, OLD_FORMAT = "stepscope.saved-diagnosis/2", "stepscope.saved-diagnosis/1"
NOT_KEPT = (
    "saved by an older version of stepscope: what other tools recorded is not shown; diagnose the "
    "files again to see it"
)


class _File(msgspec.Struct):
    format: str
    diagnosis: Diagnosis


def save(diagnosis: Diagnosis, path: Path) -> None:
    """Write everything that was measured and said. Half characters, which a path may hold and JSON
    may not, become '?'."""
    plain = msgspec.to_builtins(_File(format=FORMAT, diagnosis=diagnosis))
    path.write_bytes(json_text(plain, ensure_ascii=False).encode("utf-8", "replace"))


def load(path: Path) -> Diagnosis:
    """Read what `save` wrote; anything else is refused in words."""
    try:
        data = read_regular(path, MAX_JSON_BYTES)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from problem
    try:
        plain = parse_json(data)
        is_changed = _renew(plain)
        file = msgspec.convert(plain, _File)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        raise FormatError(f"{path} is not a saved diagnosis of this version: {problem}") from None
    if file.format != FORMAT:
        raise FormatError(
            f"{path} has the format {file.format!r}; this version reads {FORMAT!r}. Diagnose the "
            "traces again."
        )
    try:
        file.diagnosis.facts.self_check()
    except (AssertionError, IndexError, KeyError):
        raise FormatError(
            f"{path}: the times in it do not add up. Diagnose the traces again."
        ) from None
    if is_changed:
        return replace(file.diagnosis, notes=(*file.diagnosis.notes, NOT_KEPT))
    return file.diagnosis


def _renew(plain: Any) -> bool:
    """Bring the older format, which had other tools' recordings in words, to this one. Whether
    something was lost."""
    if not isinstance(plain, dict) or plain.get("format") != OLD_FORMAT:
        return False
    plain["format"] = FORMAT
    diagnosis = plain.get("diagnosis")
    facts = diagnosis.get("facts") if isinstance(diagnosis, dict) else None
    return isinstance(facts, dict) and facts.pop("beside", None) is not None
