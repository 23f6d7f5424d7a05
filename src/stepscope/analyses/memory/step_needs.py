"""What a step takes in all, from where it ran out of memory.

A failure shows one moment. The blocks that forward had not come to keep as much as those before;
the optimizer makes its states at the end of the first step, and the next one holds them all along;
the update needs all gradients at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from stepscope.analyses.memory.kinds import STATES
from stepscope.core.memory import RecordedFailure
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
"""Share of the block that it failed in which is taken to be done."""
HEAD_COPIES = 3
"""Copies of the output layer's result at the start of backward: itself, its softmax and its
gradient."""
LOSS_CHUNKS = 4
"""Chunks of a loss that never holds all logits: more free little more, and each costs."""
CHUNK_ROWS = 450.0
"""Rows whose products take as long as what each chunk does with the output layer's weight: two
casts of it, its gradient, a cast of that and a sum, some 32 bytes of each element. That is 32 x
340e12 / 4.1e12 FLOPs on an H200, in steps of 340 TFLOP/s at 4.1 TB/s, and a row has 6."""
GRADIENT_COPIES = 3
"""Copies of what a block is given, while backward is in it: the gradient that goes around it, the
one that comes in and the one that goes out."""
LOSS = re.compile(r"NllLoss|LogSoftmax|CrossEntropy|cross_entropy|log_softmax", re.IGNORECASE)
FP32_BYTES = 4
"""Bytes of an element of the softmax."""
OF_NO_BLOCK = 0.05
"""Share of all activations above which a tensor is of no block: blocks are many, and one tensor of
one of them is less."""
COPIED = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax"}
"""Optimizers whose update makes one temporary as large as the weights, where it is not fused: the
root of the second moment of all of them at once (torch/optim/adam.py, foreach)."""


class Moment(Struct, frozen=True, kw_only=True):
    """Bytes held at once, by kind."""

    kinds: Mapping[str, int]
    is_update: bool = False
    head_bytes: int = 0
    """Bytes of its temporaries that the loss holds: the output layer's result and its copies."""
    inputs_bytes: int | None = None
    """Bytes of its activations that all blocks were given: they stay where blocks are
    checkpointed."""
    backward_bytes: int = 0
    """What backward holds beside the activations while it is in a block; the loss is over then."""
    chunks_longer: float | None = None
    """Share of a step's time that a loss in chunks costs more, at most."""

    @property
    def size_bytes(self) -> int:
        return sum(self.kinds.values())

    @property
    def growing_bytes(self) -> int:
        """Bytes that grow with the micro-batch."""
        if self.is_update:
            return 0
        return sum(self.kinds.get(kind, 0) for kind in (ACTIVATIONS, INPUTS, TEMPORARY))


def failed_moment(kinds: Mapping[str, int], asked_bytes: int, phase: str | None) -> Moment:
    """Moment of the failure: what was held, with what was asked for."""
    is_update = phase not in (None, *PASSES)
    asked = UNKNOWN if is_update else TEMPORARY
    return Moment(kinds={**kinds, asked: kinds.get(asked, 0) + asked_bytes}, is_update=is_update)


def moments_of(
    failure: RecordedFailure, kinds: Mapping[str, int], asked_bytes: int
) -> tuple[Moment, ...] | None:
    """The highest of forward and backward, and the update; None where the rest of the step is not
    known: forward was neither in one of a row of equal blocks nor in the loss, or nothing tells
    what is trained. Of an update after the first the passes are known to fit, and left out."""
    trained = failure.trained_bytes
    if trained is None or failure.phase is None:
        return None
    states = max(STATES.get(failure.optimizer or "", 0) * trained, kinds.get(OPTIMIZER, 0))
    has_passed = failure.phase not in PASSES and bool(failure.step)
    a_pass = None if has_passed else _pass(failure, kinds, asked_bytes, states)
    if a_pass is None and not has_passed:
        return None
    is_copied = failure.optimizer in COPIED and not failure.is_fused
    update = {
        WEIGHTS: kinds.get(WEIGHTS, 0),
        GRADIENTS: max(trained, kinds.get(GRADIENTS, 0)),
        OPTIMIZER: states,
        TEMPORARY: trained if is_copied else 0,
    }
    an_update = Moment(kinds=_filled(update), is_update=True)
    return (an_update,) if a_pass is None else (a_pass, an_update)


