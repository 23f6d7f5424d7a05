"""Pickles that name one object again and again: two bytes each, and the object is there once."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Many:
    """A list that names one value `num` times more."""

    value: Any
    num: int


@dataclass
class Once:
    """A value that is written where it is first met, and named from then on."""

    value: Any
    at: list[int] = field(default_factory=list)


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x04")
        self._num = 0
        self._texts: dict[str, int] = {}

    def _keep(self) -> int:
        self.out += b"\x94"
        self._num += 1
        return self._num - 1

    def _again(self, number: int) -> None:
        self.out += b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)

    def write(self, value: Any) -> int:
        """The value; gives its number in the pickle, -1 where it has none."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bool):
            self.out += b"\x88" if value else b"\x89"
            return -1
        if isinstance(value, int):
            small = 0 <= value < 256
            self.out += b"K" + bytes([value]) if small else b"\x8a\x08" + struct.pack("<q", value)
            return -1
        if isinstance(value, Once):
            if value.at:
                self._again(value.at[0])
                return value.at[0]
            number = self.write(value.value)
            # A number has none: it is two bytes long itself.
            value.at += [number] if number >= 0 else []
            return number
        if isinstance(value, Many):
            value = [Once(value.value)] * (value.num + 1)
        is_dict = isinstance(value, dict)
        self.out += b"}" if is_dict else b"]"
        number = self._keep()
        self.out += b"("
        for part in (each for item in value.items() for each in item) if is_dict else value:
            self.write(part)
        self.out += b"u" if is_dict else b"e"
        return number

    def _text(self, text: str) -> int:
        if text in self._texts:
            self._again(self._texts[text])
        else:
            self.out += b"\x8c" + bytes([len(text)]) + text.encode()
            self._texts[text] = self._keep()
        return self._texts[text]


def pickled(value: Any) -> bytes:
    writer = _Writer()
    writer.write(value)
    return bytes(writer.out) + b"."
