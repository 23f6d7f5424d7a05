"""TOML of strangers: a file as the struct it must be, with words for each field that is not as it
must be."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from stepscope.errors import InputError, UsageError
from stepscope.protocol.untrusted import MAX_DEPTH, TOO_DEEP, read_regular

MAX_BYTES = 1 << 20
_MAX_SHOWN = 60
T = TypeVar("T", bound=msgspec.Struct)


def read_toml(path: Path, shape: type[T]) -> T:
    """The file as a struct; InputError names the file, the field, and what it must be."""
    try:
        values = parse_toml(read_regular(path, MAX_BYTES))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as problem:
        raise InputError(f"{path}: cannot be read: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise InputError(f"{path}: not TOML: {ascii(str(problem))[1:-1][:200]}") from None
    return table_as(values, shape, str(path))


def table_as(values: Mapping[str, object], shape: type[T], where: str) -> T:
    """A table as a struct whose fields say in `Meta.description` what they must be."""
    try:
        return msgspec.convert(values, shape)
    except msgspec.ValidationError:
        raise InputError(_fault(values, shape, where)) from None


def _fault(values: Mapping[str, object], shape: Any, where: str) -> str:
    types = {field.name: field.type for field in msgspec.structs.fields(shape)}
    for name, value in values.items():
        if name not in types:
            near = difflib.get_close_matches(name, types, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(types)}"
            return f"{where}: no field is named {_shown(name)}; {hint}"
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError:
            is_table = isinstance(types[name], type) and issubclass(types[name], msgspec.Struct)
            if is_table and isinstance(value, dict):
                return _fault(value, types[name], f"{where}: [{name}]")
            wanted = f"a table, [{name}]" if is_table else _wanted(types[name])
            return f"{where}: {name} must be {wanted}, not {_shown(value)}"
    raise AssertionError(f"{where}: every field is as it must be, and the table is not")


def _wanted(kind: Any) -> str:
    """What the annotation of a field, or of one side of its union, says in words."""
    metas = [meta for part in (kind, *get_args(kind)) for meta in getattr(part, "__metadata__", ())]
    return str(metas[0].description)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def parse_toml(data: bytes) -> dict[str, Any]:
    """The table. ValueError says what is wrong with it; UsageError where this Python cannot read
    TOML.

    By the standard library, or on Python 3.10 by the package it came from.
    """
    for name in ("tomllib", "tomli"):
        try:
            parser = importlib.import_module(name)
        except ImportError:
            continue
        try:
            table: dict[str, Any] = parser.loads(data.decode("utf-8"))
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
        _refuse_unusable(table, "", 0)
        return table
    raise UsageError(
        "a .toml file needs Python 3.11 or newer, or the package tomli: pip install tomli"
    )


def _refuse_unusable(value: object, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"the values of {path[:60]} lie too deep in one another")
    if isinstance(value, dict):
        for name, part in value.items():
            _refuse_unusable(part, f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, list):
        for part in value:
            _refuse_unusable(part, path, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path[:60]} is {value}, and must be finite")
    elif isinstance(value, int) and value.bit_length() > 63:
        raise ValueError(f"{path[:60]} has more than 64 bits")
