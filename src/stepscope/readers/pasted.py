"""Texts as they are pasted: out of a terminal, a mail, a ticket, a Windows shell.

    > (base) me@gpu-3:~$ nvidia-smi topo -m          ```
    >         GPU0    GPU1                    ->     the table's lines, at their numbers
    > GPU0     X      NV12

`plain` takes away what the way to us added: colours, carriage returns, marks of quotation, fences,
prompts with their commands, an indentation of all lines. Lines keep their numbers, for findings
name them. `sections` takes apart what several tools printed into one text: each table with the
lines around it that nobody else claims, and what a job wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from stepscope.readers.text_lines import COLOR, JSON_START

MAX_PASTED_BYTES = 1 << 20
"""Nobody pastes more; a job's log may be longer, and is read as it is."""
MAX_BLOCKS = 400
"""Blocks of lines, each of which is asked for its format."""

UTF16 = (b"\xff\xfe", b"\xfe\xff")
TITLE = re.compile(r"\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)")
"""A terminal's title, which shells write with their prompt."""
SPACES = str.maketrans({"\xa0": " ", "\u202f": " ", "\u200b": None, "\ufeff": None})
QUOTE = re.compile(r"[ \t]{0,8}(?:>(?!>>)[ \t]?){1,8}")
FENCE = re.compile(r"\s{0,16}`{3,16}[\w+.-]{0,32}\s*")
WHO = r"[\w.-]{1,64}@[\w.-]{1,64}"
PROMPT = re.compile(
    r"\s{0,16}(?:\([\w./+-]{1,64}\)\s{1,4}){0,2}"
    rf"(?:{WHO}[: ][^\s$#%>]{{0,200}}\s?[$#%>]|\[{WHO}[^\]\n]{{0,200}}\]\s?[$#%>]"
    r"|[\w.-]{1,64}:[~/][^\s$#%>]{0,200}\s?[$#]|[~/][\w./-]{0,100}\s?[$%]|\$"
    r"|(?:PS )?[A-Z]:\\[^>\n]{0,200}>|>>>|\.\.\.|In \[\d{1,6}\]:|bash-[\d.]{1,8}[$#]|\u279c)"
    r"(?:\s.{0,4000})?"
)
MIN_INDENT = 2


class Section(Struct, frozen=True, kw_only=True):
    """Part of a text, with the lines that are not of it left empty."""

    text: str
    owner: str | None
    """Format of the section; None for what may be a job's output."""


def decoded(data: bytes) -> str | None:
    """The text; None for what is none, or was not pasted."""
    if len(data) > MAX_PASTED_BYTES:
        return None
    if data.startswith(UTF16):
        return data.decode("utf-16", "replace")
    if b"\0" in data or JSON_START.match(data):
        return None
    return data.decode("utf-8", "replace")


def plain(text: str) -> str:
    """The same lines, without what a terminal, a mail or a page put around them."""
    return "\n".join(_without_indent([line for line, _, _ in _lines(text)]))


def _lines(text: str) -> Iterator[tuple[str, bool, bool]]:
    """Each line as it was printed; whether it stands between two texts (a fence, a prompt); and
    whether it is a quotation."""
    text = COLOR.sub("", TITLE.sub("", text)) if "\x1b" in text else text
    lines = text.replace("\r\n", "\n").translate(SPACES).split("\n")
    is_quoted = [QUOTE.match(line) is not None for line in lines]
    for at, line in enumerate(lines):
        # One line alone that begins with `>` may be anything.
        is_quote = is_quoted[at] and any(
            is_quoted[max(0, at - 1) : at] + is_quoted[at + 1 : at + 2]
        )
        line = QUOTE.sub("", line, count=1) if is_quote else line
        is_between = FENCE.fullmatch(line) is not None or PROMPT.fullmatch(line) is not None
        yield ("" if is_between else line.rstrip("\r")), is_between, is_quote


def _without_indent(lines: list[str]) -> list[str]:
    """Lines that stand apart and are all indented, as far left as the first of their columns."""
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) >= MIN_INDENT):
            end += 1
        run = [line for line in lines[start:end] if line.strip()]
        # A table's rows may be indented below their header.
        if run and _is_apart(lines, start - 1, start) and _is_apart(lines, end - 1, end):
            least = min(map(_indent, run))
            lines[start:end] = [line[least:] for line in lines[start:end]]
        start = end + 1
    return lines


def _is_apart(lines: Sequence[str], first: int, second: int) -> bool:
    """Whether one of the two lines is empty, or not there."""
    return first < 0 or second >= len(lines) or not (lines[first].strip() and lines[second].strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def sections(
    text: str, format_of: Callable[[str], str | None], shares_output: Callable[[str], bool]
) -> list[Section]:
    """What several tools printed, apart: one section for each table, in their order, and one for
    what is left."""
    given = list(_lines(text))
    lines = _without_indent([line for line, _, _ in given])
    blocks = list(
        _blocks(lines, [each for _, each, _ in given], [quoted for _, _, quoted in given])
    )
    if len(blocks) > MAX_BLOCKS:
        return []
    owners = _owners(
        [format_of("\n".join(lines[first:last])) for first, last, _ in blocks],
        [is_apart for _, _, is_apart in blocks],
        shares_output,
    )
    found = []
    for owner in dict.fromkeys(owners):
        kept = [block for block, mine in zip(blocks, owners, strict=True) if mine == owner]
        text = _alone(lines, kept)
        found.append(Section(text=text if owner is None else text.lstrip("\n"), owner=owner))
    return found


def _blocks(
    lines: Sequence[str], between: Sequence[bool], quoted: Sequence[bool]
) -> Iterator[tuple[int, int, bool]]:
    """Where each run of lines begins and ends; and whether it stands apart from the one before."""
    start, is_apart = None, True
    for at, line in enumerate(lines):
        is_turn = at > 0 and quoted[at] != quoted[at - 1]
        if start is not None and (is_turn or not line.strip()):
            yield start, at, is_apart
            start, is_apart = None, False
        is_apart = is_apart or is_turn or between[at]
        if line.strip() and start is None:
            start = at
    if start is not None:
        yield start, len(lines), is_apart


def _owners(
    formats: Sequence[str | None], apart: Sequence[bool], shares_output: Callable[[str], bool]
) -> list[str | None]:
    """Owner of each block: a table's go on until another's, or a prompt; and what stands before the
    first one is its title. None for a job's output, which all of that shares."""
    owners: list[str | None] = []
    for name, is_apart in zip(formats, apart, strict=True):
        if name is None:
            owners.append(None if is_apart or not owners else owners[-1])
        else:
            owners.append(None if shares_output(name) else name)
    for at in range(len(owners) - 1, 0, -1):
        is_title = formats[at - 1] is None and owners[at - 1] is None and not apart[at]
        if is_title and owners[at] is not None:
            owners[at - 1] = owners[at]
    return owners


def _alone(lines: Sequence[str], blocks: Sequence[tuple[int, int, bool]]) -> str:
    """Only these blocks, each line at its number."""
    kept = [""] * len(lines)
    for first, last, _ in blocks:
        kept[first:last] = lines[first:last]
    return "\n".join(kept)
