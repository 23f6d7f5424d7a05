"""Whose lines a job's output holds, wherever in it they stand: PyTorch's, the compiler's, a framework's, NCCL's.

The first bytes of a file say what it is (formats.py). A job may print for hours before its first line of interest, so a text that
may be a job's output is looked at to its end, once, a block at a time, until every kind has been found. Here nothing is read: the
readers of the kinds that were found do that, each its own lines.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from importlib import import_module
from types import ModuleType

from stepscope.readers.container_log import opened
from stepscope.readers.source import Source

NCCL = "nccl"
"""Not among the formats: its logs have a place of their own."""
MODULES = {"torch-logs": "compiler.torch_logs", "training-log": "frameworks.log", "job-log": "job_log.log", NCCL: "nccl.log"}
"""The kinds, by the names of their formats, and their readers, each with `is_in(text)`. Imported when they are needed."""
MAX_BYTES = 1 << 30
"""Of a file that are looked at: half a minute for one in which nothing is found, which may be anything."""
OVERLAP_BYTES = 8 << 10
"""Of a block that are looked at again with the next: a line may lie in both, and Lightning's table is known by three lines."""


def may_go_on(head: bytes, name: str) -> bool:
    """Whether a text that begins like this may be a job's output: neither data nor a program, nor words about logs."""
    return not head.startswith(b"<") and bool(_reader("training-log").may_be_log(head, name))


def kinds_in(source: Source, known: Collection[str], notes: list[str]) -> frozenset[str]:
    """The kinds of MODULES that the text has lines of, beside those known; with a note where it is too long to be looked at."""
    missing = {kind: _reader(kind) for kind in MODULES if kind not in known}
    found: set[str] = set()
    size, tail = 0, b""
    with closing(opened(source).blocks()) as blocks:
        for block in blocks:
            piece = tail + block
            new = [kind for kind, reader in missing.items() if reader.is_in(piece)]
            found.update(new)
            for kind in new:
                del missing[kind]
            size += len(block)
            if not missing or size >= MAX_BYTES:
                break
            tail = _from_line(piece[-OVERLAP_BYTES:])
    if missing and size >= MAX_BYTES:
        notes.append(_note(source))
    return frozenset(found)


def _reader(kind: str) -> ModuleType:
    return import_module(f"stepscope.readers.{MODULES[kind]}")


def _from_line(tail: bytes) -> bytes:
    """From the first beginning of a line in it: half a line is not known by how it begins."""
    return tail[tail.find(b"\n") + 1 :]


def _note(source: Source) -> str:
    words = f"{source.label}: whose lines it holds was looked for in its first {MAX_BYTES:,} bytes of text"
    return f"{words}; a kind that begins later is not read: keep the end in a file of its own (tail -n 100000), and name that too"
