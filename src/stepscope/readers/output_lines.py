"""Lines of a job's output, and the numbers, times and ranks in them. Everything is bounded: a log
may be anyone's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from itertools import islice
from typing import TypeVar

from stepscope.protocol.untrusted import finite_text
from stepscope.readers.text_lines import bounded_lines

JSON_START = re.compile(rb"[\s\xef\xbb\xbf]*(?:\{\s*\"|\[\s*[\[{\"])")
NOT_A_LOG = (".md", ".rst", ".py", ".ipynb", ".html")
"""Words and programs about logs quote their lines."""
MAX_LINE_BYTES = 8192
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
    for line, is_whole in bounded_lines(blocks, MAX_LINE_BYTES, ENDS):
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
