"""What TORCH_LOGS=recompiles,graph_breaks,perf_hints writes, of one or many ranks in one file or
several.

    [rank0]:V1115 02:01:47.025000 493     torch/_dynamo/guards.py:4760]  [0/1]       [__recompiles]
    rank    level, date, time     process where it was logged           compile id  artifact
    Recompiling function f in train.py:59
    the message, line by line

Every line of a message has all of that before it, so that messages of several ranks can be
distinguished. Logs of 2.0 to 2.2 have `[2023-11-21 19:02:13,073] [0/1]
torch._dynamo.guards.__recompiles: [DEBUG]` instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from stepscope.api import FormatError, Reader, Source
from stepscope.core.recordings.compiler import CompilerReport
from stepscope.readers.text_lines import bounded_lines, opened
from stepscope.recordings.compiler.breaks import FILE, MAX_LINES, break_of, is_break
from stepscope.recordings.compiler.builder import MAX_NAME, CompileBuilder, ReportBuilder, Writer

MAX_LINE_BYTES = 16 << 10
MAX_OPEN = 2048
"""Messages of which more lines may come: one for each process and kind."""
MAX_KEPT = 500
"""Letters of a line of a message."""
ARTIFACTS = r"recompiles|recompiles_verbose|graph_breaks|perf_hints"
IDENT = r"(?: \[([^\[\]\s]{1,60}/[^\[\]\s]{1,20})\])?"
NEW = (
    r"[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{3,6} (\d{1,20}) [^\s\]]{1,300}?:\d{1,9}\]"
    + IDENT
    + r"(?: \[__(\w{1,40})\])?(?: (.*)|$)"
)
OLD = (
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\]"
    + IDENT
    + r" torch\.[\w.]{1,120}?(?:\.__(\w{1,40}))?: \[[A-Z]{4,8}\](?: (.*)|$)"
)
NEW_LINE, OLD_LINE = re.compile(NEW), re.compile(OLD)
MINE = re.compile(
    (
        r"^[^\n\t{]{0,80}?"
        r"(?:[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{3,6} \d{1,20} "
        r"[^\s\]]{1,300}?:\d{1,9}\]|\[\d{4}-\d\d-\d\d [\d:,]{8,12}\])"
        rf"[^\n{{]{{0,120}}?(?:\[__(?:{ARTIFACTS})\]|\.__(?:{ARTIFACTS}): \[|torch\._dynamo hit "
        r"config\.)"
    ).encode(),
    re.MULTILINE,
)
MINE_MARKS = (b"__recompiles", b"__graph_breaks", b"__perf_hints", b"torch._dynamo hit config.")
"""One of them is in whatever MINE finds; they are sought faster."""
RANK = re.compile(r"\[rank(\d{1,6})\]:")
COLOR = re.compile(r"\x1b\[[0-9;]{0,20}m")
RECOMPILING = re.compile(r"Recompiling function (.{1,300}?) in (.{1,400}:\d{1,9})\s*")
LIMIT = re.compile(r"torch\._dynamo hit config\.(\w{1,80}) \((\d{1,12})\)")
LIMITED = re.compile(r"\s+function: '(.{1,300}?)' \((.{1,400}:\d{1,9})\)")
LAST_REASON = re.compile(r"\s+last reason: (.+)")
FAILURE = re.compile(r"\s+- (.*)")


def is_mine(head: bytes, _name: str) -> bool:
    return is_in(head)


def is_in(text: bytes) -> bool:
    """Whether a line of the compiler's is somewhere in a text."""
    return any(mark in text for mark in MINE_MARKS) and MINE.search(text) is not None


@dataclass(slots=True)
class _Open:
    """A message of which more lines may come."""

    lines: list[str] = field(default_factory=list)
    compiled: CompileBuilder | None = None
    guard: str | None = None
    frames: list[tuple[str, str]] = field(default_factory=list)


