"""Follows brackets and strings through text that comes in blocks, to find where a value ends
without keeping it.

The first bytes of a value are taken token by token, which is quickest for a short one; the rest
many thousand bytes at a time, whatever is in them.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

TOKEN = re.compile(rb'\\(?:.|\Z)|"|[\[{]+|[\]}]+', re.DOTALL)
FEW_BYTES = 256
FIRST_WINDOW = 4 << 10
MOST_WINDOW = 1 << 20
BACKSLASH, QUOTE = b"\\"[0], b'"'[0]
OPENING = b"[{"
STEPS = np.zeros(256, np.int8)
"""By how much a character changes the depth."""
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
            size = min(4 * size, MOST_WINDOW)
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
        """Which characters stand in a string, its first quote too and its last not.

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
