"""The capture inside this very process, and what decides where a step ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.step_boundary import Anchor
from stepscope.protocol.options import Options, options_of
from stepscope.readers.run_folder.folder import read_run
from tests.installed import package

torch = package("torch")


@pytest.fixture
def train() -> Callable[[], None]:
    """A tiny loop's step."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_scope_records_what_it_is_told_and_leaves_torch_as_it_was(
    tmp_path: Path, train: Any
) -> None:
    before = (torch.autograd.backward, torch.save, torch.optim.Optimizer.profile_hook_step)
    with stepscope.profile(out=tmp_path / "run", start_step=6, num_steps=2) as scope:
        for _ in range(16):
            train()
            train()
            scope.step()
    assert (torch.autograd.backward, torch.save, torch.optim.Optimizer.profile_hook_step) == before
    recorded = read_run(tmp_path / "run")
    (rank,) = recorded.ranks
    # From inside it is not known what started the job: `fix` asks for it.
    assert recorded.metadata["command"] == []
    assert [row["num_backwards"] for row in rank.rows] == [2] * 15
    assert list(rank.windows) == [6]


def test_optimizers_made_before_a_session_are_seen_in_it_and_in_the_next(
    tmp_path: Path, train: Any
) -> None:
    from stepscope.capture.hooks.install import begin, forget_session

    code = torch.optim.SGD.step.__code__
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        session = begin(folder, Options(sample_s=1e6))
        try:
            for _ in range(10):
                train()
            assert session.step == 10
        finally:
            session.finish()
            session.guard.off()
            forget_session(session)
        assert torch.optim.SGD.step.__code__ is code


def test_a_class_wrapped_in_a_scope_is_as_torch_made_it_afterwards(tmp_path: Path) -> None:
    class Own(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    class Plain(torch.optim.SGD):  # type: ignore[misc, name-defined]
        pass

    with stepscope.profile(out=tmp_path):
        optimizer = Own([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    # PyTorch wraps a class of its own accord when the first optimizer of it is made.
    Plain([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    assert vars(Own)["step"].__code__ == Plain.step.__code__
    optimizer.step()


def test_scopes_that_are_over_are_not_kept(tmp_path: Path, train: Any) -> None:
    from stepscope.capture.hooks.install import current

    for number in range(3):
        with stepscope.profile(out=tmp_path / str(number)) as scope:
            for _ in range(3):
                train()
                scope.step()
    assert current() is None


def test_an_error_in_the_scope_is_the_jobs_own(tmp_path: Path, train: Any) -> None:
    def job() -> None:
        with stepscope.profile(out=tmp_path / "run") as scope:
            for _ in range(4):
                train()
                scope.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert len(read_run(tmp_path / "run").ranks[0].rows) == 3


@pytest.mark.planted
def test_a_folder_that_cannot_be_made_costs_the_recording_alone(train: Any) -> None:
    with stepscope.profile(out="/proc/nowhere/run") as scope:
        train()
        scope.step()


@pytest.mark.planted
def test_a_guarded_failure_is_told_once_and_the_rest_undone() -> None:
    guard = Guard()
    told: list[str] = []
    undone: list[str] = []
    guard.report = told.append
    guard.at_end(lambda: undone.append("first"))
    guard.at_end(lambda: undone.remove("nobody"))

    @guard.watch
    def fails() -> None:
        raise OSError("no room")

    fails()
    fails()
    assert len(told) == 1
    assert "no room" in told[0]
    assert undone == ["first"]
    assert not guard.is_on


def test_ctrl_c_in_a_hook_is_the_jobs() -> None:
    @Guard().watch
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


@pytest.mark.parametrize(
    ("turn", "num_turns", "expected"),
    [
        ([1], 100, 100),
        ([1, 2], 100, 100),
        ([1] * 5 + [2], 100, 100),
        ([1, 1, 2, 3], 100, 100),
        (list(range(500)), 20, 20),
    ],
    ids=["one", "two in turn", "a critic five times as often", "three", "one for each parameter"],
)
def test_steps_are_turns_of_the_loop(turn: list[int], num_turns: int, expected: int) -> None:
    anchor = Anchor()
    ends = [anchor.ends_step(optimizer) for _ in range(num_turns) for optimizer in turn]
    late = len(turn) * 12
    assert sum(ends[late:]) == expected - 12, "once it is sure, every turn ends one step"


def test_an_optimizer_that_is_used_no_more_gives_way() -> None:
    anchor = Anchor()
    assert all(anchor.ends_step(1) for _ in range(20))
    ends = [anchor.ends_step(2) for _ in range(200)]
    assert sum(ends) > 100


def test_many_short_lived_optimizers_do_not_pile_up() -> None:
    anchor, draw = Anchor(), random.Random(0)
    for _ in range(60_000):
        anchor.ends_step(draw.getrandbits(60))
    assert len(anchor._seen) <= 10_001


@pytest.mark.parametrize(
    "told",
    [{}, {"num_steps": "3"}, {"num_steps": -1}, {"stacks": 1}, {"num_steps": True}, {"other": 5}],
)
def test_options_of_the_wrong_kind_are_left_out(told: dict[str, Any]) -> None:
    assert options_of(told) == Options()


def test_a_step_of_none_is_one() -> None:
    assert options_of({"num_steps": 0, "warm_up_steps": 0}).num_steps == 1
