"""TOML of strangers: a table of bounded depth with finite numbers, or a ValueError."""

from __future__ import annotations

import importlib
import math
from typing import Any

from stepscope.errors import UsageError
from stepscope.protocol.untrusted import MAX_DEPTH, TOO_DEEP


def parse_toml(data: bytes) -> dict[str, Any]:
    """The table. ValueError says what is wrong with it; UsageError where this Python cannot read TOML.

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
    raise UsageError("a .toml file needs Python 3.11 or newer, or the package tomli: pip install tomli")


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
