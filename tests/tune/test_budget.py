"""The whole command keeps to its budget, on a made-up clock: no run is begun when it is spent."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.experiments.trials import Change, NumericRow, Trial
from stepscope.tune.division import divided
from stepscope.tune.policy import OnSteps, TunePolicy
from stepscope.tune.shapes.tuning import NOT_PROVEN, PROVEN, Tuning
from stepscope.tune.tuner import Search
from tests.clocked_searches import proven, space, trial
from tests.installed import need
from tests.wording import mentions

need("optuna")

RUN_S = 10.0


class Machine:
    """Every run takes ten seconds, from the given one on longer; two settings, the more workers the
    faster."""

    def __init__(self, slow_from: int = 999, slow_s: float = RUN_S) -> None:
        self.now_s, self.num_runs, self.slow_from, self.slow_s = 0.0, 0, slow_from, slow_s

    def measure(self, change: Change, on_steps: OnSteps | None = None) -> Trial:
        self.num_runs += 1
        took = RUN_S if self.num_runs < self.slow_from else self.slow_s
        self.now_s += took
        return trial(
            change,
            20 / (1 + int(change.knobs.get("num_workers", 0))),
            seed=self.num_runs,
            wall_s=took,
            numerics=ROWS,
        )

    def tuned(self, budget_s: float, storage: str | None = None) -> Tuning:
        """As `stepscope tune --budget` does it."""
        policy = TunePolicy(
            num_trials=12, seed=1, budget_s=budget_s, is_proven=True, prune=False, storage=storage
        )
        search = Search(space("num_workers=1,2"), self.measure, policy, clock=lambda: self.now_s)
        search.run()
        return proven(search, self.measure, budget_s=max(0.0, budget_s - self.now_s))


ROWS = tuple(
    NumericRow(step=i, loss=1 / i, grad_norm=1.0, parameters=None, parameter_norm=None)
    for i in range(1, 9)
)


MANY = (
    "num_workers=1..3",
    "prefetch_factor=2..4",
    "num_threads=1..3",
    "gc=on,freeze",
    "persistent_workers=on,off",
)
"""So many knobs that a short search goes by its fixed first settings alone."""


@pytest.mark.parametrize(
    ("budget_s", "num_runs", "said"),
    [
        (20, 2, ("0 s of the budget", "7 runs", "10 s")),
        (57, 3, ("27 s of the budget", "7 runs", "10 s")),
        (99, 3, ("69 s of the budget", "7 runs", "10 s")),
        # Three to search, three to check, one round of four.
        (100, 10, None),
    ],
)
def test_search_check_and_proof_together_keep_to_the_budget(
    budget_s: float, num_runs: int, said: tuple[str, ...] | None
) -> None:
    machine = Machine()
    tuning = machine.tuned(budget_s)
    assert machine.num_runs == num_runs
    assert machine.now_s < budget_s + RUN_S, "but for the run that was under way"
    assert tuning.wall_s == machine.now_s
    assert tuning.winner is not None, "what was measured is told"
    assert tuning.verdict == (PROVEN if said is None else NOT_PROVEN)
    assert said is None or mentions(tuning.because, *said)


def test_the_runs_of_the_check_are_the_rehearsal_of_the_proof() -> None:
    tuning = Machine().tuned(100)
    assert tuning.verified is not None
    assert [(run.side, run.round) for run in tuning.verified.runs] == [
        ("baseline", None), ("candidate", None), ("baseline", 0), ("candidate", 0),
        ("candidate", 0), ("baseline", 0),
    ]  # fmt: skip


def test_a_proof_whose_runs_grow_longer_is_left_when_the_time_is_gone() -> None:
    machine = Machine(slow_from=7, slow_s=30)
    tuning = machine.tuned(140)
    assert (machine.num_runs, machine.now_s) == (9, 150), "the last began at 120"
    assert tuning.verdict == NOT_PROVEN
    assert mentions(tuning.because, "budget was spent", "proof")
    assert "--budget" in tuning.because
    assert tuning.verified is not None, "what its runs gave is told"
    assert [run.round for run in tuning.verified.runs] == [None, None, 0, 0, 0]
    assert mentions(tuning.because, "the baseline took", "48 steps in 2 runs")


def test_a_proof_that_ran_out_of_time_is_left_to_the_next_process(tmp_path: Path) -> None:
    storage = str(tmp_path / "trials.journal")
    assert Machine(slow_from=7, slow_s=30).tuned(140, storage).verdict == NOT_PROVEN
    tuning = Machine().tuned(10_000, storage)
    assert tuning.verdict == PROVEN
    assert not any(mentions(note, "share the storage") for note in tuning.notes)


def test_a_round_that_was_ended_in_time_is_looked_at_when_the_next_one_is_not() -> None:
    """Two rounds fit by what a run took; in the second one runs grow longer. The first is evidence
    all the same."""
    machine = Machine(slow_from=11, slow_s=35)
    tuning = machine.tuned(150)
    assert (machine.num_runs, machine.now_s) == (12, 170)
    assert tuning.verified is not None
    assert [run.round for run in tuning.verified.runs] == [None, None, 0, 0, 0, 0, 1, 1]
    assert (tuning.verified.num_rounds, tuning.verified.num_looks) == (1, 1)
    assert tuning.verdict == PROVEN


@pytest.mark.parametrize(
    ("total_s", "rounds", "kept_s"),
    [
        (90, 0, 0),
        (100, 1, 70),
        (210, 1, 70),
        (220, 2, 110),
        (290, 2, 110),
        (300, 3, 150),
        (10_000, 3, 150),
    ],
)
def test_what_is_kept_for_the_proof_follows_from_what_a_run_takes(
    total_s: float, rounds: int, kept_s: float
) -> None:
    """Three runs to check and rounds of four: as many as half of the time has room for, and one
    beside a search of three runs."""
    division = divided(total_s, RUN_S, is_proven=True)
    assert (division.num_rounds, division.kept_s) == (rounds, kept_s)
    assert divided(total_s * 7, RUN_S * 7, is_proven=True).num_rounds == rounds, (
        "the same for a job seven times as slow"
    )
    assert divided(total_s, RUN_S, is_proven=False).kept_s == 0
    last = total_s - kept_s - (RUN_S if rounds else 0)
    assert not division.is_over(last - 0.01)
    assert division.is_over(last + 0.01)


def test_the_search_leaves_off_where_another_run_would_take_what_is_kept() -> None:
    machine = Machine()
    policy = TunePolicy(num_trials=40, seed=1, budget_s=135, is_proven=True, prune=False)
    said = list[str]()
    search = Search(space(*MANY), machine.measure, policy, said.append, clock=lambda: machine.now_s)
    search.run()
    assert machine.num_runs == 6, "65 s are the search's"
    assert mentions(search.ended, "left", "budget of 135 s", "proof")
    assert any(mentions(line, "135 s, 70 s", "3 runs", "one round of 4") for line in said)
    tuning = proven(search, machine.measure, budget_s=135 - machine.now_s)
    assert tuning.spent is not None
    assert (tuning.spent.kept_s, tuning.spent.search_s, tuning.spent.proof_s) == (70, 60, 70)
    assert tuning.verdict == PROVEN


def test_runs_that_turn_out_shorter_leave_more_to_the_search() -> None:
    """The first run fills caches and takes four times as long: what is kept is reckoned anew before
    each trial."""
    machine = Machine(slow_s=40.0)

    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        machine.slow_from = 0 if machine.num_runs == 0 else 999
        return machine.measure(change)

    said = list[str]()
    policy = TunePolicy(num_trials=40, seed=1, budget_s=300, is_proven=True, prune=False)
    search = Search(space(*MANY), measure, policy, said.append, clock=lambda: machine.now_s)
    search.run()
    assert any(mentions(words, "no room", "proof") for words in said), (
        "300 s are seven runs and a half of 40 s"
    )
    assert search.division is not None
    assert (search.division.run_s, search.division.kept_s) == (25, 175)
    assert machine.now_s == 40 + 7 * RUN_S, "an eighth would likely end beyond 125 s"


class Ended(Machine):
    """One whose runs are ended when their time is over, as the command line does it."""

    def __init__(self, slow_from: int, slow_s: float) -> None:
        super().__init__(slow_from, slow_s)
        self.search: Search | None = None
        self.num_ended = 0

    def measure(self, change: Change, on_steps: OnSteps | None = None) -> Trial:
        assert self.search is not None
        limit, before = self.search.left_s(), self.now_s
        made = super().measure(change, on_steps)
        if limit is None or made.wall_s <= limit:
            return made
        self.now_s = before + limit
        self.num_ended += 1
        return replace(
            made,
            wall_s=limit,
            is_timed_out=True,
            is_cut=False,
            exit_code=143,
            step_ns=made.step_ns[:1],
        )

    def tuned(self, budget_s: float, storage: str | None = None) -> Tuning:
        policy = TunePolicy(
            num_trials=12, seed=1, budget_s=budget_s, is_proven=True, prune=False, storage=storage
        )
        self.search = Search(
            space("num_workers=1,2"), self.measure, policy, clock=lambda: self.now_s
        )
        self.search.run()
        return proven(self.search, self.measure, budget_s=max(0.0, budget_s - self.now_s))


@pytest.mark.parametrize("slow_from", range(2, 15))
@pytest.mark.parametrize("slow_s", [25.0, 1e9])
@pytest.mark.parametrize("budget_s", [60.0, 140.0, 260.0])
def test_a_run_that_would_pass_the_end_of_the_budget_is_ended(
    budget_s: float, slow_s: float, slow_from: int
) -> None:
    """Whichever run grows longer, or never ends: of the search, of the check or of the proof."""
    machine = Ended(slow_from, slow_s)
    tuning = machine.tuned(budget_s)
    assert machine.now_s <= budget_s
    assert tuning.verdict in (PROVEN, NOT_PROVEN, "nothing faster", "not measured")


def test_a_trial_that_never_ends_leaves_the_proof_its_time() -> None:
    """The second setting hangs: the first is checked and proven all the same."""
    machine = Ended(slow_from=3, slow_s=1e9)
    measure_before = machine.measure

    def measure(change: Change, on_steps: OnSteps | None = None) -> Trial:
        made = measure_before(change, on_steps)
        machine.slow_from = 999
        return made

    machine.measure = lambda change, on_steps=None: (  # type: ignore[method-assign]
        measure(change, on_steps) if machine.num_runs == 2 else measure_before(change, on_steps)
    )
    tuning = machine.tuned(140)
    assert machine.num_ended == 1
    assert machine.now_s <= 140
    assert tuning.verdict == PROVEN
