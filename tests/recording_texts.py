"""Recordings of other tools as tests make them, and what the report says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from stepscope.core.recordings.compiler import CompilerRecording, CompilerReport
from stepscope.core.recordings.kernels import KernelRecording, KernelReport
from stepscope.core.recordings.memory import MemoryRecord, MemoryReport, memory_recording
from stepscope.core.recordings.recording import Recording, RecordingText
from stepscope.core.recordings.system import SystemRecording, SystemReport
from stepscope.core.recordings.training_log import TrainingLog, TrainingRecording
from stepscope.report.recording_text import text_of


class Report(Protocol):
    @property
    def recordings(self) -> Sequence[Recording]: ...


def texts_of(report: Report) -> tuple[RecordingText, ...]:
    return tuple(map(text_of, report.recordings))


def kernel_report(**told: Any) -> KernelReport:
    return KernelReport(recordings=(KernelRecording(format="ncu-csv", paths=(), **told),))


def memory_report(*records: MemoryRecord) -> MemoryReport:
    return MemoryReport(recordings=tuple(map(memory_recording, records)))


def compiler_report(**told: Any) -> CompilerReport:
    return CompilerReport(recordings=(CompilerRecording(format="torch-logs", paths=(), **told),))


def system_report(**told: Any) -> SystemReport:
    return SystemReport(recordings=(SystemRecording(format="nvidia-smi", paths=(), **told),))


def training_log(**told: Any) -> TrainingLog:
    return TrainingLog(recordings=(TrainingRecording(format="training-log", paths=(), **told),))
