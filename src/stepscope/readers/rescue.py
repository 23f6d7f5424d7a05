"""The slow path: a piece of text that is not clean JSON, event by event.

Kills mid-write, NaN, bad escapes, bytes that are no UTF-8, numbers beyond 64 bits, fields of another type: each occurs in real
files. Every event that can be understood is kept; the rest is counted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from stepscope.readers.categories import OTHER_PHASES, SILENT_PHASES, phase_label
from stepscope.readers.columns import Columns
from stepscope.readers.records import ANY_EVENT_TEXT, Args, InstantArgs, Number
from stepscope.readers.scan import Scanner
from stepscope.readers.skim import Skimmer

NEXT_EVENT = re.compile(r'\}\s{0,4096},\s{0,4096}(?=\{\s{0,4096}"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:)')
LAST_EVENT = re.compile(r"\}\s{0,4096}\]")
BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
SKIPPED = re.compile(r"[\s,\x00]*")
PHASES = {"X", "M", "i", "B", "E", *SILENT_PHASES, *OTHER_PHASES}
TEXT_FIELDS = ("cat", "name")
PLACE_FIELDS = ("pid", "tid")
NUMBERS = {f.encode_name for shape in (Args, InstantArgs) for f in msgspec.structs.fields(shape) if f.type == Number}
"""Arguments that the typed decoder takes as a whole number, as text or as null, and as nothing else."""
NO_SCALAR = re.compile(r"[,\]]")


def _whole(text: str) -> int | str:
    """A whole number, as text where 64 bits may not hold it."""
    return int(text) if len(text) < 19 else text


_decoder = json.JSONDecoder(strict=False, parse_float=str, parse_int=_whole, parse_constant=str)
_check_one = msgspec.json.Decoder(ANY_EVENT_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """What was saved of a piece, and where in it the events end."""

    columns: Columns
    consumed: int
    """Bytes dealt with; the rest is an event cut off at the piece's end, or what follows the array."""
    ended: bool
    """The closing bracket of the array was met."""


def rescue(piece: bytes, scanner: Scanner, *, final: bool = False) -> Rescued:
    """Walk the piece's events one by one and keep all that can be understood. `final`: no text follows the piece."""
    # Latin-1 maps bytes to characters one to one: positions in the text are positions in the bytes, and no byte is wrong.
    text = piece.decode("latin-1")
    events: list[bytes] = []
    at, ended, lost = 0, False, 0
    while True:
        at = _skip(text, at)
        if at >= len(text):
            break
        if text[at] == "]":
            ended, at = True, at + 1
            break
        end, event = _one_event(text, at, final)
        if end is None:
            break
        written, at = piece[at:end], end
        encoded = written if _is_clean(written) else _mended(written, event, scanner)
        if encoded is None:
            lost += 1
        else:
            events.append(encoded)
    scanner.tally.raw_events += lost
    was_text, scanner.times_as_text = scanner.times_as_text, True
    columns = scanner.scan(b",".join(events))
    scanner.times_as_text = was_text
    return Rescued(columns=columns, consumed=at, ended=ended)


def _skip(text: str, at: int) -> int:
    match = SKIPPED.match(text, at)
    return match.end() if match else at


def _one_event(text: str, at: int, final: bool) -> tuple[int | None, Any]:
    """The end of the event at `at` and the event; (None, None) when it is cut off, (end, None) when it is beyond repair."""
    try:
        event, end = _decoder.raw_decode(text, at)
    except json.JSONDecodeError as problem:
        broken_at = max(at, problem.pos)
    except RecursionError:
        return Skimmer().end(text.encode("latin-1"), at), None
    else:
        # A number at the end of the text may go on in the next.
        return (None, None) if end == len(text) and not final and text[at] not in '{["' else (end, event)
    # Not before the damage: up to there, what looks like the next event is an object inside this one.
    following = NEXT_EVENT.search(text, broken_at) or (LAST_EVENT.search(text, broken_at) if final else None)
    if following is not None:
        return following.start() + 1, _repaired(text[at : following.start() + 1])
    if text[at] not in '{["':
        return _after_rubbish(text, at, final), None
    return None, None


def _after_rubbish(text: str, at: int, final: bool) -> int | None:
    """Where the next entry may begin after something that is no value at all."""
    found = NO_SCALAR.search(text, at)
    if found is not None:
        return found.start()
    return len(text) if final else None


def _repaired(text: str) -> Any:
    try:
        return _decoder.decode(BAD_ESCAPE.sub(r"\\\\", text))
    except (ValueError, RecursionError):
        return None


def _is_clean(text: bytes) -> bool:
    try:
        _check_one.decode(text)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _mended(written: bytes, event: Any, scanner: Scanner) -> bytes | None:
    """The event as clean JSON that the typed decoder takes; None when there is nothing to take (counted)."""
    if event is not None and not written.isascii():
        event = _repaired(written.decode("utf-8", "replace"))
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        scanner.tally.malformed += 1
        return None
    if event["ph"] not in PHASES:
        scanner.tally.count_unknown(phase_label(_clean_text(event["ph"])))
        return None
    try:
        clean = {key: _field(key, value) for key, value in event.items() if key != "args" or isinstance(value, dict)}
        encoded = json.dumps(clean).encode()
    except (RecursionError, ValueError):
        encoded = b""
    if not _is_clean(encoded):
        scanner.tally.malformed += 1
        return None
    scanner.tally.rescued += 1
    return encoded


def _field(key: str, value: Any) -> Any:
    if key in TEXT_FIELDS:
        return _clean_text(value) if isinstance(value, str) else "" if value is None else str(value)
    if key in PLACE_FIELDS:
        return value if _is_whole(value) else _clean_text(str(value))
    if key == "args":
        value = {k: v for k, v in value.items() if k not in NUMBERS or isinstance(v, str) or v is None or _is_whole(v)}
    return _argument(value)


def _argument(value: Any) -> Any:
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, list):
        return [_argument(v) for v in value]
    if isinstance(value, dict):
        return {_clean_text(k): _argument(v) for k, v in value.items()}
    return value


def _clean_text(text: str) -> str:
    """The text with every lone surrogate replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
