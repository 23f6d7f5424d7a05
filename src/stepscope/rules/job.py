"""Job: the measured ranks of a training job, and how to look at one of them more closely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.core.comms import CollectiveRecords, Lateness, Matched
from stepscope.core.facts import Facts
from stepscope.rules.case import Case

CaseOf = Callable[[int, int | None], Case | None]
"""The case of the rank at this index of `Facts.ranks`, for this step time; None where its trace
cannot be read any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The ranks that could be read, and notes on what could not."""

    facts: Facts
    notes: tuple[str, ...] = ()
    world_size: int | None = None
    """As the traces recorded it; None where they do not, or do not agree."""
    rank_records: tuple[CollectiveRecords, ...] = field(default=(), compare=False, repr=False)
    """Of the ranks that recorded collectives; none where two traces are of one rank."""
    matched: Matched | None = field(default=None, compare=False, repr=False)
    """The collectives of all ranks; None where there are none."""
    lateness: tuple[Lateness, ...] = ()
    case_of: CaseOf = field(compare=False, repr=False)
