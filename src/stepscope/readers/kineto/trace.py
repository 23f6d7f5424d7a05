"""Reads PyTorch/Kineto traces and plain Chrome traces: `.json`, `.json.gz`, `.json.zst`.

A damaged file gives a Trace of what could be read, with a note for each thing that could not. Only
a file with nothing to read ends in an error.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from stepscope.core.numbers import true_notes
from stepscope.core.trace import ENDS_EARLY, READ_IN_PART, Kind, Trace
from stepscope.errors import FormatError, InputError
from stepscope.protocol.run_folder import MARKS_FIELD, MODULE_PREFIX, MODULES_FIELD
from stepscope.protocol.untrusted import LARGEST_INT, whole
from stepscope.readers.format import Progress, Reader, Source
from stepscope.readers.kineto.event_decoder import Scanner
from stepscope.readers.kineto.header import rank_notes, read_fields, trace_meta
from stepscope.readers.kineto.json_chunks import MAX_ARRAYS, MAX_EVENT_BYTES, Feed, NotJsonError
from stepscope.readers.kineto.native import scanner_for_file
from stepscope.readers.stream import Stream
from stepscope.readers.trace.assemble import assemble
from stepscope.readers.trace.columns import Blocks, Columns

WANTED = (
    "Give it a PyTorch profiler (Kineto) or Chrome trace, or one of what `stepscope formats` lists."
)
START = re.compile(
    rb"[\s\xef\xbb\xbf]*\{\s*\"(?:schemaVersion|deviceProperties|traceEvents|displayTimeUnit|baseTimeNanoseconds)\""
)
OTHER_CHROME = re.compile(rb'"cat"\s*:\s*"(?:fee|FEE)"|"viztracer_metadata"|"BeginNs"')
"""What torch.profiler never writes: viztracer's calls, roctracer's times."""
RUBBISH_ENTRIES = 10_000
ONE_EVENT = re.compile(rb'\s*\{[^{}\[\]]{0,4096}"ph"\s*:')


def is_mine(head: bytes, _name: str) -> bool:
    """Tell a trace by how torch.profiler begins it. Others are known by having a list of events,
    when nobody else has claimed them."""
    return START.match(head) is not None and OTHER_CHROME.search(head) is None


def read(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of one file (or of one member of an archive)."""
    stream = Stream(source.path, source.offset, source.length)
    scanner = scanner_for_file()
    feed = Feed(scanner)
    blocks = Blocks()
    with _no_cyclic_gc():
        try:
            for columns in feed.run(stream.blocks()):
                blocks.add(columns)
                _refuse_rubbish(source, scanner, RUBBISH_ENTRIES)
                if progress is not None:
                    progress(stream.compressed_bytes)
        except NotJsonError as problem:
            raise FormatError(f"{source.label} is not a trace: {problem}. {WANTED}") from None
        _refuse_empty(source, stream, feed, scanner)
        scanner.ranges.count_open(scanner.tally)
        fields, notes = read_fields(feed.outside.text())
        notes += rank_notes(source, fields) + _notes(stream, feed, scanner)
        chunks = blocks.take()
        meta = trace_meta(source, fields, chunks, stream.text_bytes)
        name_modules(fields, chunks, scanner)
        marks = marks_of(fields, meta.base_ns, scanner)
        if marks is not None:
            chunks.append(marks)
        return assemble(chunks, scanner, meta, notes)


