"""What frameworks write about their own steps, out of a job's output: one module for each of them.

A file may hold several frameworks' lines (Megatron's and DeepSpeed's, the Trainer's and
DeepSpeed's), anything else between, several ranks, colours, and progress bars that rewrite
themselves. Each framework's parser sees the lines that have one of its marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from stepscope.api import FormatError, InputError, Reader, Source, TrainingLog
from stepscope.core.recordings.training_log import FrameworkLog, TrainingRecording
from stepscope.readers.text_lines import batches, may_be_output, opened, text_lines
from stepscope.recordings.frameworks.deepspeed import DeepSpeedParser
from stepscope.recordings.frameworks.huggingface import HuggingFaceParser
from stepscope.recordings.frameworks.lightning import LightningParser
from stepscope.recordings.frameworks.megatron import MegatronParser
from stepscope.recordings.frameworks.nanotron import NanotronParser
from stepscope.recordings.frameworks.parser import FrameworkParser
from stepscope.recordings.frameworks.torchtitan import TorchtitanParser

FRAMEWORKS: tuple[type[FrameworkParser], ...] = (
    MegatronParser,
    TorchtitanParser,
    DeepSpeedParser,
    LightningParser,
    HuggingFaceParser,
    NanotronParser,
)


def is_mine(head: bytes, name: str) -> bool:
    """Whether a line in the first bytes is one that a framework writes, with its numbers."""
    return may_be_output(head, name) and is_in(head)


def is_in(text: bytes) -> bool:
    """Whether a line of a framework's is somewhere in a text."""
    return any(
        any(mark in text for mark in framework.SIGN_MARKS) and framework.SIGN.search(text)
        for framework in FRAMEWORKS
    )


def read(sources: Sequence[Source]) -> TrainingLog:
    """All logs. A file that says nothing about a step is an error, in words."""
    logs: list[FrameworkLog] = []
    notes: list[str] = []
    for source in sources:
        logs += _read_file(source, notes)
    run = TrainingLog(recordings=tuple(_by_framework(logs, notes)))
    if run.is_contradictory:
        times = ", ".join(
            f"{log.step_ns / 1e6:.4g} ms in {log.path}" for log in run.surest[:4] if log.step_ns
        )
        notes.append(
            f"the logs state different step times ({times}): are they of one run? None of them was "
            "taken; name one alone"
        )
    return TrainingLog(recordings=tuple(_by_framework(logs, notes)))


def _by_framework(
    logs: Sequence[FrameworkLog], notes: Sequence[str]
) -> Iterator[TrainingRecording]:
    """One for each framework; the notes on files stand in the first."""
    names = list(dict.fromkeys(log.framework for log in logs))
    for name in names:
        own_logs = tuple(log for log in logs if log.framework == name)
        own_notes = dict.fromkeys(note for log in own_logs for note in log.notes)
        yield TrainingRecording(
            format="training-log",
            paths=tuple(log.path for log in own_logs),
            notes=(*(notes if name == names[0] else ()), *own_notes),
            logs=own_logs,
        )


def _read_file(source: Source, notes: list[str]) -> list[FrameworkLog]:
    stream = opened(source)
    parsers = [framework() for framework in FRAMEWORKS]
    num_cut = num_lines = 0
    with closing(stream.blocks()) as blocks:
        for batch in batches(text_lines(blocks)):
            num_lines += len(batch)
            num_cut += sum(not is_whole for _, is_whole in batch)
            text = "\n".join(line for line, _ in batch)
            # A parser without a mark in any of these lines has nothing to open it.
            called = [parser for parser in parsers if parser.wants(text)]
            for line, _ in batch if called else ():
                for parser in called:
                    if parser.wants(line):
                        parser.take(line)
    if stream.problem:
        notes.append(f"{source.label}: {stream.problem}")
    if num_cut:
        notes.append(f"{source.label}: the ends of {num_cut} very long line(s) were left out")
    logs = [log for parser in parsers if (log := parser.finished(source.label)) is not None]
    if not logs:
        raise _nothing(source, num_lines, stream.problem)
    return logs


def _nothing(source: Source, num_lines: int, problem: str | None) -> InputError:
    names = ", ".join(framework.NAME for framework in FRAMEWORKS)
    why = f"; {problem}" if problem else ""
    return FormatError(
        f"{source.label} has {num_lines} lines, and none of them is about a step or a phase as "
        f"{names} write them{why}. Keep the whole output of the job, of the rank that logs "
        "(torchrun --tee 3, or srun's output file), and name that."
    )


READER = Reader(is_mine=is_mine, read_together=read, is_in=is_in)
