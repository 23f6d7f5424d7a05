"""What PyTorch itself said in a job's output: its warnings that bear on speed, with the lines they
stand in.

    W1115 02:02:26.928000 707 torch/distributed/run.py:851] Setting OMP_NUM_THREADS ...
    [rank3]:[W reducer.cpp:1346] Warning: find_unused_parameters=True was specified in DDP ...
    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total ...

Whatever else a job prints is not read, and counted. Lines of the compiler's log, of NCCL's and of
frameworks have readers of their own, which read the same file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing

from stepscope.api import Reader, Source, TrainingLog
from stepscope.core.recordings.allocator_message import FAILED_MARK
from stepscope.core.recordings.job_output import JobOutput
from stepscope.core.recordings.training_log import TrainingRecording
from stepscope.readers.formats import BY_NAME
from stepscope.readers.text_lines import batches, may_be_output, opened, uncolored
from stepscope.recordings.job_log.lines import HUNG_MARK, TRACED_MARK, WORDINGS
from stepscope.recordings.job_log.parser import MARKS, JobLogParser

MAX_LINE_BYTES = 8192
"""PyTorch's own warnings are below 2 KiB."""
ENDS = re.compile(rb"([\r\n])")
SIGNS = tuple(
    mark.encode() for mark in (FAILED_MARK, HUNG_MARK, *(mark for mark, _, _ in WORDINGS))
)


def is_mine(head: bytes, name: str) -> bool:
    """A job's output: one of these lines is in its first bytes; or a framework's or the compiler's,
    and these may come later."""
    if not may_be_output(head, name):
        return False
    others = (BY_NAME[form].reader().is_in for form in ("training-log", "torch-logs"))
    return is_in(head) or any(is_theirs is not None and is_theirs(head) for is_theirs in others)


def is_in(text: bytes) -> bool:
    """Whether a line of PyTorch's is somewhere in a text."""
    return any(sign in text for sign in SIGNS)


def read(sources: Sequence[Source]) -> TrainingLog:
    """All files. One in which PyTorch said nothing gives nothing: another reader has it."""
    outputs: list[JobOutput] = []
    notes: list[str] = []
    for source in sources:
        output = _read_file(source, notes)
        if output.num_read:
            outputs.append(output)
    if not outputs:
        return TrainingLog()
    paths = tuple(output.path for output in outputs)
    recording = TrainingRecording(
        format="job-log", paths=paths, notes=tuple(notes), outputs=tuple(outputs)
    )
    return TrainingLog(recordings=(recording,))


def _read_file(source: Source, notes: list[str]) -> JobOutput:
    stream = opened(source)
    parser = JobLogParser()
    with closing(stream.blocks()) as blocks:
        for batch in batches(numbered_lines(blocks)):
            text = "\n".join(line for _, line in batch)
            if not any(mark in text for mark in (*MARKS, TRACED_MARK)):
                parser.num_lines += len(batch)
                continue
            for number, line in batch:
                parser.take(number, line)
    if stream.problem:
        notes.append(f"{source.label}: {stream.problem}")
    if parser.num_left_out:
        notes.append(
            f"{source.label}: {parser.num_left_out:,} line(s) of PyTorch beyond what is kept were "
            "left out"
        )
    return parser.finished(source.label)


def numbered_lines(blocks: Iterator[bytes]) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, without colours, each with its number from 1. A progress bar's
    rewrites share a number."""
    number, rest = 1, b""
    for block in blocks:
        for part in ENDS.split(block):
            if part not in (b"\n", b"\r"):
                rest = (rest + part[:MAX_LINE_BYTES])[:MAX_LINE_BYTES]
                continue
            if rest.strip():
                yield number, uncolored(rest.decode("utf-8", "replace"))
            number, rest = number + (part == b"\n"), b""
    if rest.strip():
        yield number, uncolored(rest.decode("utf-8", "replace"))


READER = Reader(is_mine=is_mine, read_together=read, is_in=is_in)
