"""The slow path: a piece of text that is not clean JSON, event by event.

Kills mid-write, NaN, bad escapes, bytes that are no UTF-8, numbers beyond 64 bits, fields of
another type: each occurs in real files. Every event that can be understood is kept; the rest is
counted.

Follows brackets and strings through text that comes in blocks, to find where a value ends
without keeping it.

The first bytes of a value are taken token by token, which is quickest for a short one; the rest
many thousand bytes at a time, whatever is in them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepscope.readers.kineto.event_decoder import Scanner
from stepscope.readers.trace.categories import OTHER_PHASES, SILENT_PHASES, phase_label
from stepscope.readers.trace.columns import ANY_EVENT_TEXT, Args, Columns, InstantArgs, Number

TOKEN = re.compile(rb'\\(?:.|\Z)|"|[\[{]+|[\]}]+', re.DOTALL)
FEW_BYTES = 256
FIRST_WINDOW = 4 << 10
MAX_WINDOW = 1 << 20
BACKSLASH, QUOTE = b"\\"[0], b'"'[0]
OPENING = b"[{"
STEPS = np.zeros(256, np.int8)
"""Change of the depth by each character."""
STEPS[list(OPENING)], STEPS[list(b"]}")] = 1, -1

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


class Skimmer:
    """Skims one value, however large, in the memory of one block."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: bytes, at: int = 0) -> int | None:
        """Where the value ends in `text`, or the list around it does; None when it goes on in the
        next block."""
        stop = min(at + FEW_BYTES, len(text))
        end = self._by_token(text, at, stop)
        size = FIRST_WINDOW
        while end is None and stop < len(text):
            window = np.frombuffer(text, np.uint8, min(size, len(text) - stop), stop)
            end = self._in_window(window)
            end = None if end is None else stop + end
            stop += len(window)
            size = min(4 * size, MAX_WINDOW)
        return end

    def _by_token(self, text: bytes, at: int, stop: int) -> int | None:
        if self._escaped and at < stop:
            self._escaped = False
            at += 1
        while (token := TOKEN.search(text, at, stop)) is not None:
            at = token.end()
            first, length = text[token.start()], at - token.start()
            if first == BACKSLASH:
                # Outside of a string it means nothing, and what follows it is what it is.
                at = at if self._in_string else token.start() + 1
                self._escaped = self._in_string and length == 1
            elif first == QUOTE:
                self._in_string = not self._in_string
                if not self._in_string and self._depth == 0:
                    return at
            elif self._in_string:
                continue
            elif first in OPENING:
                self._depth += length
            elif length < self._depth:
                self._depth -= length
            else:
                return token.start() + self._depth
        return None

    def _in_window(self, window: Bytes) -> int | None:
        """The same for all of the window at once."""
        quotes, steps = window == QUOTE, STEPS[window]
        inside = self._inside(quotes, window == BACKSLASH)
        steps[inside] = 0
        depth = self._depth + np.cumsum(steps, dtype=np.int32)
        ends = (steps < 0) & (depth <= 0)
        ends |= quotes & ~inside & (depth == 0)  # a string's end, where the string is the value
        if ends.any():
            first = int(ends.argmax())
            # Below zero: the bracket is that of the list around the value, and not a part of it.
            return first + int(depth[first] >= 0)
        self._in_string, self._depth = bool(inside[-1]), int(depth[-1])
        self._escaped &= self._in_string
        return None

    def _inside(self, quotes: Mask, slashes: Mask) -> Mask:
        """Mask of the characters that stand in a string, its first quote too and its last not.

        A quote turns inside to outside and back. One after an odd number of backslashes does not
        end a string, but begins one where there is none: after it, it is inside.
        """
        turned = np.bitwise_xor.accumulate(quotes)
        if not self._escaped and not slashes.any():
            return turned ^ self._in_string
        place = np.arange(len(slashes))
        slashes[0] &= not self._escaped
        in_a_row = place - np.maximum.accumulate(np.where(slashes, -1, place))
        odd = (in_a_row & 1).astype(np.bool_)
        escaped = quotes.copy()
        escaped[0] &= self._escaped
        escaped[1:] &= odd[:-1]
        self._escaped = bool(odd[-1])
        turned = np.bitwise_xor.accumulate(quotes & ~escaped)
        last = np.maximum.accumulate(np.where(escaped, place, -1))
        return np.where(last >= 0, ~(turned ^ turned[last]), turned ^ self._in_string)


NEXT_EVENT = re.compile(
    r'\}\s{0,4096},\s{0,4096}(?=\{\s{0,4096}"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:)'
)
LAST_EVENT = re.compile(r"\}\s{0,4096}\]")
BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
SKIPPED = re.compile(r"[\s,\x00]*")
PHASES = {"X", "M", "i", "B", "E", *SILENT_PHASES, *OTHER_PHASES}
TEXT_FIELDS = ("cat", "name")
PLACE_FIELDS = ("pid", "tid")
NUMBERS = {
    f.encode_name
    for shape in (Args, InstantArgs)
    for f in msgspec.structs.fields(shape)
    if f.type == Number
}
"""Arguments that the typed decoder takes as a whole number, as text or as null, and as nothing
else."""
STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
SCALARS = re.compile(r'[^\[\]{"]+')
"""Entries that are no events, numbers and rubbish alike, and what stands between them."""
PAGE_BYTES = 4 << 10
"""Bytes of text that are looked at together: what an error costs grows with the text before and
after it."""


