"""A job's output in words: what the report shows of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.api import Table
from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.job_output import Hang, JobOutput, OutOfMemory, Said
from stepscope.core.recordings.training_log import TrainingRecording
from stepscope.recordings.job_log.lines import MEANS

MAX_ROWS = 64
MAX_TEXT = 160


def lines(recording: TrainingRecording) -> Iterator[tuple[str, str]]:
    outputs = recording.outputs
    num = sum(output.num_lines for output in outputs)
    read = sum(output.num_read for output in outputs)
    warnings = (warning for output in outputs for warning in output.said)
    has_miopen = any(warning.kind.startswith("MIOpen") for warning in warnings)
    whose = "PyTorch's and MIOpen's" if has_miopen else "PyTorch's"
    yield (
        "lines",
        f"{read:,} of {whose} own on speed were read; the other {num - read:,} were not, here",
    )
    several = len(outputs) > 1
    shown = [line for output in outputs for line in _of_file(output, several=several)]
    yield from shown[:MAX_ROWS]
    if len(shown) > MAX_ROWS:
        yield "", f"and {len(shown) - MAX_ROWS:,} more"


def tables(_recording: TrainingRecording) -> tuple[Table, ...]:
    return ()


def _of_file(output: JobOutput, *, several: bool) -> Iterator[tuple[str, str]]:
    where = f"{output.path}:" if several else "line "
    for failure in output.failures:
        yield "out of memory", f"{where}{failure.line}: {failure_words(failure)}"
    for hang in output.hangs:
        yield "hung", f"{where}{hang.line}: {hang_words(hang)}"
    for warning in output.said:
        yield warning.kind, f"{MEANS[warning.kind]} ({where}{warning.line}: {_quoted(warning)})"


def _quoted(warning: Said) -> str:
    details = "".join(f" {detail}" for detail in warning.details)
    return f"{warning.text[:MAX_TEXT]}{details}{_by(warning.num, warning.ranks)}"


def failure_words(failure: OutOfMemory) -> str:
    """`22.78 GiB could not be had on device 0 of 31.47 GiB; ...`, with what was logged."""
    where = "" if failure.device is None else f" on device {failure.device}"
    of = "" if failure.total_bytes is None else f" of {_gib(failure.total_bytes)}"
    parts = [f"{_gib(failure.tried_bytes)} could not be had{where}{of}"]
    parts += [f"{_gib(size)} {what}" for size, what in _shares(failure) if size is not None]
    return "; ".join(parts) + _by(failure.num, failure.ranks)


def _shares(failure: OutOfMemory) -> Iterator[tuple[int | None, str]]:
    yield failure.allocated_bytes, "in tensors"
    yield failure.idle_bytes, "held by the allocator in no tensor"
    yield failure.free_bytes, "free"
    yield failure.others_bytes or None, "of other processes"


def hang_words(hang: Hang) -> str:
    group = "" if hang.group is None else f" of {hang.group}"
    size = "" if hang.elements is None else f" of {hang.elements:,} elements"
    waited = f"rank {number_ranges(hang.waiting)}" if hang.waiting else "a rank that is not named"
    behind = f"; rank {number_ranges(hang.behind)} had not begun it" if hang.behind else ""
    return (
        f"{hang.op} number {hang.sequence}{group}{size}: {waited} waited {hang.timeout_s:,.0f} "
        f"s{behind}"
    )


def _by(num: int, ranks: Sequence[int]) -> str:
    parts = ([f"said {num} times"] if num > 1 else []) + (
        [f"by rank {number_ranges(ranks)}"] if ranks else []
    )
    return f" ({', '.join(parts)})" if parts else ""


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
