"""How the time that was given is divided between the search and the proof.

What the check and the proof take follows from what a run takes: two runs of the baseline and one of
the winner to compare what they compute, and then rounds of four. As many rounds are kept as half of
the time has room for, up to three, after which verify has looked at the evidence twice; one at
least. Where not even that fits beside a search of three runs, there is no proof, and the search has
all of it.
"""

from __future__ import annotations

from msgspec import Struct

from stepscope.experiments.budget import CHECK_RUNS
from stepscope.experiments.verify.schedule import RUNS_A_ROUND

WANTED_ROUNDS = 3
MAX_SHARE = 0.5
"""Share of the time for a proof of more than one round."""
MIN_SEARCH = 3
"""Runs that are a search: the baseline, and two settings."""


class Division(Struct, frozen=True, kw_only=True):
    """The budget, and what of it is kept for the check and the proof."""

    total_s: float
    run_s: float
    num_rounds: int
    """Rounds of the proof; 0 where it has no room, or none is wanted."""
    is_proven: bool
    """Whether a proof is wanted."""

    @property
    def num_runs(self) -> int:
        """Runs of the check and the proof."""
        return CHECK_RUNS + RUNS_A_ROUND * self.num_rounds if self.num_rounds else 0

    @property
    def kept_s(self) -> float:
        return self.num_runs * self.run_s

    def is_over(self, spent_s: float) -> bool:
        """Whether the search has had its time: another run would take what is kept."""
        if not self.num_rounds:
            return spent_s >= self.total_s
        return spent_s + self.run_s > self.total_s - self.kept_s

    @property
    def words(self) -> str:
        """How it is divided."""
        if not self.is_proven:
            return f"the budget of {self.total_s:.0f} s is the search's: no proof follows"
        if not self.num_rounds:
            least = CHECK_RUNS + RUNS_A_ROUND
            return (
                f"the budget of {self.total_s:.0f} s has no room for a proof beside a search: "
                "check and proof take at least "
                f"{least} runs of about {self.run_s:.1f} s. All of it is the search's"
            )
        rounds = "one round" if self.num_rounds == 1 else f"{self.num_rounds} rounds"
        return (
            f"of the budget of {self.total_s:.0f} s, {self.kept_s:.0f} s are kept for the check "
            f"and the proof: {CHECK_RUNS} runs "
            f"to compare what is computed and {rounds} of {RUNS_A_ROUND}, of about "
            f"{self.run_s:.1f} s each"
        )

    @property
    def ended_words(self) -> str:
        """Why the search ended."""
        if not self.num_rounds:
            return f"the budget of {self.total_s:g} s is spent"
        return (
            f"what is left of the budget of {self.total_s:g} s is kept for the check and the proof"
        )


def divided(total_s: float, run_s: float, *, is_proven: bool) -> Division:
    """Divide so many seconds, where a run takes so long."""
    room = total_s / max(run_s, 1e-9)
    fitting = [
        num
        for num in range(2, WANTED_ROUNDS + 1)
        if CHECK_RUNS + RUNS_A_ROUND * num <= MAX_SHARE * room
    ]
    least = 1 if room >= MIN_SEARCH + CHECK_RUNS + RUNS_A_ROUND else 0
    return Division(
        total_s=total_s,
        run_s=run_s,
        num_rounds=max(fitting, default=least) if is_proven else 0,
        is_proven=is_proven,
    )
