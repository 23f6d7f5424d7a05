"""What is left of the time that was given, while the winner of a search is checked and proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.experiments.schedule import RUNS_A_ROUND

LEAST_RUN_S = 1.0
"""No training starts and times steps in less: with so little left, no run is begun."""


class SpentError(Exception):
    """There is no time for another run; says what of the budget is gone, and for what there is none."""


@dataclass(slots=True)
class Budget:
    """Seconds for the check and the proof together, from the moment it is made. A run that is under way may finish."""

    seconds: float | None
    clock: Callable[[], float]
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def left_s(self) -> float | None:
        """None where there is no end."""
        return None if self.seconds is None else max(0.0, self.seconds - (self.clock() - self.began))

    def ask(self, what: str) -> None:
        """Before each run. Raises where the time is gone."""
        if self.left_s is not None and self.left_s <= LEAST_RUN_S:
            raise SpentError(f"the budget was spent before {what}. Give a longer --budget, or shorter trials by --steps")

    def ask_for_a_proof(self, num_rehearsals: int, run_s: float) -> None:
        """Before the first run of a proof. Raises where not even its first round fits: half a round tells nothing."""
        num = num_rehearsals + RUNS_A_ROUND
        if self.left_s is not None and num * run_s > self.left_s:
            raise SpentError(
                f"{self.left_s:.0f} s of the budget were left, and a proof takes at least {num} runs of about {run_s:.0f} s. "
                "Give a longer --budget, or shorter trials by --steps"
            )
