"""The slow path: a chunk that is not clean JSON, event by event.

Kills mid-write, NaN, bad escapes, bytes that are no UTF-8, numbers beyond 64 bits, fields of another type: each occurs in real
files. Every event that can be understood is kept; the rest is counted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from stepscope.readers.records import CompleteText, Rest
from stepscope.readers.scan import Columns, Scanner

EVENT_START = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:')
NEXT_EVENT = re.compile(r'\}\s{0,4096},\s{0,4096}(?=\{\s{0,4096}"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:)')
BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrtu])')
SKIPPED = re.compile(r"[\s,]*")
PHASES = {t.__struct_config__.tag for t in (CompleteText, *Rest.__args__)}
TEXT_FIELDS = ("cat", "name")
PLACE_FIELDS = ("pid", "tid")

_decoder = json.JSONDecoder(strict=False, parse_float=str, parse_constant=str)
_check_one = msgspec.json.Decoder(CompleteText | Rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """What was saved of a chunk, and where in it the events end."""

    columns: Columns
    consumed: int
    """Bytes dealt with; the rest is an event cut off at the chunk's end, or what follows the array."""
    ended: bool
    """The closing bracket of the array was met."""


def rescue(chunk: bytes, scanner: Scanner) -> Rescued:
    """Walk the chunk's events one by one and keep all that can be understood."""
    # Latin-1 maps bytes to characters one to one, so positions in the text are positions in the bytes.
    text = chunk.decode("latin-1")
    events: list[bytes] = []
    at, ended = 0, False
    while True:
        at = _skip(text, at)
        if at >= len(text):
            break
        if text[at] == "]":
            ended, at = True, at + 1
            break
        end, event = _one_event(text, at)
        if end is None:
            break
        at = end
        scanner.tally.raw_events += 1
        encoded = _clean(event, scanner)
        if encoded is not None:
            events.append(encoded)
    scanner.tally.rescued += len(events)
    return Rescued(columns=scanner.scan_repaired(b"[" + b",".join(events) + b"]"), consumed=at, ended=ended)


def _skip(text: str, at: int) -> int:
    match = SKIPPED.match(text, at)
    return match.end() if match else at


def _one_event(text: str, at: int) -> tuple[int | None, Any]:
    """The end of the event at `at` and the event; (None, None) when it is cut off, (end, None) when it is beyond repair."""
    try:
        event, end = _decoder.raw_decode(text, at)
        return end, event
    except (ValueError, RecursionError):
        following = NEXT_EVENT.search(text, at)
    if following is None:
        return _cut_off_or_broken(text, at)
    end = following.start() + 1
    return end, _repaired(text[at:end])


def _cut_off_or_broken(text: str, at: int) -> tuple[int | None, Any]:
    """No event follows: either the text ends inside this one, or it is the array's last and damaged."""
    closing = re.compile(r"\}\s*\]").search(text, at)
    if closing is None:
        return None, None
    event = _repaired(text[at : closing.start() + 1])
    return (closing.start() + 1, event) if event is not None else (None, None)


def _repaired(text: str) -> Any:
    try:
        return _decoder.decode(BAD_ESCAPE.sub(r"\\\\", text))
    except (ValueError, RecursionError):
        return None


def _clean(event: Any, scanner: Scanner) -> bytes | None:
    """The event as clean JSON that the typed decoder takes; None when there is nothing to take (counted)."""
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        scanner.tally.malformed += 1
        return None
    if event["ph"] not in PHASES:
        scanner.count_phase(event["ph"])
        return None
    clean = {key: _field(key, value) for key, value in event.items()}
    if not isinstance(clean.get("args", {}), dict):
        del clean["args"]
    try:
        encoded = json.dumps(clean).encode()
        _check_one.decode(encoded)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        scanner.tally.malformed += 1
        return None
    return encoded


def _field(key: str, value: Any) -> Any:
    if key in TEXT_FIELDS:
        return _utf8(value) if isinstance(value, str) else "" if value is None else str(value)
    if key in PLACE_FIELDS:
        return value if _is_int64(value) else _utf8(str(value))
    if key == "args" and isinstance(value, dict):
        return {_utf8(k): _argument(v) for k, v in value.items()}
    return value


def _argument(value: Any) -> Any:
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, list):
        return [_argument(v) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and not _is_int64(value):
        return str(value)
    return value


def _utf8(text: str) -> str:
    """Text read as Latin-1, turned into what its bytes meant; lone surrogates and stray bytes become replacement marks."""
    try:
        return text.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8", "replace")


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
