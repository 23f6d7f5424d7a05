"""MemoryUse: where the peak of a device's memory goes, whatever recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from stepscope.core.codec import AboveZero, AtLeastZero, Count, keys_of, one_of
from stepscope.core.recordings.memory import CATEGORIES, MemoryRecord

FORWARD, BACKWARD, UPDATE, BEFORE = "forward", "backward", "optimizer", "before"
PHASES = (FORWARD, BACKWARD, UPDATE)
Phase = Annotated[str, one_of(FORWARD, BACKWARD, UPDATE, BEFORE)]
"""`before`: held when the recording began, or made before the first step."""


class PeakMoment(Struct, frozen=True, kw_only=True):
    """When the peak was. null is "not known"."""

    phase: Phase | None = None
    step: Count | None = None
    """Number of the step among the recorded ones, from 0."""
    ms: float | None = None
    """Milliseconds since the recording began."""
    operator: str | None = None
    """Operator that asked for the last bytes."""
    module: str | None = None


class PhaseMemory(Struct, frozen=True, kw_only=True):
    """One phase of the step."""

    phase: Phase
    peak_bytes: Count | None
    """The most that was held in it; null of what was before the recording."""
    at_peak_bytes: Count
    """Made in it, and held at the peak. They sum to the peak."""


class MemoryHolder(Struct, frozen=True, kw_only=True):
    """Code that made what the peak holds."""

    name: str
    """A stranger's text."""
    size_bytes: Count
    num_tensors: Count
    kind: str
    """Kind of most of these bytes."""


class BatchLine(Struct, frozen=True, kw_only=True):
    """A moment of the step in which a batch k times as large holds fixed + k * growing bytes."""

    fixed_bytes: Count
    growing_bytes: Count


class BatchSize(Struct, frozen=True, kw_only=True):
    """A batch so many times as large."""

    times: AboveZero
    peak_bytes: Count
    """Bytes that tensors hold."""
    reserved_bytes: Count | None
    """Bytes that the allocator needs for it, played again; null where that does not fit."""


class MemoryUse(Struct, frozen=True, kw_only=True):
    """The peak of one device's memory, broken down four ways. null is 'not recorded'."""

    source: Annotated[
        str,
        one_of("trace", "memory-snapshot", "memory-timeline", "memory-stats", "memory-summary"),
    ]
    label: str
    """The file."""
    rank: Count | None = None
    peak_bytes: Count
    """The most that tensors held at once, in the allocator's own blocks."""
    reserved_bytes: Count | None = None
    """The most that the allocator had from the driver."""
    cache_bytes: Count | None = None
    """Reserved at the peak, and in no tensor."""
    capacity_bytes: Count | None = None
    moment: PeakMoment = PeakMoment()
    kinds: Annotated[Mapping[str, Count], keys_of(*CATEGORIES)] | None = None
    """Bytes at the peak by what they are for; they sum to the peak."""
    most: Annotated[Mapping[str, Count], keys_of(*CATEGORIES)] | None = None
    """The most that each kind ever held: they are not all there at once."""
    phases: tuple[PhaseMemory, ...] = ()
    modules: tuple[MemoryHolder, ...] = ()
    operators: tuple[MemoryHolder, ...] = ()
    """Operators of a trace; lines of code, or autograd's nodes, of a snapshot."""
    batch: tuple[BatchLine, ...] = ()
    """The moments that are the peak for some batch: peak(k) is the most of them. Empty where it is
    not known what grows with the batch."""

    batches: tuple[BatchSize, ...] = ()
    """Larger batches; empty where it is not known what grows, or how large the device is."""
    largest_times: AboveZero | None = None
    """Times today's batch, the largest that fits: the allocator's blocks played again within the
    device's memory. null where that is not known."""

    def peak_at(self, times: float) -> int | None:
        """The peak with a batch so many times as large; None where that is not known."""
        if not self.batch:
            return None
        return max(round(line.fixed_bytes + times * line.growing_bytes) for line in self.batch)

    def largest_batch(self, room_bytes: float) -> float | None:
        """Times the batch whose tensors alone fill so much; None where that is not known, or
        nothing grows."""
        ratios = [
            (room_bytes - line.fixed_bytes) / line.growing_bytes
            for line in self.batch
            if line.growing_bytes
        ]
        return max(min(ratios), 0.0) or None if ratios else None

    @property
    def by_size(self) -> tuple[tuple[str, int], ...]:
        kinds = self.kinds or {}
        return tuple(sorted(kinds.items(), key=lambda item: -item[1]))

    def self_check(self) -> None:
        """Assert that what is broken down sums to the peak."""
        if self.kinds is not None:
            assert sum(self.kinds.values()) == self.peak_bytes, self.kinds
            assert set(self.kinds) <= set(CATEGORIES)
        if self.phases:
            assert sum(phase.at_peak_bytes for phase in self.phases) == self.peak_bytes
        for rows in (self.modules, self.operators):
            assert sum(row.size_bytes for row in rows) <= self.peak_bytes


