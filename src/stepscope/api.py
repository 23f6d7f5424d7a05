"""What a package beside stepscope may use of it: docs/extend.md has one that adds a format, a
finding and a command.

Whatever is named here keeps its meaning from one minor version to the next; the rest of the package
may change at any time. Each is imported when it is asked for, so that a command's line in `--help`
costs nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.cli.commands import Command as Command
    from stepscope.cli.options import option as option
    from stepscope.cli.printing import print_document as print_document
    from stepscope.core.diagnosis import Abstention as Abstention
    from stepscope.core.diagnosis import Diagnosis as Diagnosis
    from stepscope.core.diagnosis import Finding as Finding
    from stepscope.core.facts import Facts as Facts
    from stepscope.core.recordings.auxiliary import Advice as Advice
    from stepscope.core.recordings.auxiliary import Auxiliary as Auxiliary
    from stepscope.core.recordings.kernels import KernelMetrics as KernelMetrics
    from stepscope.core.recordings.kernels import KernelRecording as KernelRecording
    from stepscope.core.recordings.memory import MemoryRecord as MemoryRecord
    from stepscope.core.recordings.nccl import NcclLog as NcclLog
    from stepscope.core.recordings.recording import Recording as Recording
    from stepscope.core.recordings.recording import Table as Table
    from stepscope.core.recordings.recording import table as table
    from stepscope.core.recordings.system import DeviceSeries as DeviceSeries
    from stepscope.core.recordings.system import Spread as Spread
    from stepscope.core.recordings.system import SystemRecording as SystemRecording
    from stepscope.core.recordings.training_log import TrainingLog as TrainingLog
    from stepscope.core.trace import Kind as Kind
    from stepscope.core.trace import Trace as Trace
    from stepscope.core.trace import TraceMeta as TraceMeta
    from stepscope.errors import FormatError as FormatError
    from stepscope.errors import InputError as InputError
    from stepscope.errors import UsageError as UsageError
    from stepscope.readers.format import Format as Format
    from stepscope.readers.format import Reader as Reader
    from stepscope.readers.format import Source as Source
    from stepscope.readers.stream import Stream as Stream
    from stepscope.readers.text_lines import TextLines as TextLines
    from stepscope.replay.graph import Graph as Graph
    from stepscope.report.document.blocks import Document as Document
    from stepscope.rules.case import Case as Case
    from stepscope.rules.job_case import JobCase as JobCase
    from stepscope.rules.job_case import JobProposal as JobProposal
    from stepscope.rules.proposal import Proposal as Proposal
    from stepscope.rules.proposal import Remark as Remark
    from stepscope.rules.rule import Advised as Advised
    from stepscope.rules.rule import Rule as Rule


MODULES = {
    "Abstention": "core.diagnosis",
    "Advice": "core.recordings.auxiliary",
    "Advised": "rules.rule",
    "Auxiliary": "core.recordings.auxiliary",
    "Case": "rules.case",
    "Command": "cli.commands",
    "DeviceSeries": "core.recordings.system",
    "Diagnosis": "core.diagnosis",
    "Document": "report.document.blocks",
    "Facts": "core.facts",
    "Finding": "core.diagnosis",
    "Format": "readers.format",
    "FormatError": "errors",
    "Graph": "replay.graph",
    "InputError": "errors",
    "JobCase": "rules.job_case",
    "JobProposal": "rules.job_case",
    "KernelMetrics": "core.recordings.kernels",
    "KernelRecording": "core.recordings.kernels",
    "Kind": "core.trace",
    "MemoryRecord": "core.recordings.memory",
    "NcclLog": "core.recordings.nccl",
    "Proposal": "rules.proposal",
    "Reader": "readers.format",
    "Recording": "core.recordings.recording",
    "Remark": "rules.proposal",
    "Rule": "rules.rule",
    "Source": "readers.format",
    "Spread": "core.recordings.system",
    "Stream": "readers.stream",
    "SystemRecording": "core.recordings.system",
    "Table": "core.recordings.recording",
    "TextLines": "readers.text_lines",
    "Trace": "core.trace",
    "TraceMeta": "core.trace",
    "TrainingLog": "core.recordings.training_log",
    "UsageError": "errors",
    "option": "cli.options",
    "print_document": "cli.printing",
    "table": "core.recordings.recording",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'stepscope.api' has no attribute {name!r}")
    return getattr(import_module(f"stepscope.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(MODULES)
