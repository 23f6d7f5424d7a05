"""A file of pasted text, as the files that its parts would have been."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from msgspec.structs import replace

from stepscope.errors import InputError
from stepscope.readers.detect import detect, format_of, name_of, reader_of
from stepscope.readers.format import LOGS, NCCL, TRACE, Format, Source
from stepscope.readers.formats import BY_NAME
from stepscope.readers.pasted import (
    MAX_PASTED_BYTES,
    Section,
    decoded,
    plain,
    sections,
)
from stepscope.readers.stream import Stream

STDIN_LABEL = "stdin"
MAX_STDIN_BYTES = 4 << 30
COPIED_BYTES = 1 << 20
MAX_WORDS_LINES = 100
"""Lines of words above a table that somebody sent, at most."""


def standard_input(held: ExitStack, given: BinaryIO | None = None) -> Source:
    """What was piped or pasted into stepscope, as a file that goes away with `held`."""
    given = sys.stdin.buffer if given is None else given
    path = _folder(held) / STDIN_LABEL
    size = 0
    with path.open("wb") as file:
        while block := given.read(COPIED_BYTES):
            size += len(block)
            if size > MAX_STDIN_BYTES:
                raise InputError(
                    f"stdin has more than {MAX_STDIN_BYTES >> 30} GiB. Write it to a file first."
                )
            file.write(block)
    if not size:
        raise InputError("stdin is empty: paste or pipe a text into it, or name a file.")
    return Source(path=path, label=STDIN_LABEL)


def pasted_parts(source: Source, as_it_is: Sequence[Format], held: ExitStack) -> list[Source]:
    """The parts of a pasted text, each with its format; empty where the file is read as it is."""
    if not isinstance(source.path, Path):
        return []
    data = _start(source)
    text = decoded(data)
    if text is None:
        return []
    cleaned, parts = plain(text), sections(text, _owner_of, _is_output)
    if len(parts) < 2:
        if as_it_is and cleaned.encode() == data:
            return []
        whole = [] if cleaned.encode() == data else [Section(text=cleaned, owner=None)]
        parts = [*whole, *parts]
        return next((found for each in parts if (found := _of_section(source, each, held))), [])
    return [part for each in parts for part in _of_section(source, each, held)]


def _of_section(source: Source, section: Section, held: ExitStack) -> list[Source]:
    with ExitStack() as mine:
        path = _folder(mine) / name_of(source)
        part = replace(source, path=path)
        owner = section.owner
        text = section.text if owner is None else _from_its_start(section.text, owner)
        path.write_text(text, encoding="utf-8", newline="\n")
        formats = (BY_NAME[owner],) if owner is not None else detect(part, [])
        found = [replace(part, format=each.name) for each in formats if each.kind != TRACE]
        if found:
            held.enter_context(mine.pop_all())
        return found


def _from_its_start(text: str, owner: str) -> str:
    """Text without the words above a table, where its reader knows it by its first line alone."""
    lines = text.split("\n")
    for first in range(min(len(lines), MAX_WORDS_LINES)):
        rest = "\n".join(lines[first:])
        if reader_of(owner).is_mine(rest.encode(), ""):
            return rest
    return text


def _start(source: Source) -> bytes:
    """All of a text that may have been pasted; of a longer one as much as shows that it was not."""
    parts, size = [], 0
    with closing(Stream(source.path, source.offset, source.length).blocks()) as blocks:
        for block in blocks:
            parts.append(block)
            size += len(block)
            if size > MAX_PASTED_BYTES:
                break
    return b"".join(parts)


def _owner_of(block: str) -> str | None:
    """Owner of a run of lines, by itself."""
    head = block.encode()
    if reader_of(NCCL).is_mine(head, ""):
        return NCCL
    owner = format_of(head, "")
    return None if owner is None or owner.kind == TRACE else owner.name


def _is_output(name: str) -> bool:
    """Whether its lines may stand anywhere in a job's output."""
    return BY_NAME[name].is_output or BY_NAME[name].kind in LOGS


def _folder(held: ExitStack) -> Path:
    return Path(held.enter_context(TemporaryDirectory(prefix="stepscope-")))
