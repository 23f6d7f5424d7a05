"""JSON of strangers into the shapes that a reader declares: one error, whatever is wrong with the
text."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from stepscope.protocol.untrusted import TOO_DEEP, parse_json

T = TypeVar("T")


def decode_json(data: bytes | str, shape: type[T]) -> T:
    """The text as a `shape`. ValueError, and nothing else, where it is none; bytes that are no
    characters become U+FFFD.

    Fast, for files of any size. Whole numbers may have more than 64 bits: untrusted.whole and
    finite judge them.
    """
    return decode_with(msgspec.json.Decoder(shape), data)


def decode_with(decoder: msgspec.json.Decoder[T], data: bytes | str) -> T:
    """The same by a decoder that is made once."""
    try:
        try:
            return decoder.decode(data)
        except UnicodeDecodeError:
            text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
            return decoder.decode(text.encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (OverflowError, msgspec.MsgspecError) as problem:
        raise ValueError(str(problem)) from None


def convert_json(data: bytes | str, shape: type[T]) -> T:
    """The text as a `shape`, each number finite and of 64 bits or None. ValueError where it is
    none. For small files."""
    return convert_value(parse_json(data), shape)


def convert_value(value: Any, shape: type[T]) -> T:
    """The same of what `parse_json` gave."""
    try:
        return msgspec.convert(value, shape)
    except (OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        raise ValueError(str(problem)) from None
