"""The one place where JSON is written: no command and no file of ours holds NaN or Infinity, which
JSON does not have.

A number that is not finite was not measured: it is written as null. The standard library alone is
imported here, for this is a part of what runs inside a training job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from io import StringIO

MAX_BITS = 8192
"""Bits of a whole number: Python refuses to write one of more than 4300 digits."""


def json_text(
    value: object,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    ensure_ascii: bool = True,
) -> str:
    """The value as JSON; what is not finite in it is null."""
    encoder = _encoder(indent, separators, ensure_ascii)
    encode = encoder.encode if indent is None else partial(_by_piece, encoder)
    try:
        text = encode(value)
    except ValueError:
        text = encode(finite(value))
    # DEL is the one control character that JSON lets stand as it is.
    return text.replace("\x7f", "\\u007f") if "\x7f" in text else text


def _by_piece(encoder: json.JSONEncoder, value: object) -> str:
    """Indented text comes in as many pieces as it has words, which `encode` keeps to the end: three
    times the text."""
    text = StringIO()
    for piece in encoder.iterencode(value):
        text.write(piece)
    return text.getvalue()


def finite(value: object) -> object:
    """The value with None in place of each number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if _is_beyond(value) else value


def not_finite(value: object, path: str = "") -> Iterator[str]:
    """Where in the value there are such numbers: `run.ranks.0.cores_used`."""
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    for key, part in parts:
        yield from not_finite(part, f"{path}.{key}" if path else str(key))
    if _is_beyond(value):
        yield path


def _is_beyond(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and value.bit_length() > MAX_BITS


@cache
def _encoder(
    indent: int | None, separators: tuple[str, str] | None, ensure_ascii: bool
) -> json.JSONEncoder:
    return json.JSONEncoder(
        indent=indent, separators=separators, ensure_ascii=ensure_ascii, allow_nan=False
    )
