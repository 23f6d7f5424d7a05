"""Reads PyTorch/Kineto traces and plain Chrome traces: `.json`, `.json.gz`, `.json.zst`.

A damaged file gives a Trace of what could be read, with a note for each thing that could not. Only a file with nothing to read
ends in an error.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stepscope.core.trace import DeviceProperties, Kind, Trace, TraceMeta
from stepscope.errors import FormatError, InputError
from stepscope.readers.assemble import assemble
from stepscope.readers.feed import Feed
from stepscope.readers.scan import Columns, Scanner
from stepscope.readers.source import Source
from stepscope.readers.stream import Stream

VERSION_FIELDS = ("cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version", "hip_driver_version",
                  "pytorch_version", "schemaVersion")  # fmt: skip

Progress = Callable[[int], None]
"""Called with the bytes of the file read so far."""


def read_kineto(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of one file (or of one member of an archive)."""
    stream = Stream(source.path, source.offset, source.length)
    scanner = Scanner()
    feed = Feed(scanner)
    chunks: list[Columns] = []
    with _no_cyclic_gc():
        try:
            for columns in feed.run(stream.blocks()):
                chunks.append(columns)
                if progress is not None:
                    progress(stream.compressed_bytes)
        except FormatError as problem:
            raise FormatError(f"{source.label} is not a trace: {problem}. Give it a PyTorch profiler (Kineto) or Chrome trace.") from None
        _refuse_empty(source, stream, feed, scanner)
        outside, outside_notes = _outside_fields(feed)
        notes = outside_notes + _notes(stream, feed, scanner)
        return assemble(chunks, scanner, _meta(source, outside, chunks, stream.text_bytes), notes)


@contextmanager
def _no_cyclic_gc() -> Iterator[None]:
    """Decoding makes millions of objects and no cycles: the collector would walk them again and again for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _refuse_empty(source: Source, stream: Stream, feed: Feed, scanner: Scanner) -> None:
    if stream.text_bytes == 0:
        why = stream.problem or "it is empty (zero bytes); was the job killed before the profiler wrote it?"
        raise InputError(f"{source.label} has nothing to read: {why}")
    if feed.arrays == 0:
        raise FormatError(
            f"{source.label} is JSON without a list of trace events ('traceEvents')"
            f"{'; ' + stream.problem if stream.problem else ''}. Give it a PyTorch profiler (Kineto) or Chrome trace."
        )
    tally = scanner.tally
    if tally.raw_events and tally.malformed == tally.raw_events:
        raise FormatError(f"{source.label}: none of its {tally.raw_events} entries is a trace event (no 'ph' field).")


def _outside_fields(feed: Feed) -> tuple[Mapping[str, Any], list[str]]:
    """The fields beside the events; a truncated file still has those before them."""
    if not feed.outside or (feed.outside[0][:1] != b"{"):
        return {}, []
    texts = [part.decode("utf-8", "replace") for part in feed.outside]
    attempts = ['"traceEvents":[]'.join(texts), texts[0].rstrip().rstrip(",") + "}"]
    for text in attempts:
        try:
            fields = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict):
            return fields, []
    return {}, ["the fields beside the events (device, rank, versions) could not be read"]


def _notes(stream: Stream, feed: Feed, scanner: Scanner) -> list[str]:
    tally = scanner.tally
    told = [
        (stream.problem is not None, f"the file was read only in part: {stream.problem}"),
        (feed.truncated, "the file ends before its end (a killed job?); the complete events were kept"),
        (feed.arrays > 1, f"the file has {feed.arrays} lists of events; all were read"),
        (feed.oversized, f"{feed.oversized} event(s) larger than 64 MiB were left out"),
        (feed.dropped_outside, "very large fields beside the events were left out"),
        (tally.no_time, f"{tally.no_time} event(s) without a readable time were left out"),
        (tally.no_duration, f"{tally.no_duration} event(s) without a readable duration count as 0"),
        (tally.negative_duration, f"{tally.negative_duration} event(s) with a negative duration count as 0"),
        (tally.malformed, f"{tally.malformed} entr(ies) that are no trace events were left out"),
    ]
    return [text for condition, text in told if condition]


def _meta(source: Source, fields: Mapping[str, Any], chunks: list[Columns], text_bytes: int) -> TraceMeta:
    info = fields.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    groups = info.get("pg_config")
    rank = _count(info.get("rank"))
    kinds = {kind for chunk in chunks for kind in set(chunk.kind.tolist())}
    return TraceMeta(
        path=source.label,
        rank=rank if rank is not None else source.rank,
        rank_source="distributedInfo" if rank is not None else source.rank_source,
        world_size=_count(info.get("world_size")),
        backend=info.get("backend") if isinstance(info.get("backend"), str) else None,
        process_groups=tuple(g for g in groups if isinstance(g, dict)) if isinstance(groups, list) else (),
        devices=_devices(fields.get("deviceProperties")),
        base_ns=_count(fields.get("baseTimeNanoseconds")) or 0,
        has_shapes=bool(fields.get("record_shapes")) or any(bool((c.detail[c.kind == Kind.OP] >= 0).any()) for c in chunks),
        has_stacks=bool(fields.get("with_stack")) or Kind.PYTHON in kinds,
        has_memory=any(c.memory is not None for c in chunks),
        versions={key: str(fields[key]) for key in VERSION_FIELDS if isinstance(fields.get(key), int | str)},
        size_bytes=text_bytes,
    )


def _devices(value: Any) -> tuple[DeviceProperties, ...]:
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return tuple(
        DeviceProperties(
            index=_count(entry.get("id")) or 0,
            name=str(entry.get("name", "")),
            memory_bytes=_count(entry.get("totalGlobalMem")),
            num_sms=_count(entry.get("numSms")),
            compute_capability=_capability(entry),
            warp_size=_count(entry.get("warpSize")),
        )
        for entry in entries
    )


def _capability(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    major, minor = _count(entry.get("computeMajor")), _count(entry.get("computeMinor"))
    return (major, minor) if major is not None and minor is not None else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
