"""What a search is asked: how long, from where, and what it calls to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from stepscope.core.experiments.trials import Change, Trial, Value

OnSteps = Callable[[Sequence[int]], bool]
Measure = Callable[[Change, "OnSteps | None"], Trial]
Say = Callable[[str], None]


class TunePolicy(Struct, frozen=True, kw_only=True):
    """How long to search, and what may change."""

    num_trials: int = 20
    """Trials in the whole study, the baseline apart."""
    budget_s: float | None = None
    """Time of the search and the proof together."""
    is_proven: bool = False
    """Whether a check and a proof follow, for which a part of the budget is kept."""
    seed: int | None = None
    storage: str | None = None
    name: str = "stepscope-tune"
    free: frozenset[str] = frozenset()
    """What need not stay equal: batch, numerics."""
    effective_batch: int | None = None
    """Samples a step on all ranks, where the capture cannot see it."""
    prune: bool = True


class Start(Struct, frozen=True, kw_only=True):
    """A setting to try early, and where it came from."""

    settings: Mapping[str, Value]
    origin: str
