"""What frameworks write about their own steps, out of a job's output: one module for each of them
(`training_megatron.py`, ...).

A file may hold several frameworks' lines (Megatron's and DeepSpeed's, the Trainer's and
DeepSpeed's), anything else between, several ranks, colours, and progress bars that rewrite
themselves. Each framework's draft sees the lines that have one of its marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from types import ModuleType
from typing import Protocol

from stepscope.core.recordings.training_log import FrameworkLog, TrainingLog, TrainingRecording
from stepscope.errors import FormatError, InputError
from stepscope.readers.container_log import opened
from stepscope.readers.frameworks import deepspeed as training_deepspeed
from stepscope.readers.frameworks import huggingface as training_huggingface
from stepscope.readers.frameworks import lightning as training_lightning
from stepscope.readers.frameworks import megatron as training_megatron
from stepscope.readers.frameworks import nanotron as training_nanotron
from stepscope.readers.frameworks import torchtitan as training_torchtitan
from stepscope.readers.frameworks.lines import batches, text_lines
from stepscope.readers.source import Source

FRAMEWORKS = (
    training_megatron,
    training_torchtitan,
    training_deepspeed,
    training_lightning,
    training_huggingface,
    training_nanotron,
)
JSON_START = re.compile(rb"[\s\xef\xbb\xbf]*(?:\{\s*\"|\[\s*[\[{\"])")
NOT_A_LOG = (".md", ".rst", ".py", ".ipynb", ".html")
"""Words and programs about logs quote their lines."""


class Drafted(Protocol):
    """What is gathered of one framework."""

    @property
    def is_open(self) -> bool: ...

    def take(self, line: str) -> None: ...

    def finished(self, path: str) -> FrameworkLog | None: ...


def is_mine(head: bytes, name: str) -> bool:
    """Whether a line in the first bytes is one that a framework writes, with its numbers."""
    return may_be_log(head, name) and is_in(head)


def may_be_log(head: bytes, name: str) -> bool:
    """Neither data nor JSON, nor words about logs."""
    return not (b"\0" in head[:4096] or JSON_START.match(head) or name.lower().endswith(NOT_A_LOG))


def is_in(text: bytes) -> bool:
    """Whether a line of a framework's is somewhere in a text."""
    return any(_has_mark(each, text) and each.SIGN.search(text) is not None for each in FRAMEWORKS)


def _has_mark(framework: ModuleType, text: bytes) -> bool:
    return any(mark in text for mark in framework.SIGN_MARKS)


def read(sources: Sequence[Source]) -> TrainingLog:
    """All logs. A file in which nothing is told of a step is an error, in words."""
    logs: list[FrameworkLog] = []
    notes: list[str] = []
    for source in sources:
        logs += _read_one(source, notes)
    together = TrainingLog(recordings=tuple(_by_framework(logs, notes)))
    if together.is_contradictory:
        times = ", ".join(
            f"{log.step_ns / 1e6:.4g} ms in {log.path}"
            for log in together.surest[:4]
            if log.step_ns
        )
        notes.append(
            f"the logs tell different step times ({times}): are they of one run? None of them was "
            "taken; name one alone"
        )
    return TrainingLog(recordings=tuple(_by_framework(logs, notes)))


def _by_framework(
    logs: Sequence[FrameworkLog], notes: Sequence[str]
) -> Iterator[TrainingRecording]:
    """One for each framework; the notes on files stand in the first."""
    names = list(dict.fromkeys(log.framework for log in logs))
    for name in names:
        mine = tuple(log for log in logs if log.framework == name)
        own = dict.fromkeys(note for log in mine for note in log.notes)
        yield TrainingRecording(
            format="training-log",
            paths=tuple(log.path for log in mine),
            notes=(*(notes if name == names[0] else ()), *own),
            logs=mine,
        )


def _read_one(source: Source, notes: list[str]) -> list[FrameworkLog]:
    stream = opened(source)
    drafts: list[tuple[tuple[str, ...], Drafted]] = [
        (framework.MARKS, framework.Draft()) for framework in FRAMEWORKS
    ]
    num_cut = num_lines = 0
    with closing(stream.blocks()) as blocks:
        for batch in batches(text_lines(blocks)):
            num_lines += len(batch)
            num_cut += sum(not is_whole for _, is_whole in batch)
            text = "\n".join(line for line, _ in batch)
            # One without a mark in any of these lines has nothing to open it.
            called = [
                (marks, draft)
                for marks, draft in drafts
                if draft.is_open or any(mark in text for mark in marks)
            ]
            for line, _ in batch if called else ():
                for marks, draft in called:
                    if draft.is_open or any(mark in line for mark in marks):
                        draft.take(line)
    if stream.problem:
        notes.append(f"{source.label}: {stream.problem}")
    if num_cut:
        notes.append(f"{source.label}: the ends of {num_cut} very long line(s) were left out")
    found = [
        log for log in (draft.finished(source.label) for _, draft in drafts) if log is not None
    ]
    if not found:
        raise _nothing(source, num_lines, stream.problem)
    return found


def _nothing(source: Source, num_lines: int, problem: str | None) -> InputError:
    names = ", ".join(framework.NAME for framework in FRAMEWORKS)
    why = f"; {problem}" if problem else ""
    return FormatError(
        f"{source.label} has {num_lines} lines, and none of them tells a step or a phase as "
        f"{names} write them{why}."
        " Keep the whole output of the job, of the rank that logs (torchrun --tee 3, or srun's "
        "output file), and name that."
    )
