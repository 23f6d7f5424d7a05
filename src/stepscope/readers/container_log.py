"""A job's output as a container's runtime keeps it, unwrapped: what the job wrote, line by line.

    {"log":"step 12: 114 ms\\n","stream":"stdout","time":"2026-11-16T08:00:00.931087621Z"}
    2026-11-16T08:00:00.931087621Z stdout F step 12: 114 ms

The first is docker's json-file, the second Kubernetes' (CRI) and podman's. Both cut long lines (at
16 KiB) into entries: docker's has no end of line then, a CRI entry has the tag P instead of F. They
are joined, standard output and standard error apart, for the two are written into one another. An
entry that is cut, or none at all, is passed on as it is, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from stepscope.protocol.untrusted import parse_json_object
from stepscope.readers.source import Source
from stepscope.readers.stream import Stream

MAX_ENTRY_BYTES = 1 << 20
"""docker's are below 100 KiB: 16 KiB of output, each letter escaped."""
MAX_OPEN_BYTES = 1 << 20
"""Of a line whose end has not come: longer than what any reader keeps of one."""
MAX_SNIFFED_LINES = 4
"""A file that was cut at its beginning begins inside an entry."""
CRI = re.compile(
    rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) (stdout|stderr) "
    rb"([FP])(?::[^\s]{1,200})?(?: (.*)|)",
    re.DOTALL,
)
Entry = tuple[bytes, bytes, bool]
"""Which stream, the text, and whether its line ends with it."""


def opened(source: Source) -> ContainerLog:
    """The text of a source; that of the job, where a container's runtime wrapped it."""
    return ContainerLog(Stream(source.path, source.offset, source.length))


class ContainerLog:
    """Like a Stream, of what is inside; and any other stream as it is."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._num_others = 0

    @property
    def problem(self) -> str | None:
        others = (
            f"{self._num_others:,} line(s) of this container's log are damaged, and were read as "
            "they are"
        )
        problems = [
            *([others] if self._num_others else []),
            *([self._stream.problem] if self._stream.problem else []),
        ]
        return "; ".join(problems) or None

    def blocks(self) -> Generator[bytes, None, None]:
        with closing(self._stream.blocks()) as blocks:
            first = next(blocks, b"")
            entry_of = _kind_of(first)
            if entry_of is None:
                yield from ([first] if first else [])
                yield from blocks
            else:
                yield from self._unwrapped(first, blocks, entry_of)

    def _unwrapped(
        self, first: bytes, blocks: Iterator[bytes], entry_of: Callable[[bytes], Entry | None]
    ) -> Iterator[bytes]:
        still_open: dict[bytes, bytes] = {}
        for lines in _lines(first, blocks):
            done = list[bytes]()
            for line in lines:
                entry = entry_of(line)
                self._num_others += entry is None and bool(line.strip())
                stream, text, is_end = entry or (b"", line, True)
                if stream in still_open:
                    text = still_open.pop(stream) + text
                if is_end or len(text) > MAX_OPEN_BYTES:
                    done += (text, b"\n")
                else:
                    still_open[stream] = text
            if done:
                yield b"".join(done)
        for text in still_open.values():
            yield text + b"\n"


def _lines(first: bytes, blocks: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The lines of each block, with what the one before it left; a line beyond the limit comes in
    pieces."""
    *lines, rest = first.split(b"\n")
    yield lines
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > MAX_ENTRY_BYTES:
            lines, rest = [*lines, *_pieces(rest)], b""
        yield lines
    yield _pieces(rest)


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + MAX_ENTRY_BYTES] for at in range(0, len(line), MAX_ENTRY_BYTES)]


def _kind_of(head: bytes) -> Callable[[bytes], Entry | None] | None:
    """What reads an entry, where the text is a container's log; None where it is not."""
    lines = head[:MAX_ENTRY_BYTES].split(b"\n", MAX_SNIFFED_LINES)[:MAX_SNIFFED_LINES]
    return next(
        (
            entry_of
            for entry_of in (_of_cri, _of_docker)
            if any(entry_of(line) is not None for line in lines)
        ),
        None,
    )


def _of_cri(line: bytes) -> Entry | None:
    match = CRI.fullmatch(line.rstrip(b"\r"))
    return None if match is None else (match[1], match[3] or b"", match[2] == b"F")


def _of_docker(line: bytes) -> Entry | None:
    if not line.startswith(b"{") or b'"log"' not in line or len(line) > MAX_ENTRY_BYTES:
        return None
    entry = parse_json_object(line)
    text, stream = entry.get("log"), entry.get("stream")
    if not isinstance(text, str) or not (
        isinstance(stream, str) or isinstance(entry.get("time"), str)
    ):
        return None
    name = stream.encode() if stream in ("stdout", "stderr") else b"other"
    return name, text.removesuffix("\n").encode("utf-8", "replace"), text.endswith("\n")
