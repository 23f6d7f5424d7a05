"""The time that a command is given, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.experiments.verify.schedule import RUNS_A_ROUND

CHECK_RUNS = 3
"""Two of the baseline and one of the winner; a run of each side is then the rehearsal of the
proof."""
LONGER = "Give a longer --budget, or shorter trials by --steps"
MIN_RUN_S = 1.0
"""No training starts and times steps in less: with so little left, no run is begun."""
END_S, END_SHARE = 2.0, 0.05
"""Seconds and share of a command's time, the smaller of which ends its last run and prints what
came of it."""


class SpentError(Exception):
    """No time is left for another run; says what of the budget is gone, and for what there is
    none."""


def for_runs(seconds: float) -> float:
    """What of a command's budget its runs may have."""
    return seconds - min(END_S, END_SHARE * seconds)


@dataclass(slots=True)
class Budget:
    """Seconds from the moment it is made. A run that is under way when they are over is ended."""

    seconds: float | None
    clock: Callable[[], float]
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def left_s(self) -> float | None:
        """None where there is no end."""
        return (
            None if self.seconds is None else max(0.0, self.seconds - (self.clock() - self.began))
        )

    @property
    def is_spent(self) -> bool:
        return self.left_s is not None and self.left_s <= MIN_RUN_S

    def ask(self, what: str) -> None:
        """Ask before each run. Raises where the time is gone."""
        if self.is_spent:
            raise SpentError(f"the budget was spent before {what}. {LONGER}")

    def ask_for_a_proof(self, num_before: int, run_s: float, what: str = "a proof takes") -> None:
        """Ask before the first run of a check or a proof. Raises where not even a first round fits:
        half a round tells nothing."""
        num = num_before + RUNS_A_ROUND
        if self.left_s is not None and num * run_s > self.left_s:
            raise SpentError(
                f"{self.left_s:.0f} s of the budget were left, and {what} at least {num} runs of "
                f"about {run_s:.0f} s. {LONGER}"
            )
