"""Memory that ran out: who asked for how much, what held the memory, and the cheapest ways out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from stepscope.core.constraints import AtLeastZero, Count, keys_of, one_of
from stepscope.core.recordings.memory import CATEGORIES


class WayOut(Struct, frozen=True, kw_only=True):
    """Something that would have let the job go on."""

    action: str
    frees_bytes: Count | None
    """null where what holds the memory is not known."""
    peak_bytes: Count | None = None
    """What the step takes at its highest with it; null where not all of the step is known."""
    is_enough: bool | None
    """By itself."""
    cost: str
    """What it costs, in words."""
    step_longer: AtLeastZero | None
    """Of a step's time, at most; null where that is not known."""
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
    """In tensors."""
    cache_bytes: Count | None = None
    """Of the allocator, in no tensor."""
    free_bytes: Count | None = None
    """Of what the process could have had, of nobody."""
    others_bytes: Count | None = None
    """Of the device, of other processes."""
    kinds: Annotated[Mapping[str, Count], keys_of(*CATEGORIES)] | None = None
    """What the tensors were for."""
    needs: Annotated[Mapping[str, Count], keys_of(*CATEGORIES)] | None = None
    """What the step takes at its highest moment, reckoned from where it failed: blocks, states and
    gradients to come are counted."""
    holders: tuple[str, ...] = ()
    """Who made most of them, a line each."""
    ways: tuple[WayOut, ...] = ()
    """The cheapest first, three at most."""

    @property
    def missing_bytes(self) -> int | None:
        """What was asked for beyond all that was free, in whatever pieces; 0 where it would have
        been enough in one piece."""
        if self.asked_bytes is None or self.free_bytes is None:
            return None
        return max(self.asked_bytes - self.free_bytes - (self.cache_bytes or 0), 0)

    @property
    def room_bytes(self) -> int | None:
        """For tensors, of what the process could have had."""
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
    """As torch words it."""
    where: str | None = None
    operator: str | None = None
    phase: str | None = None
    step: Count | None = None
    capacity_bytes: Count | None = None
    held_bytes: Count | None = None
    reserved_bytes: Count | None = None
    most_held_bytes: Count | None = None
    """In tensors, since the process began,"""
    passed_bytes: Count | None = None
    """and in the first forward and backward pass."""
    sizes: Mapping[str, Count] = {}
    """Bytes of the live tensors on the device, by kind."""
    trained_bytes: Count | None = None
    """Of the weights that get gradients."""
    optimizer: str | None = None
    """Its class, where there is one alone."""
    is_fused: bool | None = None
    block: Count | None = None
    """The one that forward was in, of a row of `num_blocks` equal ones."""
    num_blocks: Count | None = None
    num_rows: Count | None = None
    """That the output layer gets of what that block was given: tokens of the micro-batch, or
    samples,"""
    element_bytes: Count | None = None
    """and bytes of an element."""
    input_bytes: Count | None = None
    """Of the tensor that it was given: checkpointed, a block keeps no more."""
    head_features: Count | None = None
    """The widest output of a layer that is in no such row,"""
    head_weight_bytes: Count | None = None
    """and bytes of its weight."""
