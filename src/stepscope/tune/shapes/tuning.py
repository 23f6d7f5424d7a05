"""A search over knobs with real trials: what was tried, what it gave, and what was proven of the
best.

A field is None when it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from stepscope.core.constraints import AtLeastZero, Count
from stepscope.core.experiments.experiment import NumericsCheck, Verified
from stepscope.core.experiments.trials import Setup, Value

MEASURED = "measured"
PRUNED = "pruned"
"""Ended early: its steps were clearly longer than the best known."""
OUT_OF_MEMORY = "out of memory"
FAILED = "failed"
UNEQUAL = "not comparable"
"""It ran, but on other terms than the baseline: another number of samples a step."""
STATES = (MEASURED, PRUNED, OUT_OF_MEMORY, FAILED, UNEQUAL)

BASELINE, DIAGNOSIS, CACHE, SEARCH, AGAIN = "baseline", "diagnosis", "cache", "search", "again"
"""Where a setting came from; `again` is a second look at one of the best."""

STEP, SAMPLE = "step", "sample"
"""What the time is per."""

PROVEN = "proven"
NOT_PROVEN = "not proven"
NOTHING_FASTER = "nothing faster"
NOT_MEASURED = "not measured"
REFUSED = "changes what is computed"
VERDICTS = (PROVEN, NOT_PROVEN, NOTHING_FASTER, REFUSED, NOT_MEASURED)


class Tried(Struct, frozen=True, kw_only=True):
    """One trial of the search."""

    number: int
    """0 is the command as it was given; from 1 on in the order in which they were begun."""
    settings: Mapping[str, Value]
    state: str
    ns: float | None = None
    """What is minimised: time a step, or a sample. A pruned trial has what it had come to."""
    step_ns: float | None = None
    num_steps: int = 0
    wall_s: float = 0.0
    why: str = ""
    """Why it was pruned or failed, in words."""
    origin: str = SEARCH
    host: str = ""
    not_taken: tuple[str, ...] = ()
    """Knobs that never took hold."""


class KnobShown(Struct, frozen=True, kw_only=True, rename={"words": "values"}):
    """A knob as it was searched."""

    name: str
    words: str
    way: str
    """How the job was given the settings."""


class Winner(Struct, frozen=True, kw_only=True):
    """The best setting, and what is known of it."""

    settings: Mapping[str, Value]
    ns: float
    speedup: float | None
    """As the trials had it, before / after; the proof's own number stands in `Tuning.verified`."""
    words: tuple[str, ...] = ()
    """What to put in the code, or on the command line."""


class Spent(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"kept_s": "kept_for_proof_s", "num_rounds": "rounds_kept"},
):
    """How --budget was divided, and what it went to."""

    total_s: AtLeastZero
    # For the check and the proof, by what a run took; 0 where no proof was wanted, or there was no
    # room for one.
    kept_s: AtLeastZero
    # Of the proof that it was kept for.
    num_rounds: Count
    run_s: AtLeastZero
    # What the search took, the baseline among it.
    search_s: AtLeastZero
    # What the check and the proof took; with several processes, waiting for another one's too.
    proof_s: AtLeastZero


class Tuning(Struct, frozen=True, kw_only=True):
    """The whole search."""

    command: tuple[str, ...]
    per: str
    knobs: tuple[KnobShown, ...]
    size: int | None
    """Different settings in the space; None where a knob is continuous."""
    baseline: Tried
    trials: tuple[Tried, ...]
    verdict: str
    because: str
    winner: Winner | None = None
    """The best that was measured, proven or not; None where nothing beat the baseline."""
    importance: Mapping[str, float] | None = None
    """Of each knob, adding up to 1; None where too few trials tell."""
    check: NumericsCheck | None = None
    verified: Verified | None = None
    ended: str = ""
    """Why the search ended, in words."""
    wall_s: float = 0.0
    spent: Spent | None = None
    """Of a budget; None where none was given."""
    setup: Setup = field(default_factory=Setup)
    """Of the baseline."""
    notes: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        return self.verdict == PROVEN
