"""What other tools recorded of a run: kernels one by one, memory, compilation, the machine, the
framework's own log.

They stand beside traces, or alone. A field is None when it was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from stepscope.core.recordings.compiler import CompilerReport
from stepscope.core.recordings.kernels import KernelReport
from stepscope.core.recordings.memory import MemoryReport
from stepscope.core.recordings.nccl import Hang
from stepscope.core.recordings.recording import Recording
from stepscope.core.recordings.system import SystemReport
from stepscope.core.recordings.training_log import TrainingLog


class Advice(Struct, frozen=True, kw_only=True):
    """Something a recording shows that a person can fix. No gain is predicted: only a replayed step
    could tell it."""

    code: str
    bound: str
    summary: str
    action: str
    evidence: tuple[str, ...]
    weight: float | None = None
    """Share of what was recorded that it is about (of the kernels' time, of the peak); of the step,
    where a trace tells that."""
    weight_of: str = ""
    """Name of what the weight is a share of: "the step", "the kernels that were measured", "the
    peak"."""
    kernels: tuple[str, ...] = ()
    """Names of the kernels it is about, as a trace has them: a trace then says what they weigh."""
    ranks: tuple[int, ...] = ()
    """Ranks at fault, where it is about some of them."""


class Auxiliary(Struct, frozen=True, kw_only=True):
    """Everything that was given beside traces."""

    kernels: KernelReport | None = None
    memory: MemoryReport | None = None
    compiler: CompilerReport | None = None
    system: SystemReport | None = None
    training: TrainingLog | None = None
    notes: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    kernel_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the step by kernel name, where a trace told it."""
    hang: Hang | None = None
    """Why the job stands still, where flight recorders' dumps show it."""

    @property
    def recordings(self) -> tuple[Recording, ...]:
        reports = (self.kernels, self.memory, self.compiler, self.system, self.training)
        return tuple(
            recording for report in reports if report is not None for recording in report.recordings
        )
