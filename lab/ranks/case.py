"""What a case of several ranks is: the job as it is, the job with its mend, and what an honest tool
may say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.measure import Run

MIN_GAIN = 1.03
"""A mend measured to give less makes its suspect innocent."""


@dataclass(frozen=True, kw_only=True)
class RankCase:
    """`suspect` is a code the clock decides on: a cause where its mend gives MIN_GAIN, else one of
    `no_gain_from`.

    `culprit_rank` is the rank all others wait for, None where it changes or there is none. A case
    without `fixed` is a reference. `mean` is for jobs whose steps differ by nature.
    """

    model: str
    bounds: tuple[str, ...]
    causes: tuple[str, ...] = ()
    suspect: str | None = None
    no_gain_from: tuple[str, ...] = ()
    fix: str
    slow: Callable[[], Run]
    fixed: Callable[[], Run] | None = None
    world: int = 2
    culprit_rank: int | None = None
    mean: bool = False
    held_out: bool = False

    def labels(self, speedup: float | None) -> dict[str, Any]:
        """What truth.json says of the case beside its step times."""
        causes, innocent = list(self.causes), list(self.no_gain_from)
        if self.suspect is not None and speedup is not None:
            (causes if speedup >= MIN_GAIN else innocent).append(self.suspect)
        row: dict[str, Any] = {"bounds": list(self.bounds), "causes": causes}
        if innocent:
            row["no_gain_from"] = innocent
        row |= {
            "world": self.world,
            "culprit_rank": self.culprit_rank,
            "fix": self.fix,
            "model": self.model,
        }
        if self.held_out:
            row["held_out"] = True
        return row
