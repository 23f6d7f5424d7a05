"""A text's lines, safely: none longer than a limit, no more than a limit, whatever the file
holds.

Lines of a job's output, and the numbers, times and ranks in them. Everything is bounded: a log
may be anyone's.

A job's output as a container's runtime keeps it, unwrapped: what the job wrote, line by line.

    {"log":"step 12: 114 ms\n","stream":"stdout","time":"2026-11-16T08:00:00.931087621Z"}
    2026-11-16T08:00:00.931087621Z stdout F step 12: 114 ms

The first is docker's json-file, the second Kubernetes' (CRI) and podman's. Both cut long lines (at
16 KiB) into entries: docker's has no end of line then, a CRI entry has the tag P instead of F. They
are joined, standard output and standard error apart, for the two are written into one another. An
entry that is cut, or none at all, is passed on as it is, and counted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from datetime import date
from itertools import islice
from typing import TypeVar

from stepscope.protocol.untrusted import finite_text, parse_json_object
from stepscope.readers.format import Source
from stepscope.readers.stream import Stream

MAX_LINE_BYTES = 64 << 10
"""A stack of a thousand calls is below it."""
MAX_LINES = 20_000_000
LINE_END = re.compile(rb"\n")


class TextLines:
    """The lines of a source; afterwards `notes` says what was damaged or left out."""

    def __init__(
        self, source: Source, *, max_line_bytes: int = MAX_LINE_BYTES, max_lines: int = MAX_LINES
    ) -> None:
        self._source = source
        self._max_line_bytes = max_line_bytes
        self._max_lines = max_lines
        self.num_cut = 0
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[str]:
        stream = opened(self._source)
        with closing(stream.blocks()) as blocks:
            lines = bounded_lines(blocks, self._max_line_bytes)
            for number, (line, is_whole) in enumerate(lines):
                if number >= self._max_lines:
                    self.notes.append(
                        f"{self._source.label}: what comes after {self._max_lines:,} lines was "
                        "left out"
                    )
                    break
                self.num_cut += not is_whole
                yield line
        if stream.problem:
            self.notes.append(f"{self._source.label}: {stream.problem}")
        if self.num_cut:
            self.notes.append(
                f"{self._source.label}: {self.num_cut:,} line(s) longer than "
                f"{self._max_line_bytes >> 10} KiB cut"
            )


def bounded_lines(
    blocks: Iterable[bytes], limit: int, ends: re.Pattern[bytes] = LINE_END
) -> Iterator[tuple[str, bool]]:
    """Lines as text, cut after so many bytes; and whether each is whole."""
    rest, is_whole = b"", True
    for block in blocks:
        first, *others = ends.split(block)
        is_whole = is_whole and len(rest) + len(first) <= limit
        rest = (rest + first[:limit])[:limit]
        for part in others:
            yield rest.decode("utf-8", "replace").rstrip("\r"), is_whole
            rest, is_whole = part[:limit], len(part) <= limit
    if rest:
        yield rest.decode("utf-8", "replace").rstrip("\r"), is_whole


def csv_cells(line: str) -> list[str] | None:
    """The cells of one line, so that a quote that nobody closes costs that line alone; None where
    they cannot be told apart."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return None


JSON_START = re.compile(rb"[\s\xef\xbb\xbf]*(?:\{\s*\"|\[\s*[\[{\"])")
NOT_A_LOG = (".md", ".rst", ".py", ".ipynb", ".html")
"""Words and programs about logs quote their lines."""
MAX_OUTPUT_LINE_BYTES = 8192
"""A line of Megatron with every metric it has is below 2 KiB."""
BATCH_LINES = 256
Line = TypeVar("Line")
MAX_MS = 1e10
"""Longer than a hundred days is no time of a step."""
MAX_RANKS = 1 << 20
MAX_BAR_NAME = 80
MAX_BAR_REST = 1024
"""What a loop puts behind its rate: losses and the like."""

