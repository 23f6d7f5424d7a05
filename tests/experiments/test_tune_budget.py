"""The whole command keeps to its budget, on a made-up clock: no run is begun when it is spent."""

from __future__ import annotations

import pytest

from stepscope.cli.tune import SEARCH_SHARE
from stepscope.core.trials import Change, NumericRow, Trial
from stepscope.core.tuning import NOT_PROVEN, PROVEN, Tuning
from stepscope.experiments.tune import OnSteps, Search, TunePolicy
from tests.experiments.test_tune import proven, space, trial

pytest.importorskip("optuna")

RUN_S = 10.0


class Machine:
    """Every run takes ten seconds, from the given one on longer; two settings, the more workers the faster."""

    def __init__(self, slow_from: int = 999, slow_s: float = RUN_S) -> None:
        self.now_s, self.num_runs, self.slow_from, self.slow_s = 0.0, 0, slow_from, slow_s

    def measure(self, change: Change, on_steps: OnSteps | None = None) -> Trial:
        self.num_runs += 1
        took = RUN_S if self.num_runs < self.slow_from else self.slow_s
        self.now_s += took
        return trial(change, 20 / (1 + int(change.knobs.get("num_workers", 0))), seed=self.num_runs, wall_s=took, numerics=ROWS)

    def tuned(self, budget_s: float) -> Tuning:
        """As `stepscope tune --budget` does it."""
        policy = TunePolicy(num_trials=12, seed=1, budget_s=budget_s * SEARCH_SHARE, prune=False)
        search = Search(space("num_workers=1,2"), self.measure, policy, clock=lambda: self.now_s)
        search.run()
        return proven(search, self.measure, budget_s=max(1.0, budget_s - self.now_s))


ROWS = tuple(NumericRow(step=i, loss=1 / i, grad_norm=1.0, parameters=None, parameter_norm=None) for i in range(1, 9))


@pytest.mark.parametrize(
    ("budget_s", "num_runs", "said"),
    [
        (20, 2, "before it was known what the baseline computes"),
        (41, 4, "before it was known what the baseline computes"),
        (50, 5, "before it was known what num_workers=2 computes"),
        # Three to search, three to check; then a proof of four does not fit.
        (57, 6, "0 s of the budget were left, and a proof takes at least 4 runs of about 10 s"),
        (90, 6, "30 s of the budget were left, and a proof takes at least 4 runs of about 10 s"),
        (100, 10, None),
    ],
)
def test_search_check_and_proof_together_keep_to_the_budget(budget_s: float, num_runs: int, said: str | None) -> None:
    machine = Machine()
    found = machine.tuned(budget_s)
    assert machine.num_runs == num_runs
    assert machine.now_s < budget_s + RUN_S, "but for the run that was under way"
    assert found.wall_s == machine.now_s
    assert found.winner is not None, "what was measured is told"
    assert found.verdict == (PROVEN if said is None else NOT_PROVEN)
    assert said is None or said in found.because


def test_the_runs_of_the_check_are_the_rehearsal_of_the_proof() -> None:
    found = Machine().tuned(100)
    assert found.verified is not None
    assert [(run.side, run.round) for run in found.verified.runs] == [
        ("baseline", None), ("candidate", None), ("baseline", 0), ("candidate", 0), ("candidate", 0), ("baseline", 0)
    ]  # fmt: skip


def test_a_proof_whose_runs_grow_longer_is_left_when_the_time_is_gone() -> None:
    machine = Machine(slow_from=7, slow_s=30)
    found = machine.tuned(140)
    assert (machine.num_runs, machine.now_s) == (9, 150), "the last began at 120"
    assert found.verdict == NOT_PROVEN
    assert "the budget was spent before the proof was at its end" in found.because
    assert "--budget" in found.because
    assert found.verified is None
