"""Small files, which are read whole."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from stepscope.errors import FormatError
from stepscope.protocol.untrusted import parse_json
from stepscope.readers.format import Source
from stepscope.readers.stream import Stream


def whole_text(source: Source, most: int, instead: str) -> tuple[bytes, str | None]:
    """All of it, decompressed, and what was wrong with it. What is larger than `most` is refused,
    with what to do `instead`."""
    stream = Stream(source.path, source.offset, source.length)
    parts, size = [], 0
    with closing(stream.blocks()) as blocks:
        for block in blocks:
            size += len(block)
            if size > most:
                raise FormatError(
                    f"{source.label}: it has more than {most >> 20} MiB, more than is read; "
                    f"{instead}"
                )
            parts.append(block)
    if stream.problem is not None and not parts:
        raise FormatError(f"{source.label}: {stream.problem}")
    return b"".join(parts), stream.problem


def whole_json(source: Source, most: int, instead: str) -> tuple[Any, str | None]:
    """What its JSON is, and what was wrong with the file."""
    text, problem = whole_text(source, most, instead)
    try:
        return parse_json(text), problem
    except ValueError as wrong:
        why = problem or str(wrong)[:200]
        raise FormatError(f"{source.label}: not JSON that can be read ({why}); {instead}") from None
