"""What a rule says: a Proposal, a Remark, an Abstention, or nothing.

A rule is one module with a docstring in sections (What it sees / Why it costs / Evidence it needs /
What to do / Example), which `stepscope explain` prints, and its `Rule` at the end. It never does
arithmetic for the gain: it proposes a Change, and the replay says what the step becomes.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.source_locations import source_locations_of
from stepscope.core.diagnosis import MemoryChange, SourceLocation
from stepscope.core.trace import Float64, Int64
from stepscope.replay.changes import Change
from stepscope.rules.case import Case

MAX_PLACES = 3
MIN_SHARE = 0.05
"""Share of a finding's cost below which a source location gets no line."""


class Fix(Struct, frozen=True, kw_only=True):
    """A fault with its fix, of a rank or of the job."""

    code: str = ""
    bound: str = ""
    """Both its rule's, which the judge writes, where the rule names no other."""
    summary: str
    """One sentence: what is wrong, with its size."""
    action: str
    """What to do, the cheapest first: the knob and the value to try."""
    evidence: tuple[str, ...]
    """Evidence that was seen, each with a number."""
    changes_numerics: bool = False
    may_slow: bool = False
    """Whether it brings work of its own, as casts are: the step may become longer by it."""
    alternative_to: tuple[str, ...] = ()
    """Codes of findings whose cost this fixes in another way: where one of them stands, this is
    said with it, else by itself."""
    changes_training: bool = False
    """Whether it makes another training of it, as a larger batch or a narrower precision does: said
    after the fixes that do not, under a heading of its own, however much it gives."""
    after: tuple[str, ...] = ()
    """Codes of findings that it is said after, however much it gives: their fixes are a line of the
    job's own code, this one is somebody else's work."""
    rare_ns: float = 0.0
    """A step, over all of them, that the fix saves of what only some steps hold, and that the
    replayed ones do not have; of the rank that loses most."""
    samples_times: float = 1.0
    """Samples of a step after the fix, over today's; the change is of the step per sample then."""
    memory: MemoryChange | None = None
    """What the fix does to the peak, where that is known."""
    hopes_for_other: bool = False
    """What gives more is another way to make the fix, not the same one turning out well."""
    timed_share: float = 0.0
    """Share of the device time that the fix changes which was timed on the device as the fix would
    have it."""


class Proposal(Fix, frozen=True, kw_only=True):
    """A rank's, and what the fix does to its graph."""

    change: Change
    cautious: Change | None = None
    """The same fix giving less; the same as `change` when None."""
    hopeful: Change | None = None
    """The same fix giving more."""
    events: Int64 | None = None
    """The kernels, calls or ranges it is about: stacks name the lines they come from. None when no
    line could fix it."""
    events_ns: Float64 | None = None
    """What each of them costs; how long it was recorded to take when None."""
    locations: tuple[SourceLocation, ...] = ()
    """The lines that it comes from, where they are known without stacks."""


class Remark(Struct, frozen=True, kw_only=True):
    """Something worth knowing that promises no time: memory about to run out, a stall too rare for
    the median step to see."""

    code: str
    text: str


def source_locations_in(case: Case, proposal: Proposal) -> tuple[SourceLocation, ...]:
    """Where most of what the proposal is about comes from."""
    if proposal.locations or proposal.events is None or case.stacks is None:
        return proposal.locations
    cost = proposal.events_ns
    if cost is None:
        cost = case.context.trace.dur_ns[proposal.events].astype(np.float64)
    locations = source_locations_of(
        case.stacks, proposal.events, np.asarray(cost, np.float64), MAX_PLACES
    )
    return tuple(location for location in locations if location.share >= MIN_SHARE)