@contextmanager
def _no_cyclic_gc() -> Iterator[None]:
    """Decoding makes millions of objects and no cycles: the collector would walk them again and
    again for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _refuse_empty(source: Source, stream: Stream, feed: Feed, scanner: Scanner) -> None:
    if stream.text_bytes == 0:
        why = (
            stream.problem
            or "it is empty (zero bytes); was the job killed before the profiler wrote it?"
        )
        raise InputError(f"{source.label} has nothing to read: {why}")
    also = f" ({stream.problem})" if stream.problem else ""
    if feed.arrays == 0:
        if ONE_EVENT.match(feed.outside.text()[:8192]):
            raise FormatError(
                f"{source.label} has one event after another and no list of them. "
                "Put [ before the first, commas between them, and ] at the end."
            )
        raise FormatError(
            f"{source.label} is JSON without a list of trace events ('traceEvents'){also}. {WANTED}"
        )
    _refuse_rubbish(source, scanner, 1)


def _refuse_rubbish(source: Source, scanner: Scanner, enough: int) -> None:
    """Stop at a list of something else: each of its entries takes the slow path."""
    tally = scanner.tally
    if tally.raw_events >= enough and tally.malformed == tally.raw_events:
        raise FormatError(
            f"{source.label}: none of its first {tally.raw_events} entries is a trace event (no "
            f"'ph'). {WANTED}"
        )


def _notes(stream: Stream, feed: Feed, scanner: Scanner) -> list[str]:
    tally = scanner.tally
    return true_notes(
        (stream.problem is not None, f"{READ_IN_PART}: {stream.problem}"),
        (
            feed.truncated,
            f"{ENDS_EARLY} (a killed job?); the complete events were kept",
        ),
        (
            1 < feed.arrays < MAX_ARRAYS,
            f"the file has {feed.arrays} lists of events; all were read",
        ),
        (
            feed.arrays >= MAX_ARRAYS,
            f"of the file's lists of events the first {MAX_ARRAYS} were read",
        ),
        (feed.oversized, f"{{n}} event(s) larger than {MAX_EVENT_BYTES >> 20} MiB were left out"),
        (
            feed.outside.dropped,
            f"{feed.outside.dropped >> 10} KiB of fields beside the events were left out",
        ),
        (not tally.raw_events and not feed.oversized, "the file has no events"),
        (tally.no_time, "{n} event(s) without a readable time were left out"),
        (tally.no_duration, "{n} event(s) without a readable duration count as 0"),
        (tally.negative_duration, "{n} event(s) with a negative duration count as 0"),
        (tally.malformed, "{n} entries that are no trace events were left out"),
        (tally.rescued, "{n} event(s) were damaged and are kept as far as they could be read"),
    )


MAX_MARKS = 100_000
LONGEST_NAME = 1_000


def marks_of(fields: Mapping[str, Any], base_ns: int, scanner: Scanner) -> Columns | None:
    """The marks as events on their threads; None where there are none. A mark of a thread that
    recorded nothing, or that is no mark, is left out."""
    listed = fields.get(MARKS_FIELD)
    if not isinstance(listed, list):
        return None
    threads = {str(tid): code for (_, tid), code in scanner.threads.items()}
    rows = [row for mark in listed[:MAX_MARKS] if (row := _row(mark, base_ns, threads))]
    if not rows:
        return None
    names, start, dur, thread = zip(*rows, strict=True)
    columns = Columns.blank(np.array(start, np.int64), np.array(dur, np.int64))
    columns.kind[:] = Kind.MARK
    columns.name[:] = [scanner.names[name] for name in names]
    columns.thread[:] = thread
    return columns


def name_modules(fields: Mapping[str, Any], chunks: Sequence[Columns], scanner: Scanner) -> None:
    """The capture's ranges around modules, which the profiler writes as operators, become marks."""
    if fields.get(MODULES_FIELD) is not True:
        return
    is_module = np.array(
        [name.startswith(MODULE_PREFIX) for name in scanner.names.table()], np.bool_
    )
    for columns in chunks:
        columns.kind[(columns.kind == Kind.OP) & is_module[columns.name]] = Kind.MARK


def _row(mark: Any, base_ns: int, threads: Mapping[str, int]) -> tuple[str, int, int, int] | None:
    if not isinstance(mark, list) or len(mark) != 4 or not isinstance(mark[0], str):
        return None
    begun, ended, thread = (whole(value) for value in mark[1:])
    if begun is None or ended is None or not base_ns <= begun <= ended <= LARGEST_INT:
        return None
    code = threads.get(str(thread))
    if code is None:
        return None
    name = mark[0][:LONGEST_NAME].encode("utf-8", "replace").decode("utf-8")
    return name, begun - base_ns, ended - begun, code


READER = Reader(is_mine=is_mine, read_trace=read)