class _FileParser:
    """One file, line by line."""

    def __init__(self, builder: ReportBuilder) -> None:
        self._builder = builder
        self._open: dict[tuple[Writer, str, str], _Open] = {}
        self._num_unnamed = 0

    def take(self, line: str) -> None:
        """One line of the file, whoever wrote it."""
        line = COLOR.sub("", line)
        match, process = NEW_LINE.search(line), None
        if match is not None:
            process, ident, artifact, text = int(match[1]), match[2], match[3], match[4]
        elif (match := OLD_LINE.search(line)) is not None:
            ident, artifact, text = match[1], match[2], match[3]
        else:
            return
        rank_match = RANK.search(line, 0, match.start())
        rank = int(rank_match[1]) if rank_match else None
        self._message(
            (rank, process), re.sub(r"_\d{1,9}$", "", ident or ""), artifact or "", text or ""
        )

    def end(self) -> None:
        for key in list(self._open):
            self._close(key)

    def _message(self, writer: Writer, ident: str, artifact: str, text: str) -> None:
        builder, key = self._builder, (writer, ident, artifact)
        if artifact == "perf_hints":
            builder.num_lines += 1
            builder.add_hint(text.strip()[:MAX_NAME])
        elif artifact in ("recompiles", "recompiles_verbose"):
            builder.num_lines += 1
            self._recompile(key, text)
        elif artifact == "graph_breaks":
            builder.num_lines += 1
            self._break(key, text)
        elif artifact == "":
            self._warning(key, text)

    def _opened(self, key: tuple[Writer, str, str]) -> _Open:
        """A new message, instead of the one before."""
        self._close(key)
        if len(self._open) >= MAX_OPEN:
            self._close(next(iter(self._open)))
        return self._open.setdefault(key, _Open())

    def _ident(self, ident: str) -> str:
        """The id, or a new one where old versions have none."""
        self._num_unnamed += not ident
        return ident or f"?{self._num_unnamed}/0"

    def _recompile(self, key: tuple[Writer, str, str], text: str) -> None:
        if match := RECOMPILING.match(text):
            message = self._opened(key)
            message.compiled = self._builder.compile(key[0], self._ident(key[1]))
            message.compiled.function, message.compiled.location = match[1], match[2]
            message.compiled.guards = []
            return
        message_or_none, failure = self._open.get(key), FAILURE.fullmatch(text)
        if message_or_none is None or failure is None:
            return
        self._failure(message_or_none, failure[1])

    def _failure(self, message: _Open, text: str) -> None:
        """A guard, or a line of the user's stack that belongs to the one before."""
        if text.startswith("  "):
            if match := FILE.match(text):
                message.frames.append((f"{match[1]}:{match[2]}", ""))
            elif message.frames and text.strip():
                message.frames[-1] = (message.frames[-1][0], text.strip()[:MAX_NAME])
        elif not text.startswith("User stack trace:"):
            self._flush_guard(message)
            message.guard = text

    def _flush_guard(self, message: _Open) -> None:
        if message.guard is not None and message.compiled is not None:
            self._builder.add_guard(message.compiled, message.guard, message.frames[-1:])
        message.guard, message.frames = None, []

    def _break(self, key: tuple[Writer, str, str], text: str) -> None:
        if is_break(text):
            self._opened(key).lines.append(text[:MAX_KEPT])
        elif (message := self._open.get(key)) is not None:
            message.lines.append(text[:MAX_KEPT])
            if len(message.lines) > MAX_LINES:
                del message.lines[MAX_LINES // 2]

    def _warning(self, key: tuple[Writer, str, str], text: str) -> None:
        """What is written whatever TORCH_LOGS says: a limit that was hit."""
        builder = self._builder
        if match := LIMIT.search(text):
            builder.num_lines += 1
            message = self._opened(key)
            message.compiled = builder.compile(key[0], self._ident(key[1]))
            message.compiled.limit = f"{match[1]} ({match[2]})"
        elif (message_or_none := self._open.get(key)) is None or (
            compiled := message_or_none.compiled
        ) is None:
            return
        elif match := LIMITED.match(text):
            compiled.function, compiled.location = match[1], match[2]
        elif (match := LAST_REASON.match(text)) and not compiled.guards:
            builder.add_guard(compiled, match[1])

    def _close(self, key: tuple[Writer, str, str]) -> None:
        message = self._open.pop(key, None)
        if message is None:
            return
        self._flush_guard(message)
        (rank, process), ident, _ = key
        graph_break = break_of(message.lines, ident or self._ident(""), rank, process)
        if graph_break is not None:
            self._builder.add_break(graph_break)


def read(sources: Sequence[Source]) -> CompilerReport:
    """All logs of one job, joined."""
    builder, notes = ReportBuilder(), list[str]()
    for source in sources:
        before, stream, parser = builder.num_lines, opened(source), _FileParser(builder)
        with closing(stream.blocks()) as blocks:
            for line, is_whole in bounded_lines(blocks, MAX_LINE_BYTES):
                builder.left_out["ends of long lines"] += not is_whole
                if "torch" in line:
                    parser.take(line)
        parser.end()
        if stream.problem:
            notes.append(f"{source.label}: {stream.problem}")
        if builder.num_lines == before:
            raise FormatError(
                f"{source.label} has no line of TORCH_LOGS' recompiles, graph_breaks or perf_hints "
                "in it. Record it with TORCH_LOGS=recompiles,graph_breaks,perf_hints python "
                "train.py 2> torch_logs.txt"
            )
    return builder.finished("torch-logs", [source.label for source in sources], notes)


READER = Reader(is_mine=is_mine, read_together=read, is_in=is_in)