COLOR = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]")
ENDS = re.compile(rb"[\r\n]+")
NUMBER = r"[+-]?\d{1,18}(?:\.\d{0,18})?(?:[eE][+-]?\d{1,3})?"
FIRST_NUMBER = re.compile(rf"\s*({NUMBER})(?![\w.])")
STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)[.,](\d{3,6})")
RANK = re.compile(r"\[(?:[Rr]ank |rank|default)(\d{1,7})\]")
BAR = re.compile(
    r"\d{1,3}%\|[^|]{0,200}\|\s{0,16}(?P<at>\d{1,12})/(?P<of>\d{1,12})"
    r" \[(?P<gone>[\d:]{4,12})<[^,\]]{1,20},\s{0,8}(?:\?|\d{1,12}(?:\.\d{1,6})?)(?:it/s|s/it)"
)
"""tqdm: `Epoch 0:  15%|#5   | 12/80 [00:04<00:23,  2.90it/s, v_num=0]`."""


def may_be_output(head: bytes, name: str) -> bool:
    """Neither data nor JSON, nor words about logs."""
    return not (b"\0" in head[:4096] or JSON_START.match(head) or name.lower().endswith(NOT_A_LOG))


def text_lines(blocks: Iterator[bytes]) -> Iterator[tuple[str, bool]]:
    """Lines without colours, none longer than the limit; and whether each is whole. A progress
    bar's rewrites are lines."""
    for line, is_whole in bounded_lines(blocks, MAX_OUTPUT_LINE_BYTES, ENDS):
        if line:
            yield uncolored(line), is_whole


def batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Some lines at a time: whether any of them has a mark is found faster in all of them
    together."""
    while batch := list(islice(lines, BATCH_LINES)):
        yield batch


def uncolored(line: str) -> str:
    return COLOR.sub("", line) if "\x1b" in line else line


def number(text: str) -> float | None:
    """The number that a text begins with (thousands may be apart); None where there is none, or no
    finite one."""
    match = FIRST_NUMBER.match(text.replace(",", ""))
    return finite_text(match[1]) if match else None


def whole_number(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 2**53 else None


def whole(text: str) -> int | None:
    return whole_number(number(text))


def milliseconds_to_ns(value: float | None) -> int | None:
    """None where it is no time that a step takes."""
    return round(value * 1e6) if value is not None and 0 <= value <= MAX_MS else None


def ns_of_ms(text: str) -> int | None:
    return milliseconds_to_ns(number(text))


def fields(text: str) -> Iterator[tuple[str, str]]:
    """` a: 1 | b c: 2 |` as (a, 1), (b c, 2)."""
    for part in text.split("|"):
        name, colon, value = part.rpartition(":")
        if colon:
            yield name.strip(), value.strip()


def seconds_of(text: str, end: int | None = None) -> float | None:
    """The time of day, with its date, that a line begins with; in seconds since some day long
    ago."""
    match = STAMP.search(text[:160] if end is None else text[:end])
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        return None
    return days * 86400.0 + hour * 3600 + minute * 60 + second + float(f"0.{match[7]}")


def rank_of(text: str, end: int) -> int | None:
    """The rank that a line's prefix names: the nearest, where there are several."""
    ranks = RANK.findall(text[:end])
    return int(ranks[-1]) if ranks and int(ranks[-1]) < MAX_RANKS else None


def bars(line: str) -> Iterator[tuple[str, int, int, int]]:
    """Every progress bar in a line: its name, where it stands, of how many, and the seconds
    passed."""
    end = 0
    for match in BAR.finditer(line):
        seconds = _bar_seconds(match["gone"])
        if seconds is not None:
            name = line[max(end, match.start() - MAX_BAR_NAME) : match.start()].strip()
            yield name, int(match["at"]), int(match["of"]), seconds
        closed = line.find("]", match.end(), match.end() + MAX_BAR_REST)
        end = closed + 1 if closed >= 0 else match.end()


def _bar_seconds(text: str) -> int | None:
    """`1:02:03` as seconds."""
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not all(part.isdecimal() and part.isascii() for part in parts):
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return total


MAX_ENTRY_BYTES = 1 << 20
"""docker's are below 100 KiB: 16 KiB of output, each letter escaped."""
MAX_OPEN_BYTES = 1 << 20
"""Bytes of a line whose end has not come: longer than what any reader keeps of one."""
MAX_SNIFFED_LINES = 4
"""A file that was cut at its beginning begins inside an entry."""
CRI = re.compile(
    rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) (stdout|stderr) "
    rb"([FP])(?::[^\s]{1,200})?(?: (.*)|)",
    re.DOTALL,
)
Entry = tuple[bytes, bytes, bool]
"""Stream, text, and whether its line ends with it."""


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
