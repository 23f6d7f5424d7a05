"""The key `whole_run` of a diagnosis: where a run's time went from its start to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from stepscope.core.constraints import AtLeastZero, Count, Share, one_of
from stepscope.core.run import RUN_PARTS


class WholeRunPart(Struct, frozen=True, kw_only=True):
    """What the run spent on one thing."""

    what: Annotated[str, one_of(*RUN_PARTS)]
    seconds: AtLeastZero
    share: Share
    num: Count | None = None
    """How often; null where that is not counted."""
    of_it: Mapping[str, AtLeastZero] = {}
    """Seconds of it that are known by a name."""


class WholeRunPhase(Struct, frozen=True, kw_only=True):
    """Steps that are alike, and unlike those before: a larger batch, longer sequences."""

    first_step: Count
    num_clean_steps: Count
    step_ms: AtLeastZero
    """The mean of its clean steps."""


class WholeRunStall(Struct, frozen=True, kw_only=True):
    """Slow steps of one kind."""

    cause: str | None
    """`input`: they waited that much longer for a batch. null: not known."""
    every_steps: Count | None
    """From one to the next, where they come in turn."""
    num: Count
    once_seconds: AtLeastZero
    """What one of them takes longer than a clean step."""
    seconds: AtLeastZero
    lines: Mapping[str, Share] = {}
    """Where the training thread was seen in them."""


class WholeRunPrice(Struct, frozen=True, kw_only=True):
    """What would likely be saved, less what stays, and between what that lies."""

    seconds: AtLeastZero
    """Of this run."""
    low_seconds: AtLeastZero
    high_seconds: AtLeastZero
    hours_a_day: AtLeastZero | None
    """Of a day of such steps; null as in the advice."""


class WholeRunAdvice(Struct, frozen=True, kw_only=True):
    """What would shorten the run, and by how much at most."""

    what: Annotated[str, one_of(*RUN_PARTS)]
    action: str
    seconds: AtLeastZero
    """Of this run."""
    hours_a_day: AtLeastZero | None
    """Of a day of such steps; null for what a run pays once, and what was seen once."""
    likely: WholeRunPrice | None = None
    """null where it is not known how much of the part would stay."""


class WholeRun(Struct, frozen=True, kw_only=True):
    """One rank's run on the host's clock; its parts sum to its seconds."""

    seconds: AtLeastZero
    productive_share: Share
    """Of `steady`: what clean steps take."""
    rank: Count
    """The one with the median productive share."""
    parts: tuple[WholeRunPart, ...]
    stalls: tuple[WholeRunStall, ...] = ()
    """What the part `stalls` is made of."""
    advice: tuple[WholeRunAdvice, ...] = ()
    over_time: tuple[Mapping[str, AtLeastZero], ...] = ()
    """Seconds by part in equal stretches of the run, one after the other."""
    step_ms: AtLeastZero
    """The mean clean step."""
    num_clean_steps: Count
    num_steps: Count
    phases: tuple[WholeRunPhase, ...] = ()
    """One after the other, where there is more than one; all of them are `steady`."""
    is_over: bool
    """Whether the end of the run was seen; else it is accounted for up to the last that was."""
