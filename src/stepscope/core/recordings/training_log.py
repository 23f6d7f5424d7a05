"""What a framework wrote about its own steps: their time, the phases in it, and the figures it
reckons from them.

None is "not written". Figures keep the framework's own convention, which is named with them: two
of them may differ in what a FLOP of the model is, and in whether a rate is of the job or of one
device.
"""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from stepscope.core.recordings.job_output import JobOutput
from stepscope.core.recordings.nccl import FlightDump
from stepscope.core.recordings.recording import Recording

STATED, CLOCK, RATE, SUM = "told", "clock", "rate", "sum"
SURENESS = (STATED, CLOCK, RATE, SUM)
"""How a step's time is known, the surest first: the log states it step by step; its lines' own
times, or its progress bar's; a mean over the whole run, first steps and all; the sum of the phases
it times, outside of which there may be more."""
APART = 0.1
"""Share of the step: two logs that differ by more are hardly of one run."""


class LoggedStep(Struct, frozen=True, kw_only=True):
    """One line about steps."""

    step: int
    ns: int | None
    """Time for one optimizer step, the mean since the line before."""


class Phase(Struct, frozen=True, kw_only=True):
    """A timer of the framework."""

    name: str
    """Name as it is written: strangers' text."""
    ns: int
    """Time for one step, the median of the lines; of the slowest rank, where the log has
    several."""
    least_ns: int | None = None
    """Nanoseconds of the fastest rank."""
    is_micro: bool = False
    """Whether the time is of one micro-batch: a step may have several."""


class Action(Struct, frozen=True, kw_only=True):
    """A row of a profiler's table, over the whole run."""

    name: str
    num_calls: int | None
    total_ns: int
    mean_ns: int | None


class LoggedCollective(Struct, frozen=True, kw_only=True):
    """All collectives of one name and size, as a framework's own logger counted them."""

    op: str
    size: str
    """Size as it is written: `98.25 MB`."""
    size_bytes: int | None
    num: int
    total_ns: int
    mean_ns: int
    busbw_gbit_s: float | None = None
    straggler_ns: int | None = None
    """Part of the total spent waiting for later ranks."""


class Figure(Struct, frozen=True, kw_only=True):
    """A number that the framework reckons, and by which convention."""

    value: float
    convention: str


class FrameworkLog(Struct, frozen=True, kw_only=True):
    """What one framework wrote into one file."""

    framework: str
    path: str
    step_ns: int | None = None
    """Length of the steady steps; None where the log does not clearly state the time of an
    optimizer step."""
    step_source: str | None = None
    """Source of the step time, one of SURENESS."""
    num_steps: int = 0
    """Optimizer steps that `step_ns` is of."""
    first_step: int | None = None
    last_step: int | None = None
    steps: tuple[LoggedStep, ...] = ()
    """The last lines; `num_lines` counts them all."""
    num_lines: int = 0
    phases: tuple[Phase, ...] = ()
    actions: tuple[Action, ...] = ()
    comms: tuple[LoggedCollective, ...] = ()
    tokens_per_s: Figure | None = None
    samples_per_s: Figure | None = None
    tflops: Figure | None = None
    mfu: Figure | None = None
    """Model FLOPs utilization, as a fraction of 1."""
    memory_bytes: Figure | None = None
    """The most that any line states."""
    first_loss: float | None = None
    last_loss: float | None = None
    global_batch: int | None = None
    world_size: int | None = None
    ranks: tuple[int, ...] = ()
    """Ranks that wrote into it, where the lines name them."""
    remarks: tuple[tuple[str, str], ...] = ()
    """Words and what they are, of this framework alone."""
    notes: tuple[str, ...] = ()


class RecordedOperator(Struct, frozen=True, kw_only=True):
    """All calls of one operator in an execution trace."""

    name: str
    num: int
    tensor_bytes: int
    """Bytes of its tensors, in and out, each call's added up; a view has tensors but moves
    nothing."""
    flops: float | None = None
    """FLOPs of matrix products, attention and convolutions that no operator inside it is charged
    with; None where it has none."""


class ExecutionGraph(Struct, frozen=True, kw_only=True):
    """What an execution trace (Chakra) has: operators and their tensors, no times."""

    path: str
    schema: str
    num_nodes: int
    num_operators: int
    operators: tuple[RecordedOperator, ...]
    """The most called first."""
    collectives: tuple[RecordedOperator, ...]
    num_tensors: int
    storage_bytes: int
    """Bytes of the memory under them, each stretch counted once."""
    flops: float


class TrainingRecording(Recording, frozen=True, kw_only=True):
    """What was read of a job's own output."""

    logs: tuple[FrameworkLog, ...] = ()
    """Logs of one framework."""
    graphs: tuple[ExecutionGraph, ...] = ()
    outputs: tuple[JobOutput, ...] = ()
    """What PyTorch itself said in the job's output."""
    dumps: tuple[FlightDump, ...] = ()
    """Dumps of the flight recorder, one for each rank."""


class TrainingLog(Struct, frozen=True, kw_only=True):
    recordings: tuple[TrainingRecording, ...] = ()

    @property
    def logs(self) -> tuple[FrameworkLog, ...]:
        return tuple(log for recording in self.recordings for log in recording.logs)

    @property
    def outputs(self) -> tuple[JobOutput, ...]:
        return tuple(output for recording in self.recordings for output in recording.outputs)

    @property
    def dumps(self) -> tuple[FlightDump, ...]:
        return tuple(dump for recording in self.recordings for dump in recording.dumps)

    @property
    def surest(self) -> tuple[FrameworkLog, ...]:
        """The logs with a step time, those alone that know it in the surest way."""
        timed = [
            log for log in self.logs if log.step_ns is not None and log.step_source is not None
        ]
        best = min(
            (SURENESS.index(log.step_source) for log in timed if log.step_source), default=None
        )
        return tuple(log for log in timed if best is not None and log.step_source == SURENESS[best])

    @property
    def step_ns(self) -> int | None:
        """The run's; None where nothing states it, and where two logs contradict one another."""
        times = [log.step_ns for log in self.surest if log.step_ns is not None]
        if not times or self.is_contradictory:
            return None
        return round(median(times))

    @property
    def is_contradictory(self) -> bool:
        times = [log.step_ns for log in self.surest if log.step_ns is not None]
        return bool(times) and max(times) - min(times) > APART * min(times)

    @property
    def num_steps(self) -> int:
        """Steps that the step time is of: of the longest log, for several ranks write about the
        same steps."""
        return 0 if self.step_ns is None else max(log.num_steps for log in self.surest)
