"""The door for a format: what it is, and the functions that know and read its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from msgspec import Struct

from stepscope.core.recordings.recording import Recording
from stepscope.core.run import RankMetadata
from stepscope.readers.remote import AnyPath

if TYPE_CHECKING:
    from stepscope.core.recordings.auxiliary import Auxiliary
    from stepscope.core.recordings.compiler import CompilerReport
    from stepscope.core.recordings.kernels import KernelReport
    from stepscope.core.recordings.memory import MemoryReport
    from stepscope.core.recordings.nccl import NcclLog
    from stepscope.core.recordings.system import SystemReport
    from stepscope.core.recordings.training_log import TrainingLog
    from stepscope.core.trace import Trace

    Report = KernelReport | MemoryReport | CompilerReport | SystemReport | TrainingLog | NcclLog


class Source(Struct, frozen=True, kw_only=True):
    """A file, or a stretch of one (a member of an archive)."""

    path: AnyPath
    label: str
    """What to call it in messages."""
    offset: int = 0
    length: int | None = None
    rank: int | None = None
    """What is known of its rank from outside the file."""
    rank_source: str = "not known"
    named: bool = True
    """The user named this very file. One found in a folder or an archive may turn out to be no
    trace, and is then skipped."""
    format: str | None = None
    """A name of formats.FORMATS; None while nobody has looked, and for what nobody claims: it is
    read as a list of events, or refused."""
    part: int | None = None
    """Index of the rank in a file that ranks share, as its reader numbers them; None where the
    whole file is one."""
    archive: AnyPath | None = None
    """The archive it lies in. `path` differs where that is compressed: then it is the archive
    unpacked, and goes away."""

    metadata: RankMetadata | None = None
    """What the run's folder tells of its rank."""

    @property
    def stem(self) -> AnyPath:
        """The lasting file this comes from: what says whether a cache is still good."""
        return self.archive or self.path


JUDGED = (
    "steps", "partition", "kernels", "operators", "host", "comms", "memory", "compiler", "machine",
)  # fmt: skip
"""The columns of the matrix: step times; where the step goes; kernels; operators and modules; host
code; collectives; the device's memory; compilation; clocks, power and the host's cores."""
TRACE = "trace"
KERNELS = "kernels"
MEMORY = "memory"
COMPILER = "compiler"
SYSTEM = "system"
TRAINING = "training"
COMMS = "comms"
LOGS = (COMPILER, TRAINING)
"""Kinds that share a file: whatever a job writes to its output."""
AUXILIARY = (KERNELS, MEMORY, COMPILER, SYSTEM, TRAINING)
"""What other tools record, by the fields of `core.recordings.auxiliary.Auxiliary`."""
KINETO, NCCL = "kineto", "nccl-log"

Progress = Callable[[int], None]
"""Told how many bytes of the file were read so far."""


class Reader(Struct, frozen=True, kw_only=True):
    """The functions of one format. It has one of the three that read."""

    is_mine: Callable[[bytes, str], bool]
    """Whether a file is of this format, by the first bytes of its text (decompressed) and, where
    these say nothing, by its name."""
    read_trace: Callable[[Source, Progress | None], Trace] | None = None
    read_file: Callable[[Source], Recording] | None = None
    """Reads one file that is no trace."""
    read_together: Callable[[Sequence[Source]], Report] | None = None
    """Reads all files of the format, where they are put together."""
    is_in: Callable[[bytes], bool] | None = None
    """Whether a piece of text has lines of it, where these may stand anywhere in a job's output."""
    parts: Callable[[Source], tuple[list[tuple[int, str]], list[str]]] | None = None
    """The ranks that one file holds, each with words for it, and notes."""
    companions: Callable[[Path], Iterable[Path]] | None = None
    """Files that are read along with one."""
    complete: Callable[[Auxiliary], Auxiliary] | None = None
    """Adds what all recordings of the format show together."""


class Format(Struct, frozen=True, kw_only=True):
    """What a format is, how to record it, and what it lets us judge."""

    name: str
    words: str
    kind: str
    """TRACE, KERNELS, MEMORY, COMPILER, SYSTEM, TRAINING or COMMS."""
    record: str
    """A command, or a line of code, that records it."""
    judges: tuple[str, ...]
    """Names in JUDGED that it is judged for."""
    module: str
    """Has the `READER`, and is imported when it is needed."""
    has_parts: bool = False
    """One file may hold several ranks."""
    words_module: str = ""
    """Has `lines(recording)` and `tables(recording)`, which say a recording in words; empty for a
    trace, and where `words` beside the reader has them."""
    is_output: bool = False
    """Whether its lines may stand anywhere in a job's output, between those of others."""

    def reader(self) -> Reader:
        reader = import_module(self.module).READER
        assert isinstance(reader, Reader), self.module
        return reader

    def in_words(self) -> ModuleType:
        """The module that says its recordings in words."""
        beside = f"{self.module.rpartition('.')[0]}.words"
        return import_module(self.words_module or beside)