def use_of(record: MemoryRecord) -> MemoryUse:
    """What a recording of memory says, in the same shape."""
    reserved = record.reserved_at_peak_bytes
    return MemoryUse(
        source=record.format,
        label=record.label,
        peak_bytes=record.peak_bytes,
        reserved_bytes=record.reserved_bytes,
        cache_bytes=None if reserved is None else max(reserved - record.peak_bytes, 0),
        capacity_bytes=record.capacity_bytes,
        moment=PeakMoment(
            phase=record.peak_phase,
            step=record.peak_step,
            ms=record.peak_ms,
            operator=record.peak_frame,
        ),
        kinds=None if record.held is None else {k: v for k, v in record.held.items() if v},
        most=record.most,
        phases=tuple(
            PhaseMemory(phase=phase, peak_bytes=most, at_peak_bytes=size)
            for phase, most, size in record.phases
        ),
        operators=tuple(
            MemoryHolder(
                name=holder.frame,
                size_bytes=holder.size_bytes,
                num_tensors=holder.num_tensors,
                kind=holder.category,
            )
            for holder in record.holders
        ),
    )


class WayOut(Struct, frozen=True, kw_only=True):
    """Something that would have let the job go on."""

    action: str
    frees_bytes: Count | None
    """null where what holds the memory is not known."""
    peak_bytes: Count | None = None
    """What the step takes at its highest with it; null where not all of the step is known."""
    is_enough: bool | None
    """Whether it is enough by itself."""
    cost: str
    """Cost in words."""
    step_longer: AtLeastZero | None
    """Share of a step's time that it costs, at most; null where that is not known."""
    changes_numerics: bool = False


class OutOfMemoryReport(Struct, frozen=True, kw_only=True):
    """One failure. null is 'not known'."""

    source: Annotated[str, one_of("run", "memory-snapshot", "job-log")]
    label: str
    """The file, with the line of a log."""
    rank: Count | None = None
    device: Count | None = None
    asked_bytes: Count | None
    where: str | None = None
    """The innermost line outside of torch, or autograd's node: a stranger's text."""
    operator: str | None = None
    """The function of torch.nn.functional that it was in."""
    phase: str | None = None
    """forward, backward or optimizer."""
    num_blocks: Count | None = None
    """Equal blocks in a row, one of which it was in."""
    step: Count | None = None
    """Steps that were done before."""
    capacity_bytes: Count | None = None
    """What the process could have had."""
    held_bytes: Count | None = None
    """Bytes in tensors."""
    cache_bytes: Count | None = None
    """Bytes that the allocator holds in no tensor."""
    free_bytes: Count | None = None
    """Bytes of what the process could have had that nobody holds."""
    others_bytes: Count | None = None
    """Bytes of the device that other processes hold."""
    kinds: Annotated[Mapping[str, Count], keys_of(*CATEGORIES)] | None = None
    """What the tensors were for."""
    needs: Annotated[Mapping[str, Count], keys_of(*CATEGORIES)] | None = None
    """What the step takes at its highest moment, reckoned from where it failed: blocks, states and
    gradients to come are counted."""
    holders: tuple[str, ...] = ()
    """Code that made most of them, a line each."""
    ways: tuple[WayOut, ...] = ()
    """The cheapest first, three at most."""

    @property
    def missing_bytes(self) -> int | None:
        """Bytes asked for beyond all that was free, in whatever pieces; 0 where it would have been
        enough in one piece."""
        if self.asked_bytes is None or self.free_bytes is None:
            return None
        return max(self.asked_bytes - self.free_bytes - (self.cache_bytes or 0), 0)

    @property
    def room_bytes(self) -> int | None:
        """Bytes for tensors, of what the process could have had."""
        if self.held_bytes is None or self.free_bytes is None:
            return None
        return self.held_bytes + (self.cache_bytes or 0) + self.free_bytes

    @property
    def short_bytes(self) -> int | None:
        """What the whole step takes beyond that; None where it is not known."""
        if self.needs is None or self.room_bytes is None:
            return None
        return max(sum(self.needs.values()) - self.room_bytes, 0)


class RecordedFailure(Struct, frozen=True, kw_only=True):
    """What the capture wrote as a process of the run died of it."""

    rank: Count | None = None
    message: str = ""
    """Message as torch words it."""
    where: str | None = None
    operator: str | None = None
    phase: str | None = None
    step: Count | None = None
    capacity_bytes: Count | None = None
    held_bytes: Count | None = None
    reserved_bytes: Count | None = None
    most_held_bytes: Count | None = None
    """Most bytes in tensors since the process began."""
    passed_bytes: Count | None = None
    """Most bytes in tensors in the first forward and backward pass."""
    sizes: Mapping[str, Count] = {}
    """Bytes of the live tensors on the device, by kind."""
    trained_bytes: Count | None = None
    """Bytes of the weights that get gradients."""
    optimizer: str | None = None
    """Class of the optimizer, where there is one alone."""
    is_fused: bool | None = None
    block: Count | None = None
    """The one that forward was in, of a row of `num_blocks` equal ones."""
    num_blocks: Count | None = None
    num_rows: Count | None = None
    """Rows that the output layer gets of what that block was given: tokens of the micro-batch, or
    samples."""
    element_bytes: Count | None = None
    """Bytes of an element of the output layer's result."""
    input_bytes: Count | None = None
    """Bytes of the tensor that it was given: checkpointed, a block keeps no more."""
    head_features: Count | None = None
    """The widest output of a layer that is in no such row,"""
    head_weight_bytes: Count | None = None
    """and bytes of its weight."""
