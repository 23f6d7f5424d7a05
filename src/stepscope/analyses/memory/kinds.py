"""What each allocation of a trace is for: the phase that made it and the one that freed it say.

made in      freed in                        is
forward      the same                        temporary
             a backward pass, or later       activations; inputs, where a copy from the host is
backward     the same                        temporary; activations, where forward work is
                                             done again (checkpointing)
             later, or never                 gradients
optimizer    the same                        temporary
             later, or never                 optimizer
before       a backward pass                 activations
             the optimizer                   gradients
             never                           weights, optimizer: see `standing`
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepscope.analyses.memory.lifetimes import NEVER, Lifetimes
from stepscope.analyses.memory.phases import BACKWARD, FORWARD, UPDATE, PhaseRuns
from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    CATEGORIES,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    TEMPORARY,
    UNKNOWN,
    WEIGHTS,
)
from stepscope.core.trace import Bool, Int64

CODE = {name: code for code, name in enumerate(CATEGORIES)}
STATES = {
    "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "RMSprop": 1,
    "Adagrad": 1, "Lion": 1,
}  # fmt: skip
"""Tensors as large as the weights that torch's optimizers keep by default (torch/optim/*.py); SGD
keeps one with momentum and none without, which its size shows."""
NEARLY = 0.97
"""Share of a size from which it is taken to be there."""


class Kinds(Struct, frozen=True, kw_only=True):
    """Kinds of the allocations: a place in CATEGORIES and the phase that made each (-1: before)."""

    kind: Int64
    phase: Int64


class Standing(Struct, frozen=True, kw_only=True):
    """Memory that was there before the recording and stayed: bytes by kind."""

    sizes: dict[str, int]
    weights_bytes: int | None
    """Bytes of what is trained; None where that is not known."""


def kinds_of(
    runs: PhaseRuns, spans: Lifetimes, is_rerun: Bool, is_input: Bool, is_gathered: Bool
) -> Kinds:
    """The masks are over the allocations: made by forward work done again in backward, by a copy
    from the host, by a gather of sharded weights."""
    last = len(runs.phase) - 1
    first_run = runs.run_at(np.maximum(spans.start_ns, 0))
    is_kept = spans.end_ns == NEVER
    last_run = np.where(is_kept, last, runs.run_at(np.where(is_kept, 0, spans.end_ns)))
    made = np.where(spans.is_made, runs.phase[first_run], -1)
    freed = runs.phase[last_run]
    is_same = (first_run == last_run) & ~is_kept
    meets_backward = runs.has_between(BACKWARD, first_run, last_run)
    meets_update = runs.has_between(UPDATE, first_run, last_run)
    kind = np.full(len(made), CODE[UNKNOWN], np.int64)

    def put(mask: Bool, name: str) -> None:
        kind[mask] = CODE[name]

    forward = made == FORWARD
    put(forward & ~meets_backward & ~is_kept, TEMPORARY)
    put(forward & meets_backward & ~(is_kept & meets_update), ACTIVATIONS)
    put(forward & is_input & meets_backward, INPUTS)
    put(made == BACKWARD, GRADIENTS)
    put((made == BACKWARD) & is_same, TEMPORARY)
    put((made == BACKWARD) & is_same & is_rerun, ACTIVATIONS)
    put(made == UPDATE, OPTIMIZER)
    put((made == UPDATE) & ~is_kept & ~meets_backward, TEMPORARY)
    put(spans.is_made & is_gathered & (kind != CODE[GRADIENTS]), WEIGHTS)
    put((made == -1) & (freed == BACKWARD), ACTIVATIONS)
    put((made == -1) & (freed == UPDATE), GRADIENTS)
    return Kinds(kind=kind, phase=made)


def standing(
    base_bytes: int, trained_bytes: int | None, gradients_seen: int, optimizer: str | None
) -> Standing:
    """Splits what was held all the time. Gradients are as large as the weights that are trained,
    and the optimizer's states a multiple of them."""
    sizes: dict[str, int] = {}
    left = base_bytes
    trained = trained_bytes or gradients_seen or None
    if trained is None or trained > left / NEARLY:
        # Sharded, or on another device: nothing says what is what.
        return Standing(sizes={UNKNOWN: left} if left else {}, weights_bytes=None)

    def take(name: str, size: int) -> None:
        nonlocal left
        size = min(size, left)
        if size:
            sizes[name] = sizes.get(name, 0) + size
            left -= size

    take(WEIGHTS, trained)
    num_states = STATES.get(optimizer or "")
    if optimizer == "SGD":
        num_states = 1 if left >= NEARLY * trained else 0
    if num_states and left >= NEARLY * num_states * trained:
        take(OPTIMIZER, num_states * trained)
    if gradients_seen < (1 - NEARLY) * trained and left >= NEARLY * trained:
        take(GRADIENTS, trained)
    take(UNKNOWN, left)
    return Standing(sizes=sizes, weights_bytes=trained)


def names_of(kind: NDArray[np.int64], size: Int64) -> dict[str, int]:
    """Bytes by kind, of those that have any."""
    totals = np.zeros(len(CATEGORIES), np.int64)
    np.add.at(totals, kind, size)
    return {CATEGORIES[code]: int(totals[code]) for code in np.flatnonzero(totals).tolist()}
