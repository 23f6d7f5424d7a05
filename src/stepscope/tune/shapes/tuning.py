"""A search over knobs with real trials: what was tried, what it gave, and what was proven of the
best.

A field is None when it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from stepscope.core.codec import AboveZero, AtLeastZero, Contract, Count, Share, one_of
from stepscope.core.experiments.experiment import NumericsCheck, Verified
from stepscope.core.experiments.trials import Value

MEASURED = "measured"
PRUNED = "pruned"
"""Ended early: its steps were clearly longer than the best known."""
OUT_OF_MEMORY = "out of memory"
FAILED = "failed"
UNEQUAL = "not comparable"
"""State of a trial that ran, but on other terms than the baseline: another number of samples a
step."""
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


class Tried(Struct, frozen=True, kw_only=True, rename={"num_steps": "steps"}):
    """One trial of the search."""

    number: Count
    """0 is the command as it was given; from 1 on in the order in which they were begun."""
    settings: Mapping[str, Value]
    state: Annotated[str, one_of(*STATES)]
    ms: AboveZero | None = None
    """What is minimised: time a step, or a sample. A pruned trial has what it had come to."""
    step_ms: AboveZero | None = None
    num_steps: Count = 0
    wall_s: AtLeastZero = 0.0
    why: str = ""
    """Why it was pruned or failed, in words."""
    origin: Annotated[str, one_of(BASELINE, DIAGNOSIS, CACHE, SEARCH, AGAIN)] = SEARCH
    host: str = ""
    not_taken: tuple[str, ...] = ()
    """Knobs that never took hold."""

    @property
    def ns(self) -> float | None:
        """What is minimised, in nanoseconds: as searches are stored."""
        return None if self.ms is None else self.ms * 1e6


class KnobShown(Struct, frozen=True, kw_only=True, rename={"words": "values"}):
    """A knob as it was searched."""

    name: str
    words: str
    way: str
    """How the job was given the settings."""


class Winner(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"speedup": "trial_speedup", "is_proven": "proven"},
):
    """The best setting, and what is known of it."""

    settings: Mapping[str, Value]
    ms: AboveZero | None
    speedup: AboveZero | None
    """Ratio as the trials had it, before / after; the proof's own number stands in
    `verification`."""
    is_proven: bool = False
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


class Tuning(
    Contract,
    frozen=True,
    kw_only=True,
    tag="stepscope.tuning/1",
    rename={
        "size": "settings_in_space",
        "check": "numerics",
        "verified": "verification",
        "spent": "budget",
    },
):
    """What `stepscope tune --format json` prints. What was not measured is null, never 0. Times are
    in milliseconds, of a step or of a sample as `per` says."""

    command: tuple[str, ...]
    verdict: Annotated[str, one_of(*VERDICTS)]
    because: str
    per: Annotated[str, one_of(STEP, SAMPLE)]
    knobs: tuple[KnobShown, ...]
    size: Annotated[int, Meta(ge=1)] | None
    """Different settings in the space; null where a knob is continuous."""
    baseline: Tried
    winner: Winner | None = None
    """The best that was measured, proven or not; null where nothing beat the baseline."""
    trials: tuple[Tried, ...]
    importance: Mapping[str, Share] | None = None
    """Share of each knob, adding up to 1; null where too few trials tell."""
    check: NumericsCheck | None = None
    """Whether the best setting computes the same."""
    verified: Verified | None = None
    """Verification, as in stepscope.verification/1."""
    ended: str = ""
    """Why the search ended, in words."""
    wall_s: AtLeastZero = 0.0
    spent: Spent | None = None
    """Null without a budget."""
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """The baseline's."""
    notes: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        return self.verdict == PROVEN