def _pass(
    failure: RecordedFailure, kinds: Mapping[str, int], asked_bytes: int, states: int
) -> Moment | None:
    if failure.phase not in PASSES:
        return _past_pass(failure, kinds, states)
    now = failed_moment(kinds, asked_bytes, failure.phase).kinds
    held, beside = kinds.get(ACTIVATIONS, 0), now.get(TEMPORARY, 0)
    # Of the output layer's result and its copies, for as many rows as blocks are given.
    rows, width = failure.num_rows or 0, failure.head_features or 0
    head = HEAD_COPIES * rows * width * (failure.element_bytes or 0)
    if is_of_loss(failure.operator):
        # Beside the output layer's result: its softmax is asked for, and a gradient will be.
        head = HEAD_COPIES * asked_bytes
        held, beside = max(held - asked_bytes, 0), beside + head - asked_bytes
    elif failure.phase == "forward":
        if failure.block is None or failure.num_blocks is None:
            return None
        whole = (held + asked_bytes) * failure.num_blocks / (failure.block + HALF)
        held = max(round(whole) - asked_bytes, held)
        beside += max(head, GRADIENT_COPIES * (failure.input_bytes or 0))
    elif asked_bytes > OF_NO_BLOCK * held:
        # The gradient of the output layer's result: that and its softmax stay.
        of_head = min((HEAD_COPIES - 1) * asked_bytes, held)
        head = of_head + asked_bytes
        held, beside = held - of_head, beside + of_head
    changed = {OPTIMIZER: states, ACTIVATIONS: held, TEMPORARY: beside}
    return Moment(
        kinds=_filled({**now, **changed}),
        head_bytes=head,
        inputs_bytes=_inputs_bytes(failure, held),
        backward_bytes=GRADIENT_COPIES * (failure.input_bytes or 0),
        chunks_longer=_chunks_longer(failure, asked_bytes),
    )


def _inputs_bytes(failure: RecordedFailure, held: int) -> int | None:
    if failure.input_bytes is None or failure.num_blocks is None:
        return None
    return min(failure.num_blocks * failure.input_bytes, held)


def _chunks_longer(failure: RecordedFailure, asked_bytes: int) -> float | None:
    """Share of a step's time that a loss in chunks costs more, by the output layer's share of all
    weights, which all rows go through."""
    rows, width = failure.num_rows, failure.head_features
    if rows is None and width and is_of_loss(failure.operator):
        rows = asked_bytes // (FP32_BYTES * width)
    if not rows or failure.head_weight_bytes is None or not failure.trained_bytes:
        return None
    share = min(failure.head_weight_bytes / failure.trained_bytes, 1.0)
    return chunked_loss_longer(share, rows)


def chunked_loss_longer(head_share: float, num_rows: int, num_chunks: int = LOSS_CHUNKS) -> float:
    """The output layer's product once more, a third of what forward and backward do with its
    weight, and what each chunk does with the whole of that weight."""
    return head_share * (1 / 3 + num_chunks * CHUNK_ROWS / num_rows)


def is_of_loss(name: str | None) -> bool:
    """Whether it is of a loss: by a function of torch's, or a node of autograd's."""
    return name is not None and LOSS.search(name) is not None


def _past_pass(failure: RecordedFailure, kinds: Mapping[str, int], states: int) -> Moment | None:
    """The first forward and backward went well: the same once more, beside all states. Of older
    runs no more is known than what was held up to the failure."""
    passed = failure.most_held_bytes if failure.passed_bytes is None else failure.passed_bytes
    if passed is None:
        return None
    weights = kinds.get(WEIGHTS, 0)
    went = max(passed - weights, 0)
    return Moment(kinds=_filled({WEIGHTS: weights, OPTIMIZER: states, ACTIVATIONS: went}))


def _filled(kinds: Mapping[str, int]) -> dict[str, int]:
    return {kind: size for kind, size in kinds.items() if size}
