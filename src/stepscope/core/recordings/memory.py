"""MemoryReport: what the device's memory was used for, from whatever recorded it. None is "not
recorded".

record              peak    what holds it   free blocks   steps   retries
memory-snapshot      x           x              x           x        ooms alone
memory-stats         x                          x                     x
memory-timeline      x           x
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.recordings.recording import Recording
from stepscope.core.recordings.system import SystemReport

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS = "weights", "gradients", "optimizer", "activations"
INPUTS, TEMPORARY, AUTOGRAD, WORKSPACE, UNKNOWN = (
    "inputs",
    "temporary",
    "autograd",
    "workspace",
    "unknown",
)
CATEGORIES = (
    WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, INPUTS, TEMPORARY, AUTOGRAD, WORKSPACE, UNKNOWN,
)  # fmt: skip
"""What bytes are for. Activations are what the forward pass keeps for the backward; temporary is
what is freed in the pass that made it; autograd is the profiler's word for what the backward pass
makes on its way; a workspace is a library's own."""


class Holder(Struct, frozen=True, kw_only=True):
    """A source location that holds bytes at the peak."""

    frame: str
    """`forward (train.py:35)`, or a node of autograd; a stranger's text."""
    size_bytes: int
    num_tensors: int
    category: str
    """Category of most of these bytes."""


class LiveTensor(Struct, frozen=True, kw_only=True):
    """One allocation that is alive at the peak."""

    size_bytes: int
    category: str
    frame: str | None
    step: int | None
    """The step that made it; None before the first, and where no steps were seen."""


class Step(Struct, frozen=True, kw_only=True):
    """One step, as its optimizer shows it."""

    floor_bytes: int
    """The least that tensors held."""


class MemoryRecord(Struct, frozen=True, kw_only=True):
    """One device's memory in one recording."""

    format: str
    label: str
    device: int | None = None
    peak_bytes: int
    """The most that tensors held at once, in the allocator's own blocks where they are recorded."""
    held_bytes: int | None = None
    """When the recording ended."""
    reserved_bytes: int | None = None
    """The most that the allocator had from the driver."""
    reserved_at_peak_bytes: int | None = None
    reserved_now_bytes: int | None = None
    """When the recording ended."""
    capacity_bytes: int | None = None
    """What the process could have had of the device."""
    held: Mapping[str, int] | None = None
    """Bytes at the peak by category (CATEGORIES); what is not there is zero."""
    most: Mapping[str, int] | None = None
    """The most that each category ever held: gradients and activations have their peaks at
    different times."""
    peak_phase: str | None = None
    """forward, backward or optimizer; before where it was before the first of them."""
    peak_step: int | None = None
    peak_ms: float | None = None
    """Milliseconds since the recording began."""
    peak_frame: str | None = None
    """Frame that asked for the last bytes of the peak."""
    phases: tuple[tuple[str, int | None, int], ...] = ()
    """Phases, each with the most that was held in it, and what it made of the peak."""
    holders: tuple[Holder, ...] = ()
    """The most first."""
    largest: tuple[LiveTensor, ...] = ()
    free_at_peak_bytes: int | None = None
    """Reserved, in no tensor, at the peak."""
    largest_free_bytes: int | None = None
    """One block, at the peak: nothing larger is served without asking the driver."""
    split_bytes: int | None = None
    """The most, ever, of free blocks between used ones: these cannot be given back."""
    pool_bytes: int | None = None
    """Bytes reserved at the end in pools of their own: those of CUDA graphs and of
    torch.cuda.MemPool."""
    pool_free_bytes: int | None = None
    """Bytes of these pools in no tensor. A graph that is replayed uses them all the same, and
    nobody else can."""
    steps: tuple[Step, ...] = ()
    kept_frames: tuple[Holder, ...] = ()
    """Frames that made what finished steps left behind."""
    num_retries: int | None = None
    """Times the allocator gave its cache back and asked the driver again."""
    num_ooms: int | None = None
    oom_bytes: int | None = None
    """Bytes asked for in vain, the last time."""
    oom_free_bytes: int | None = None
    """Reserved and in no tensor when that happened."""
    oom_frame: str | None = None
    """Frame that asked for it: a line outside of torch, or autograd's node."""
    oom_phase: str | None = None
    oom_held: Mapping[str, int] | None = None
    """Bytes by category when that happened."""
    expandable: bool | None = None
    """Whether expandable segments are on."""

    @property
    def by_size(self) -> tuple[tuple[str, int], ...]:
        """Categories at the peak, the most first."""
        return (
            () if self.held is None else tuple(sorted(self.held.items(), key=lambda item: -item[1]))
        )

    @property
    def unused_share(self) -> float | None:
        """Share of what is reserved at the peak that is in no tensor."""
        if not self.reserved_at_peak_bytes:
            return None
        return max(0.0, 1 - self.peak_bytes / self.reserved_at_peak_bytes)

    def self_check(self) -> None:
        """Categories add up to the peak, and nothing is held that is not reserved."""
        assert self.peak_bytes >= 0, self.label
        assert self.held is None or (
            set(self.held) <= set(CATEGORIES) and sum(self.held.values()) == self.peak_bytes
        ), self.held
        assert sum(holder.size_bytes for holder in self.holders) <= self.peak_bytes, self.label
        assert self.largest_free_bytes is None or self.free_at_peak_bytes is not None
        assert (self.largest_free_bytes or 0) <= (self.free_at_peak_bytes or 0), self.label


class MemoryRecording(Recording, frozen=True, kw_only=True):
    record: MemoryRecord


def memory_recording(record: MemoryRecord, notes: Iterable[str] = ()) -> MemoryRecording:
    return MemoryRecording(
        format=record.format, paths=(record.label,), notes=tuple(notes), record=record
    )


class MemoryReport(Struct, frozen=True, kw_only=True):
    """Every record of memory that was given."""

    recordings: tuple[MemoryRecording, ...] = ()

    @property
    def records(self) -> tuple[MemoryRecord, ...]:
        return tuple(recording.record for recording in self.recordings)

    def sized(self, system: SystemReport | None) -> MemoryReport:
        """Add the device's memory from the machine's own monitor, where a record does not know it.
        Monitors number devices otherwise than a process does that sees some of them alone: sizes
        that differ say nothing.

        Monitors number devices otherwise than a process does that sees some of them alone: sizes
        that differ say nothing.
        """
        devices = () if system is None else system.devices
        sizes = {device.memory_total_bytes for device in devices if device.memory_total_bytes}
        if len(sizes) != 1:
            return self
        size = round(sizes.pop())
        return MemoryReport(
            recordings=tuple(_sized(recording, size) for recording in self.recordings)
        )

    @property
    def fullest(self) -> MemoryRecord | None:
        """The record with the highest peak; of equals the one that says what holds it."""
        return max(
            self.records,
            key=lambda record: (record.peak_bytes, record.held is not None),
            default=None,
        )

    @property
    def detailed(self) -> MemoryRecord | None:
        """The record with the highest peak of those that say what holds it."""
        return max(
            (record for record in self.records if record.held),
            key=lambda record: record.peak_bytes,
            default=None,
        )


def _sized(recording: MemoryRecording, size: int) -> MemoryRecording:
    if recording.record.capacity_bytes:
        return recording
    return replace(recording, record=replace(recording.record, capacity_bytes=size))
