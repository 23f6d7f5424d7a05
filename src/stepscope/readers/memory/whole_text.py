"""The text of a small file, for those that are read whole; and what records of memory lack."""

from __future__ import annotations

from contextlib import closing

from stepscope.errors import FormatError
from stepscope.readers.source import Source
from stepscope.readers.stream import Stream

NO_SIZE = (
    "it does not say how large the device is; with nvidia-smi's log next to it, how full the "
    "device was is judged too"
)


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
