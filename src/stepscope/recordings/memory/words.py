"""A record of memory in words: what the report shows of it."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.api import MemoryRecord, Table, table
from stepscope.core.numbers import size_words
from stepscope.core.recordings.memory import MemoryRecording, Step


def lines(recording: MemoryRecording) -> Iterable[tuple[str, str]]:
    record = recording.record
    if record.device is not None:
        yield "device", str(record.device)
    of = "" if record.capacity_bytes is None else f" of {size_words(record.capacity_bytes)}"
    yield "peak", f"{size_words(record.peak_bytes)} in tensors{of}"
    if record.reserved_bytes is not None:
        yield "reserved", f"{size_words(record.reserved_bytes)} at most"
    if record.free_at_peak_bytes is not None and record.unused_share is not None:
        largest = ""
        if record.largest_free_bytes is not None:
            largest = f", the largest block {size_words(record.largest_free_bytes)}"
        words = (
            f"{size_words(record.free_at_peak_bytes)} ({record.unused_share:.0%} of what was "
            f"reserved then){largest}"
        )
        yield "free at the peak", words
    if record.split_bytes is not None:
        yield (
            "free beside used",
            f"{size_words(record.split_bytes)} at most: beside tensors, so it cannot be given back",
        )
    if record.pool_bytes:
        free = ""
        if record.pool_free_bytes is not None:
            free = f", {size_words(record.pool_free_bytes)} of it in no tensor"
        yield (
            "in pools of their own",
            (
                f"{size_words(record.pool_bytes)} at the end, of CUDA graphs or "
                f"torch.cuda.MemPool{free}"
            ),
        )
    if record.held_bytes is not None:
        yield "at the end", f"{size_words(record.held_bytes)} in tensors"
    yield from _trouble(record)
    if record.steps:
        yield "steps", _steps_words(record.steps)


def _trouble(record: MemoryRecord) -> Iterable[tuple[str, str]]:
    if record.num_retries is not None:
        yield (
            "retries",
            f"{record.num_retries} (the allocator gave its cache back and asked the driver again)",
        )
    if record.num_ooms is not None:
        asked = ""
        if record.oom_bytes is not None:
            asked = f"; the last one asked for {size_words(record.oom_bytes)}"
        often = {0: "never", 1: f"once{asked}"}
        yield "out of memory", often.get(record.num_ooms, f"{record.num_ooms} times{asked}")


def _steps_words(steps: tuple[Step, ...]) -> str:
    floors = [size_words(step.floor_bytes) for step in steps]
    shown = ", ".join(floors)
    if len(floors) > 6:
        shown = f"{', '.join(floors[:3])} ... {', '.join(floors[-2:])}"
    return f"{len(steps)}, with at least {shown} held in each"


def tables(recording: MemoryRecording) -> Iterable[Table]:
    record = recording.record
    peak = max(record.peak_bytes, 1)
    if record.held:
        rows = tuple(
            (name, size_words(size), f"{size / peak:.1%}") for name, size in record.by_size if size
        )
        yield table("What holds the peak", "what for|>bytes|>share", rows)
    if record.holders:
        yield table(
            "Who made it",
            "frame|what for|>tensors|>bytes|>share",
            (
                (
                    holder.frame,
                    holder.category,
                    str(holder.num_tensors),
                    size_words(holder.size_bytes),
                    f"{holder.size_bytes / peak:.1%}",
                )
                for holder in record.holders
            ),
        )
    if record.largest:
        yield table(
            "Largest tensors at the peak",
            "frame|what for|>made in step|>bytes",
            (
                (
                    tensor.frame or "-",
                    tensor.category,
                    "-" if tensor.step is None else str(tensor.step + 1),
                    size_words(tensor.size_bytes),
                )
                for tensor in record.largest
            ),
        )
    if record.kept_frames:
        yield table(
            "Made in finished steps and still held at the end",
            "frame|what for|>tensors|>bytes",
            (
                (kept.frame, kept.category, str(kept.num_tensors), size_words(kept.size_bytes))
                for kept in record.kept_frames
            ),
        )
