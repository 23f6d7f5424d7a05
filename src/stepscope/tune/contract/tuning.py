"""`stepscope.tuning/1`: what `stepscope tune --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from stepscope.core.constraints import AboveZero, AtLeastZero, Count, Share, one_of
from stepscope.core.contract.codec import Contract
from stepscope.core.contract.verification import VerificationContract
from stepscope.core.experiments.trials import Value
from stepscope.tune.shapes.tuning import (
    AGAIN,
    BASELINE,
    CACHE,
    DIAGNOSIS,
    SEARCH,
    STATES,
    VERDICTS,
    KnobShown,
    Spent,
)


class Trial(Struct, frozen=True, kw_only=True):
    """One trial of the search."""

    number: Count
    settings: Mapping[str, Value]
    state: Annotated[str, one_of(*STATES)]
    ms: AboveZero | None
    step_ms: AboveZero | None
    steps: Count
    wall_s: AtLeastZero
    why: str
    origin: Annotated[str, one_of(BASELINE, DIAGNOSIS, CACHE, SEARCH, AGAIN)]
    host: str
    not_taken: tuple[str, ...]


class Winner(Struct, frozen=True, kw_only=True):
    """The best setting, and what is known of it."""

    settings: Mapping[str, Value]
    ms: AboveZero | None
    trial_speedup: AboveZero | None
    proven: bool
    words: tuple[str, ...]
    """What to put in the code, or on the command line."""


class NumericsVerdict(Struct, frozen=True, kw_only=True):
    """Whether the best setting computes the same."""

    verdict: str
    because: str


class TuningContract(Contract, frozen=True, kw_only=True, tag="stepscope.tuning/1"):
    """What `stepscope tune --format json` prints. What was not measured is null, never 0. Times are
    in milliseconds, of a step or of a sample as `per` says."""

    command: tuple[str, ...]
    verdict: Annotated[str, one_of(*VERDICTS)]
    because: str
    per: Annotated[str, one_of("step", "sample")]
    knobs: tuple[KnobShown, ...]
    settings_in_space: Annotated[int, Meta(ge=1)] | None
    baseline: Trial
    winner: Winner | None
    trials: tuple[Trial, ...]
    importance: Mapping[str, Share] | None
    numerics: NumericsVerdict | None
    verification: VerificationContract | None
    """As in stepscope.verification/1."""
    ended: str
    wall_s: AtLeastZero
    budget: Spent | None
    """Null without a budget."""
    device: str | None
    versions: Mapping[str, str]
    notes: tuple[str, ...]
