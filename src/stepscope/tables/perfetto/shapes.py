"""What is written to a timeline, whichever form it is written in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from stepscope.core.trace import DeviceProperties, Float64, Int64

MAX_CHARS = 2000
"""Characters of one name: a stranger's file may hold one of a megabyte."""
Value = str | int | float
SHAPES = "Input Dims"
"""Name that PyTorch's profiler gives to shapes."""


class Arg(Struct, frozen=True, kw_only=True):
    """Something recorded of slices: a number, or a text of a table. Below 0: nothing."""

    name: str
    value: Int64
    texts: tuple[str, ...] | None = None
    is_json: bool = False
    """Whether the texts are JSON, as the recorder wrote it."""


class Slices(Struct, frozen=True, kw_only=True):
    """Slices of one process as columns, with the order in which they open (`i`) and close
    (`~i`)."""

    track: Int64
    start_ns: Int64
    end_ns: Int64
    name: Int64
    names: tuple[str, ...]
    category: Int64
    categories: tuple[str, ...]
    order: Int64
    args: tuple[Arg, ...] = ()
    arrow_to: Int64
    """The arrow that ends at each slice, by its number in the whole file; NONE: none."""
    arrows_from: tuple[Int64, Int64]
    """Slices, sorted, and the arrow that begins at each; a slice may stand there many times."""


class Writer(Protocol):
    """A form of the file. Times are nanoseconds from the file's origin; tracks and processes are
    numbered by the caller."""

    def process(
        self, number: int, name: str, rank_order: int, devices: Sequence[DeviceProperties] = ()
    ) -> None: ...
    def thread(self, number: int, process: int, name: str, order: int) -> None: ...
    def track(self, number: int, process: int, name: str, order: int) -> None: ...
    def counter(self, number: int, process: int, name: str, unit: str, order: int) -> None: ...
    def slices(self, process: int, slices: Slices) -> None: ...
    def points(self, process: int, number: int, time_ns: Int64, value: Float64) -> None: ...
    def slice(
        self,
        process: int,
        track: int,
        name: str,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, Value | list[str]],
    ) -> None: ...
    def finish(self) -> None: ...


def plain(text: str) -> str:
    """A stranger's text, short enough, that every reader of UTF-8 takes: no half of a surrogate
    pair, no NUL."""
    if len(text) > MAX_CHARS:
        text = text[:MAX_CHARS] + "..."
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{SYMBOL FOR NULL}")
