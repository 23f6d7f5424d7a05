"""A document as Markdown, for a comment on a pull request.

Names and notes come out of strangers' files. Every character of theirs that Markdown or HTML reads
is written as an entity, and what GitHub would still make a link, a mention or a reference of once
it is drawn is parted by a space of no width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from stepscope.report.document.blocks import (
    Action,
    Bar,
    Block,
    Card,
    Cell,
    Code,
    Details,
    Document,
    Facts,
    Headline,
    Items,
    Line,
    Prose,
    Section,
    Stack,
    Table,
    Tone,
    Warn,
    cell,
)
from stepscope.report.words import NBSP, clean, percent, shorten

MAX_CHARS = 60_000
"""GitHub refuses a comment of more than 65 536."""
NO_WIDTH = "&#8203;"
NO_ROOM = "The rest is left out: there is no room for it here."
_READ = re.compile(r"[&<>\"'`*_{}\[\]|~\\$#@]")
_FIRST = re.compile(r"^(?:\d(?=\d*[.)](?:\s|$))|[-+=:](?!\d))")
"""Signs that at the start of a line may begin a list, a heading or a rule: a number, a sign or a
dash."""
_LINKED = re.compile(r"&#64;|&#35;(?=\d)|:(?=//)|\bwww(?=\.)|\bGH(?=-\d)", re.IGNORECASE)
"""Mentions and addresses of mail, issues, URLs: GitHub looks for them in the text that it has
drawn."""


class _Room(Struct, frozen=True, kw_only=True):
    """How much a comment may hold."""

    chars: int
    """Characters of one text."""
    details: int
    """Lines of what opens with a click."""


ROOMS = (_Room(chars=600, details=8), _Room(chars=200, details=2), _Room(chars=80, details=0))
"""The roomiest that stays under MAX_CHARS is taken."""


def to_markdown(document: Document) -> str:
    """The comment; shortened where GitHub would not take it whole."""
    for room in ROOMS:
        writer = _Writer(room)
        parts = [(block, writer.part(block)) for block in document]
        text = _joined(part for _, part in parts)
        if len(text) <= MAX_CHARS:
            return text
    while len(text) > MAX_CHARS and parts:
        last = max(
            (at for at, (block, _) in enumerate(parts) if not isinstance(block, Headline)),
            default=-1,
        )
        parts.pop(last)
        text = _joined([*(part for _, part in parts), NO_ROOM])
    return text


def escape(text: str, most: int = ROOMS[0].chars) -> str:
    """A stranger's text as one line that means nothing but itself."""
    plain = shorten(clean(text).strip(), most).replace(NBSP, " ")
    read = _READ.sub(_entity, plain)
    first = _FIRST.sub(_entity, read)
    return _LINKED.sub(lambda match: match[0] + NO_WIDTH, first)


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes blocks with as much in them as there is room for."""

    room: _Room

    def part(self, block: Block) -> str:
        """One that is left out leaves no tag open."""
        match block:
            case Headline():
                about = (_toned(self._safe(line), "quiet") for line in block.about)
                return _lines(f"## {block.command}: {self._safe(block.text)}", *about)
            case Prose():
                return _toned(self._safe(block.text), block.tone)
            case Warn():
                return f"> [!WARNING]\n> {self._safe(block.text)}"
            case Action():
                return f"&rarr; {self._safe(block.text)}"
            case Line():
                arrow = "&rarr; " if block.is_action else ""
                return arrow + _toned(self._safe(f"{block.text} {block.tail}"), block.tone)
            case Items():
                return self._list(block.lines)
            case Facts():
                return self._list(
                    [f"{name}: {text}" if name else text for name, text in block.rows]
                )
            case Code():
                return "\n".join(["<pre>", *map(self._code, block.lines), "</pre>"])
            case Table():
                caption = _toned(self._safe(block.caption), "strong")
                return _lines(caption, self._table(block)) if block.rows else caption
            case Stack():
                return self._list(
                    [f"{each.word}: {percent(each.share)}" for each in block.segments]
                )
            case Card():
                title = (
                    f"#### {block.number}. <code>{self._safe(block.code)}</code> "
                    f"{self._safe(block.title)}"
                )
                return _lines(title.rstrip(), *map(self.part, block.blocks))
            case Details():
                return self._details(block)
            case Section():
                return self._section(block)

    def _safe(self, text: str) -> str:
        return escape(text, self.room.chars)

    def _list(self, lines: Sequence[str]) -> str:
        return "\n".join(f"- {self._safe(line) or '(empty)'}" for line in lines)

    def _code(self, line: str) -> str:
        """The spaces at its start stay."""
        return " " * (len(line) - len(line.lstrip(" "))) + self._safe(line)

    def _section(self, section: Section) -> str:
        title, aside = self._safe(section.title), self._safe(section.aside)
        parts = list(map(self.part, section.blocks))
        if not section.is_folded:
            return _lines(f"### {title}", _toned(aside, "quiet"), *parts)
        return _folded(f"{title} ({aside})" if aside else title, parts)

    def _details(self, details: Details) -> str:
        shown, num = details.lines[: self.room.details], len(details.lines)
        listed = [self._list(shown)] if shown else []
        if num > len(shown):
            left_out = (
                f"and {num - len(shown)} more"
                if shown
                else f"{num}, left out: there is no room for them here"
            )
            listed = ["\n".join([*listed, f"- {left_out}"])]
        return _folded(f"{self._safe(details.title)} ({num})", listed) if num else ""

    def _table(self, table: Table) -> str:
        shown = [at for at in range(len(table.columns)) if at not in table.bars]
        titles = [self._safe(table.columns[at].title) for at in shown]
        sides = ["--:" if table.columns[at].right else ":--" for at in shown]
        rows = [[self._cell(row[at]) for at in shown] for row in table.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in (titles, sides, *rows))

    def _cell(self, value: str | Cell | Bar) -> str:
        shown = cell(value)
        text = _toned(self._safe(shown.text), "strong" if shown.tone == "strong" else "")
        return f"{text}<br>{self._safe(shown.note)}" if shown.note else text


def _lines(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _toned(text: str, tone: Tone) -> str:
    """Loud or quiet; text without words stays nothing."""
    if not text or tone in ("", "warn", "good", "bad"):
        return text
    return f"**{text}**" if tone == "strong" else f"<sub>{text}</sub>"


def _folded(title: str, parts: Sequence[str]) -> str:
    """Fold parts so that they open with a click. The blank lines around them are what makes GitHub
    read it as Markdown."""
    return _lines(f"<details><summary>{title}</summary>", *parts, "</details>")
