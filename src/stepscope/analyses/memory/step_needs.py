"""What a step takes in all, from where it ran out of memory.

A failure shows one moment. The blocks that forward had not come to keep as much as those before;
the optimizer makes its states at the end of the first step, and the next one holds them all along;
the update needs all gradients at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.analyses.memory.kinds import STATES
from stepscope.core.out_of_memory import RecordedFailure
from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    TEMPORARY,
    UNKNOWN,
    WEIGHTS,
)

PASSES = ("forward", "backward")
HALF = 0.5
"""Of the block that it failed in, taken to be done."""
HEAD_COPIES = 3
"""Of the output layer's result at the start of backward: itself, its softmax and its gradient."""
OF_NO_BLOCK = 0.05
"""Of all activations: blocks are many, and one tensor of one of them is less."""
COPIED = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax"}
"""Whose update makes one temporary as large as the weights, where it is not fused: the root of the
second moment of all of them at once (torch/optim/adam.py, foreach)."""


class Moment(Struct, frozen=True, kw_only=True):
    """What is held at once, by kind."""

    kinds: Mapping[str, int]
    is_update: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(self.kinds.values())

    @property
    def growing_bytes(self) -> int:
        """With the micro-batch."""
        if self.is_update:
            return 0
        return sum(self.kinds.get(kind, 0) for kind in (ACTIVATIONS, INPUTS, TEMPORARY))


def failed_moment(kinds: Mapping[str, int], asked_bytes: int, phase: str | None) -> Moment:
    """What was held, with what was asked for."""
    is_update = phase not in (None, *PASSES)
    asked = UNKNOWN if is_update else TEMPORARY
    return Moment(kinds={**kinds, asked: kinds.get(asked, 0) + asked_bytes}, is_update=is_update)


def moments_of(
    failure: RecordedFailure, kinds: Mapping[str, int], asked_bytes: int
) -> tuple[Moment, ...] | None:
    """The highest of forward and backward, and the update; None where the rest of the step is not
    known: forward was not in one of a row of equal blocks, or nothing tells what is trained."""
    trained = failure.trained_bytes
    if trained is None or failure.phase is None:
        return None
    states = max(STATES.get(failure.optimizer or "", 0) * trained, kinds.get(OPTIMIZER, 0))
    a_pass = _pass(failure, kinds, asked_bytes, states)
    if a_pass is None:
        return None
    is_copied = failure.optimizer in COPIED and not failure.is_fused
    update = {
        WEIGHTS: kinds.get(WEIGHTS, 0),
        GRADIENTS: max(trained, kinds.get(GRADIENTS, 0)),
        OPTIMIZER: states,
        TEMPORARY: trained if is_copied else 0,
    }
    return a_pass, Moment(kinds=_filled(update), is_update=True)


def _pass(
    failure: RecordedFailure, kinds: Mapping[str, int], asked_bytes: int, states: int
) -> Moment | None:
    if failure.phase not in PASSES:
        return _past_pass(failure, kinds, states)
    now = failed_moment(kinds, asked_bytes, failure.phase).kinds
    held, beside = kinds.get(ACTIVATIONS, 0), now.get(TEMPORARY, 0)
    if failure.phase == "forward":
        if failure.block is None or failure.num_blocks is None:
            return None
        whole = (held + asked_bytes) * failure.num_blocks / (failure.block + HALF)
        held = max(round(whole) - asked_bytes, held)
        beside += _head_bytes(failure)
    elif asked_bytes > OF_NO_BLOCK * held:
        # The gradient of the output layer's result: that and its softmax stay.
        of_head = min((HEAD_COPIES - 1) * asked_bytes, held)
        held, beside = held - of_head, beside + of_head
    changed = {OPTIMIZER: states, ACTIVATIONS: held, TEMPORARY: beside}
    return Moment(kinds=_filled({**now, **changed}))


def _head_bytes(failure: RecordedFailure) -> int:
    """Of the output layer's result and its copies, for as many rows as blocks are given."""
    rows, width = failure.num_rows or 0, failure.head_features or 0
    return HEAD_COPIES * rows * width * (failure.element_bytes or 0)


def _past_pass(failure: RecordedFailure, kinds: Mapping[str, int], states: int) -> Moment | None:
    """Forward and backward went well: the same once more, beside all states."""
    if failure.most_held_bytes is None:
        return None
    weights = kinds.get(WEIGHTS, 0)
    # Of the first step no states were there yet.
    stood = weights + (kinds.get(OPTIMIZER, 0) if failure.step else 0)
    went = max(failure.most_held_bytes - stood, 0)
    return Moment(kinds=_filled({WEIGHTS: weights, OPTIMIZER: states, ACTIVATIONS: went}))


def _filled(kinds: Mapping[str, int]) -> dict[str, int]:
    return {kind: size for kind, size in kinds.items() if size}
