"""`stepscope.alert/1`: a line of RUN/alerts.jsonl, and what a webhook gets."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from stepscope.core.codec import Contract, Count, one_of

KINDS = (
    "late-rank", "slow-group", "step-time", "busy-machine", "loader", "bandwidth", "clock",
    "utilisation", "loss-nan", "loss-spike", "host-memory", "device-memory", "silent", "stalled",
)  # fmt: skip
RAISED, RECORDED, OVER = "raised", "recorded", "over"
"""States of an alert: something is wrong; what was recorded of it is there; it is over."""


class Measured(Struct, frozen=True, kw_only=True):
    """The figure that changed. null is 'not measured'."""

    before: float | None
    after: float | None
    unit: str
    """ms of a step, bytes, MHz, s, share of the time; empty for a loss."""


class Alert(Contract, frozen=True, kw_only=True, tag="stepscope.alert/1"):
    """One thing told of a running job. Of a fault there is a line when it is seen, one when what
    was recorded of it is there, and one when it is over."""

    number: Count = 0
    """The same in all lines of one fault; 0 where it was written by version 0.1.0."""
    state: Annotated[str, one_of(RAISED, RECORDED, OVER)] = RAISED
    kind: Annotated[str, one_of(*KINDS)]
    ranks: tuple[int, ...]
    """Ranks concerned, and no others."""
    step: int | None
    """The first one concerned, where that is known."""
    words: str
    action: str = ""
    """What to do."""
    measured: Measured | None = None
    evidence: tuple[str, ...] = ()
    """Recordings that show it, seen from the run folder."""
    began_wall_ns: int | None = None
    """When the fault began, as far as the numbers say."""
    at_wall_ns: int
    """When this was told."""
    ended_wall_ns: int | None = None
    """When it was over."""
    run: str | UnsetType = UNSET
    """The run folder; of a webhook alone."""
    text: str | UnsetType = UNSET
    """All of it in one line, for a chat; of a webhook alone."""
