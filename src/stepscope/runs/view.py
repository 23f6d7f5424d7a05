"""The runs that are kept: a line for each, and what a clean-up would remove."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.codec import encode
from stepscope.core.contract.runs import RunEntry, RunsContract
from stepscope.report.document.blocks import (
    Block,
    Column,
    Document,
    Headline,
    Items,
    Prose,
    Table,
    as_document,
    numbers,
)
from stepscope.report.words import NBSP, ms, number, plural

NOT_DIAGNOSED = "not diagnosed"


@as_document
def runs_document(folder: str, entries: Sequence[RunEntry], now_ns: int) -> Iterator[Block]:
    """The newest first."""
    size = sum(entry.size_bytes for entry in entries)
    words = f"{plural(len(entries), 'run')} in {folder}, {size_words(size)}."
    yield Headline(command="stepscope runs", text=words if entries else f"No run in {folder}.")
    if not entries:
        yield Prose("Record one: stepscope run -- python train.py", "quiet")
        return
    columns = (
        Column(title="run"),
        *numbers("age", "step", "size"),
        Column(title="verdict", fit="wrap", most=40),
        Column(title="command", fit="shorten", most=40),
    )
    rows = tuple(_row(entry, now_ns) for entry in entries)
    yield Table(columns=columns, rows=rows)
    yield Prose(
        "Names stand for paths everywhere: stepscope compare last~1 last; last is the newest run.",
        "quiet",
    )


def _row(entry: RunEntry, now_ns: int) -> tuple[str, ...]:
    name = " ".join([entry.name, *(f"[{tag}]" for tag in entry.tags)])
    age = "" if entry.started_wall_ns is None else age_words(now_ns - entry.started_wall_ns)
    step = "" if entry.step_ms is None else ms(entry.step_ms * 1e6)
    command = " ".join(entry.command)
    return name, age, step, size_words(entry.size_bytes), verdict_words(entry), command


def verdict_words(entry: RunEntry) -> str:
    """The verdict, after what is unusual about its end."""
    if entry.kind == "trials":
        return "trials"
    # The bound; what it is worth stands after the colon.
    verdict = entry.verdict.partition(":")[0] if entry.verdict else NOT_DIAGNOSED
    if entry.state != "ended":
        return f"{entry.state}; {verdict}" if entry.verdict else entry.state
    return verdict if entry.exit_code in (0, None) else f"exit code {entry.exit_code}; {verdict}"


def pruned_document(
    folder: str, entries: Sequence[RunEntry], num_kept: int, now_ns: int, *, is_done: bool
) -> Document:
    """What is removed, or would be."""
    size = size_words(sum(entry.size_bytes for entry in entries))
    if not entries:
        text = f"Nothing to remove from {folder}; {plural(num_kept, 'run')} stay."
        return (Headline(command="stepscope runs", text=text),)
    begin = "Removed" if is_done else "Would remove"
    text = f"{begin} {plural(len(entries), 'run')} of {folder}, {size}; {num_kept} stay."
    lines = []
    for entry in entries:
        age = "" if entry.started_wall_ns is None else age_words(now_ns - entry.started_wall_ns)
        lines.append(f"{entry.name}  {age}, {size_words(entry.size_bytes)}")
    blocks: tuple[Block, ...] = (
        Headline(command="stepscope runs", text=text),
        Items(tuple(lines)),
    )
    if is_done:
        return blocks
    return (*blocks, Prose("Nothing was removed: add --yes to do it.", "warn"))


def runs_json(folder: str, entries: Sequence[RunEntry], pruned: Sequence[str] | None = None) -> str:
    """Write as stepscope.runs/1."""
    names = None if pruned is None else tuple(pruned)
    return encode(RunsContract(folder=folder, runs=tuple(entries), pruned=names))


def age_words(ns: int) -> str:
    """5 min, 3 h, 2 d; of a clock that went back, now."""
    seconds = max(0, ns // 10**9)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length}{NBSP}{unit}"
    return f"{seconds}{NBSP}s"


def size_words(size: int) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= length:
            return f"{number(size / length)}{NBSP}{unit}"
    return f"{size}{NBSP}B"