def _whole(text: str) -> int | str:
    """A whole number, as text where 64 bits may not hold it."""
    return int(text) if len(text) < 19 else text


_decoder = json.JSONDecoder(strict=False, parse_float=str, parse_int=_whole, parse_constant=str)
_check_one = msgspec.json.Decoder(ANY_EVENT_TEXT)


class Rescued(Struct, frozen=True, kw_only=True):
    """What was saved of a piece, and where in it the events end."""

    columns: Columns
    consumed: int
    """Bytes dealt with; the rest is an event cut off at the piece's end, or what follows the
    array."""
    ended: bool
    """The closing bracket of the array was met."""


def rescue(piece: bytes, scanner: Scanner, *, final: bool = False) -> Rescued:
    """Walk the piece's events one by one and keep all that can be understood. `final`: no text
    follows the piece."""
    events: list[bytes] = []
    at, size, ended = 0, PAGE_BYTES, False
    while at < len(piece) and not ended:
        stop = min(at + size, len(piece))
        is_last = stop == len(piece)
        consumed, ended = _walk(piece[at:stop], scanner, events, final=final and is_last)
        at += consumed
        if is_last:
            break
        # An event longer than the page gets one of twice the size.
        size = PAGE_BYTES if consumed else 2 * size
    was_text, scanner.times_as_text = scanner.times_as_text, True
    columns = scanner.scan(b",".join(events))
    scanner.times_as_text = was_text
    return Rescued(columns=columns, consumed=at, ended=ended)


def _walk(page: bytes, scanner: Scanner, events: list[bytes], *, final: bool) -> tuple[int, bool]:
    """Take the page's events, up to one that is not whole: how many bytes that was, and whether the
    array ends there."""
    # Latin-1 maps bytes to characters one to one: positions in the text are positions in the bytes,
    # and no byte is wrong.
    text = page.decode("latin-1")
    at = 0
    while True:
        at = _skip(text, at)
        if at >= len(text):
            return at, False
        if text[at] == "]":
            return at + 1, True
        string = STRING.match(text, at)
        if string is not None:
            _count_malformed(1, scanner)
            at = string.end()
            continue
        scalars = SCALARS.match(text, at)
        if scalars is not None:
            # One at the end of the text may go on in the next.
            upto = scalars.end() if final or scalars.end() < len(text) else text.rfind(",", at) + 1
            if upto <= at:
                return at, False
            _count_malformed(
                sum(bool(entry.strip(" \t\r\n\x00")) for entry in text[at:upto].split(",")), scanner
            )
            at = upto
            continue
        end, event = _one_event(text, page, at, final)
        if end is None:
            return at, False
        written, at = page[at:end], end
        if event is not None and not (isinstance(event, dict) and "ph" in event):
            _count_malformed(1, scanner)
            continue
        encoded = written if _is_clean(written) else _fixed(written, event, scanner)
        if encoded is None:
            scanner.tally.raw_events += 1
        else:
            events.append(encoded)


def _count_malformed(num: int, scanner: Scanner) -> None:
    scanner.tally.raw_events += num
    scanner.tally.malformed += num


def _skip(text: str, at: int) -> int:
    match = SKIPPED.match(text, at)
    return match.end() if match else at


def _one_event(text: str, page: bytes, at: int, final: bool) -> tuple[int | None, Any]:
    """The end of the event at `at`, which begins with a bracket or a quote, and the event; (None,
    None) when it is cut off, (end, None) when it is beyond repair."""
    try:
        event, end = _decoder.raw_decode(text, at)
    except json.JSONDecodeError as problem:
        broken_at = max(at, problem.pos)
    except RecursionError:
        return Skimmer().end(page, at), None
    else:
        return end, event
    # Not before the damage: up to there, what looks like the next event is an object inside this
    # one.
    following = NEXT_EVENT.search(text, broken_at) or (
        LAST_EVENT.search(text, broken_at) if final else None
    )
    if following is not None:
        whole = text[at : following.start() + 1]
        # Escapes are all that is repaired: without one it would not decode again.
        return following.start() + 1, _repaired(whole) if "\\" in whole else None
    return None, None


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


def _fixed(written: bytes, event: Any, scanner: Scanner) -> bytes | None:
    """The event as clean JSON that the typed decoder takes; None when there is nothing to take
    (counted)."""
    if event is not None and not written.isascii():
        event = _repaired(written.decode("utf-8", "replace"))
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        scanner.tally.malformed += 1
        return None
    if event["ph"] not in PHASES:
        scanner.tally.count_unknown(phase_label(_clean_text(event["ph"])))
        return None
    try:
        clean = {
            key: _field(key, value)
            for key, value in event.items()
            if key != "args" or isinstance(value, dict)
        }
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
        value = {
            k: v
            for k, v in value.items()
            if k not in NUMBERS or isinstance(v, str) or v is None or _is_whole(v)
        }
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
