"""Files from strangers: which are opened, how much is read of them, and what their text and their
numbers become.

Everything that this package reads passes here. A file is regular, or it is not opened: a pipe would
hang, a device never ends. A number is finite and in range, or it is None, which is "not measured"
everywhere. JSON is a value of bounded depth, or a ValueError. The standard library alone is
imported: the capture inside a training job reads by the same rules.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

MAX_JSON_BYTES = 64 << 20
"""Bytes of one of our own files, at most; the writers keep them far smaller."""
MAX_DEPTH = 100
"""Depth of JSON values inside one another, at most. Our own files have 8; what is drawn and
compared later may walk them recursively."""
TOO_DEEP = "its values lie too deep in one another"
LARGEST_INT = 2**62
"""The sum of two still fits 64 bits; times in nanoseconds reach to the year 2116."""
LARGEST_FLOAT = 1e30
"""More than any count, size, time, rate or loss of a training run; products of ten still are
finite."""
LONGEST_NUMBER = 40
"""Characters of a number in a text."""
DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
DIGITS = re.compile(r"[+-]?\d+", re.ASCII)
OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def open_regular(path: Path | str) -> BinaryIO:
    """The file, opened to be read in bytes; OSError with a reason where it is none with an end."""
    _refuse_special(os.stat(path).st_mode, path)
    # The path may have been replaced in between: without O_NONBLOCK, opening a pipe waits for a
    # writer.
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        _refuse_special(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_special(mode: int, path: Path | str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(
            errno.EINVAL,
            "it is a pipe, a socket or a device, and only regular files are read",
            str(path),
        )


def is_regular(path: Path) -> bool:
    """Whether it is a file with an end, after every link."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _too_large(path: Path | str, most_bytes: int) -> OSError:
    most = f"{most_bytes >> 20} MiB" if most_bytes >= 1 << 20 else f"{most_bytes} bytes"
    return OSError(
        errno.EFBIG, f"it is larger than {most}, the most that is read of such a file", str(path)
    )


def read_regular(path: Path | str, most_bytes: int) -> bytes:
    """A whole file; OSError where it is larger than that, or no regular one."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise _too_large(path, most_bytes)
    return data


def read_tail(path: Path | str, most_bytes: int) -> str:
    """The last characters of a file that may be of any size."""
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        return file.read(most_bytes).decode("utf-8", "replace")


def problem_line(path: Path) -> str | None:
    """Line of a text that says what went wrong: the exception of a traceback, whose message may go
    on, or the last. None where there is none to read."""
    try:
        lines = read_tail(path, 16_000).strip().splitlines()
    except OSError:
        return None
    if not lines:
        return None
    frames = [number for number, line in enumerate(lines[:-1]) if line.startswith("  ")]
    return lines[frames[-1] + 1 if frames else -1][:300]


def parse_json(data: bytes | str, *, is_strict: bool = False) -> Any:
    """The value of a JSON text. ValueError, and nothing else, where it is none.

    Bytes that are no characters become U+FFFD, halves of characters '?'. NaN, the infinities and
    numbers that no 64 bits hold are None, or refused where the reader is strict: in a description
    of what to compute, None would silently mean the default. The same goes for values deeper in one
    another than MAX_DEPTH.
    """
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "replace")
    try:
        value = (_STRICT if is_strict else _LENIENT).decode(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    may_be_deep = text.count("[") + text.count("{") > MAX_DEPTH
    return (
        _checked(value, 0, is_strict=is_strict)
        if may_be_deep or "\\u" in text or isinstance(data, str)
        else value
    )


def parse_json_object(data: bytes | str) -> dict[str, Any]:
    """The same of an object; empty where the text is no JSON or holds another value."""
    try:
        return as_object(parse_json(data))
    except ValueError:
        return {}


def read_json_object(path: Path, most_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """An object in a file of its own; empty where there is none that can be read."""
    try:
        return parse_json_object(read_regular(path, most_bytes))
    except OSError:
        return {}


def parse_json_lines(data: bytes) -> Iterator[Any]:
    """The value of each line; one that is no JSON, as a killed process leaves it, is left out."""
    for line in data.splitlines():
        try:
            yield parse_json(line)
        except ValueError:
            continue


def as_object(value: object) -> dict[str, Any]:
    """An object of a foreign file; empty where it is another value."""
    return value if isinstance(value, dict) else {}


def objects_at(values: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in the list of this name; none where it is no list."""
    items = values.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def as_text(value: object) -> str | None:
    """A text of a foreign file; None where it is another value."""
    return value if isinstance(value, str) else None


def finite(value: object, low: float = -LARGEST_FLOAT, high: float = LARGEST_FLOAT) -> float | None:
    """A number of a foreign file as ours; None where it is none, not finite or out of range."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and low <= value <= high else None  # type: ignore[operator, arg-type]


def whole(value: object, low: int = -LARGEST_INT, high: int = LARGEST_INT) -> int | None:
    """The same of a whole number, also where it is written as 7.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        else None
    )


def finite_text(
    text: str, low: float = -LARGEST_FLOAT, high: float = LARGEST_FLOAT
) -> float | None:
    """The number that a text is; None as above, and where a text is longer than a number needs."""
    text = text.strip()
    return (
        finite(float(text), low, high)
        if len(text) <= LONGEST_NUMBER and DECIMAL.fullmatch(text)
        else None
    )


def whole_text(text: str, low: int = -LARGEST_INT, high: int = LARGEST_INT) -> int | None:
    """The same of a whole number."""
    text = text.strip()
    return (
        whole(int(text), low, high)
        if len(text) <= LONGEST_NUMBER and DIGITS.fullmatch(text)
        else None
    )


def _json_int(text: str) -> int | None:
    value = int(text) if len(text) <= LONGEST_NUMBER else 2**64
    return value if -(2**63) <= value < 2**63 else None


def _json_float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _no_number(_constant: str) -> None:
    return None


def _strictly(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        value = parse(text)
        if value is None:
            raise ValueError(f"{text[:LONGEST_NUMBER]} is not finite, or has more than 64 bits")
        return value

    return parsed


_LENIENT = json.JSONDecoder(parse_int=_json_int, parse_float=_json_float, parse_constant=_no_number)
_STRICT = json.JSONDecoder(
    parse_int=_strictly(_json_int),
    parse_float=_strictly(_json_float),
    parse_constant=_strictly(_no_number),
)


def _checked(value: Any, depth: int, *, is_strict: bool) -> Any:
    """The value with whole characters alone, and without what lies too deep."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        if is_strict:
            raise ValueError(TOO_DEEP)
        return None
    if isinstance(value, list):
        return [_checked(part, depth + 1, is_strict=is_strict) for part in value]
    return {
        _checked(name, 0, is_strict=is_strict): _checked(part, depth + 1, is_strict=is_strict)
        for name, part in value.items()
    }
