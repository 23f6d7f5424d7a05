"""The blocks that every document is made of. They hold words and say what these are, never how they
look.

Text is as it came, strangers' names too: each renderer makes it harmless, in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Literal, ParamSpec

from msgspec import Struct

from stepscope.report.words import plural

P = ParamSpec("P")
MAX_NOTES = 12
MAX_CELLS = 60

Tone = Literal["", "strong", "quiet", "good", "warn", "bad"]
Part = Literal["compute", "comms", "copies", "input", "idle", "change", ""]
"""What a bar shows, as its colour tells. A change that is less goes to the left of the middle."""


class Headline(Struct, frozen=True, kw_only=True):
    """The answer in a sentence."""

    text: str
    command: str = "stepscope"
    """Command that says it, where a reader may not know."""
    about: tuple[str, ...] = ()
    """What was looked at."""
    is_tight: bool = False
    """Whether no line parts it from what it is about."""
    tone: Tone = ""


class Prose(Struct, frozen=True):
    """A paragraph."""

    text: str
    tone: Tone = ""


class Warn(Struct, frozen=True):
    """What must not be overlooked."""

    text: str


class Action(Struct, frozen=True):
    """What to do about it."""

    text: str


class Line(Struct, frozen=True, kw_only=True):
    """A sentence that is given so many lines, and ends at a clause where they hold no more."""

    text: str
    tail: str = ""
    """What stands after it, whatever room there is."""
    most: int = 1
    is_action: bool = False
    tone: Tone = ""


class Items(Struct, frozen=True):
    """A list of sentences."""

    lines: tuple[str, ...]


class Facts(Struct, frozen=True):
    """Labelled facts; one without a label goes on from the one before."""

    rows: tuple[tuple[str, str], ...]


class Code(Struct, frozen=True):
    """Lines that are shown as they are, less their middle where there is no room."""

    lines: tuple[str, ...]
    is_change: bool = False
    """Whether `- ` and `+ ` begin lines that go and lines that come; none is ever shortened."""


class Column(Struct, frozen=True, kw_only=True):
    """How one column of a table is set."""

    title: str = ""
    right: bool = False
    """Whether it is aligned right, as numbers are."""
    fit: Literal["whole", "shorten", "wrap"] = "whole"
    """How it gives way where there is no room: not at all, in the middle of its names, or on more
    lines."""
    most: int = MAX_CELLS
    """Cells it may take however much room there is."""
    tone: Tone = ""


class Cell(Struct, frozen=True):
    """A text of a table, with what is said about it below."""

    text: str
    tone: Tone = ""
    note: str = ""
    hint: str = ""
    """What a page shows where one points at it."""


class Bar(Struct, frozen=True):
    """A share as a bar, where one can be drawn; the numbers stand beside it."""

    share: float
    part: Part = ""


class Table(Struct, frozen=True, kw_only=True):
    """Rows under their titles. A column of bars has nothing else in it."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str | Cell | Bar, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), (
            "a row has a cell for each column"
        )

    @property
    def has_titles(self) -> bool:
        return any(column.title for column in self.columns)

    @property
    def bars(self) -> frozenset[int]:
        """The columns of bars."""
        return frozenset(
            at for row in self.rows for at, cell in enumerate(row) if isinstance(cell, Bar)
        )


class Segment(Struct, frozen=True):
    """One of the parts that a whole is made of."""

    word: str
    share: float
    part: Part = "idle"


class Stack(Struct, frozen=True):
    """A whole as one bar of its parts, which sum to 1, each named below it."""

    segments: tuple[Segment, ...]


class Details(Struct, frozen=True, kw_only=True):
    """What opens with a click, and is left out where there is none."""

    title: str
    lines: tuple[str, ...]


class Card(Struct, frozen=True, kw_only=True):
    """One of several numbered entries."""

    number: int
    code: str
    title: str
    blocks: tuple[Block, ...]


class Section(Struct, frozen=True, kw_only=True):
    """Blocks under a title."""

    title: str
    aside: str = ""
    blocks: tuple[Block, ...]
    is_folded: bool = False
    """Whether it opens with a click, where there is one."""


Block = (
    Headline
    | Prose
    | Warn
    | Action
    | Line
    | Items
    | Facts
    | Code
    | Table
    | Stack
    | Details
    | Card
    | Section
)
Document = tuple[Block, ...]


def as_document(blocks: Callable[P, Iterable[Block]]) -> Callable[P, Document]:
    """The document of what a function yields, block after block."""

    @wraps(blocks)
    def made(*args: P.args, **kwargs: P.kwargs) -> Document:
        return tuple(blocks(*args, **kwargs))

    return made


def cell(value: str | Cell | Bar) -> Cell:
    """The cell as text; a bar has none."""
    if isinstance(value, Cell):
        return value
    return Cell("" if isinstance(value, Bar) else value)


def numbers(*titles: str) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(title=title, right=True) for title in titles)


def shortened(lines: Sequence[str], most: int, noun: str) -> tuple[Block, ...]:
    """The first lines as a list, and how many more there are."""
    shown = (Items(tuple(lines[:most])),) if lines else ()
    return (*shown, *more(len(lines) - most, noun))


def more(count: int, noun: str, rest: str = "") -> tuple[Prose, ...]:
    """`and 3 kinds more`; nothing where there are no more."""
    return (Prose(f"and {plural(count, noun)} more{rest}", "quiet"),) if count > 0 else ()


def notes(
    lines: Sequence[str], aside: str = "what could not be judged, and why"
) -> tuple[Section, ...]:
    """The notes that end a document; nothing where there are none."""
    if not lines:
        return ()
    blocks = shortened(lines, MAX_NOTES, "note")
    return (Section(title="Notes", aside=aside, blocks=blocks, is_folded=True),)
