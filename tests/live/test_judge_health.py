"""Each reason to call a job unhealthy, and each not to know."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import Finding
from stepscope.live.judge_health import Outcome, expected_ranks, health
from stepscope.live.report.health import health_document
from stepscope.live.shapes.triage import BAD, OK, UNKNOWN, Health
from stepscope.readers.run_folder.tail import Follower, RankTail
from stepscope.report.document.terminal import to_text
from tests.live_runs import add_samples, add_steps, row, sample, write_rank, write_run
from tests.wording import mentions

LATE = Finding(
    code="late-rank", bound="imbalance", summary="Rank 1 holds the "
"others up.", action="", evidence=(), ranks=(1,),
    predicted_speedup=2, predicted_low=2, predicted_high=2, predicted_step_ms=5,
)  # fmt: skip


@pytest.fixture
def good(tmp_path: Path) -> Outcome:
    run = write_run(tmp_path / "run")
    for rank in range(2):
        folder = write_rank(run, rank, world_size=2)
        add_steps(folder, [row(step, 10, state=1 if step <= 5 else 2) for step in range(1, 11)])
        add_samples(folder, [sample(1, 11, devices=[{"throttle_reasons": ["sw_power_cap"]}])])
    tail = Follower(run).look()
    return Outcome(
        ranks=tail.ranks, expected=frozenset({0, 1}), num_steps=10, exit_code=None,
        has_timed_out=False, silent=(), findings=()
    )  # fmt: skip


def states(answer: Health) -> dict[str, str]:
    return {check.name: check.state for check in answer.checks}


def test_a_healthy_job(good: Outcome) -> None:
    answer = health(good)
    assert answer.state == OK
    assert set(states(answer)) == {
        "job",
        "ranks",
        "signs of life",
        "straggler",
        "step times",
        "devices",
    }
    said = to_text(health_document(answer))
    assert said.startswith("Healthy.\n")
    assert [(rank.rank, rank.num_steps, rank.mean_ns) for rank in answer.ranks] == [
        (0, 4, 10e6),
        (1, 4, 10e6),
    ], "steps 2 to 5: the first is left out, and those under the profiler"
    assert mentions(said, "Ranks", "10.0 ms", "loader", "backward")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("ranks", {"expected": frozenset(range(4))}, "ranks 2-3 of 4"),
        ("ranks", {"num_steps": 20, "has_timed_out": True}, "ranks 0-1 did not reach step 20"),
        ("signs of life", {"silent": (1,)}, "rank 1 went silent"),
        ("straggler", {"findings": (LATE,)}, "late-rank (rank 1): Rank 1 holds the others up."),
        ("job", {"exit_code": 1}, "exit code 1"),
    ],
)
def test_what_makes_a_job_unhealthy(
    good: Outcome, name: str, change: dict[str, object], words: str
) -> None:
    answer = health(replace(good, **change))
    assert answer.state == BAD
    (check,) = [check for check in answer.checks if check.state == BAD]
    assert check.name == name
    assert words in check.words
    assert "BAD" in to_text(health_document(answer))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"findings": None, "not_diagnosed": "no recording"}, "not judged: no recording"),
        ({"num_steps": 20, "exit_code": 0}, "fewer than 20: too few"),
        ({"ranks": (), "exit_code": 0}, "optimizer step"),
        ({"ranks": (), "has_timed_out": True}, "in the time given"),
    ],
)
def test_what_leaves_it_open(good: Outcome, change: dict[str, object], words: str) -> None:
    answer = health(replace(good, **change))
    assert answer.state == UNKNOWN
    assert words in " ".join(to_text(health_document(answer)).split())


def test_a_job_that_fails_before_its_first_step_is_unhealthy(good: Outcome) -> None:
    assert health(replace(good, ranks=(), exit_code=9)).state == BAD


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"devices": [{"throttle_reasons": ["hw_thermal_slowdown"]}]},
            "clocks lowered: hw_thermal_slowdown (rank 1)",
        ),
        ({"allocators": [{"num_ooms": 2}]}, "out of memory (rank 1)"),
        ({"notes": ["device 0: not measured: GPU is lost"]}, "GPU is lost (rank 1)"),
    ],
)
def test_a_device_in_trouble_is_named(good: Outcome, more: dict[str, object], words: str) -> None:
    sick = replace(good.ranks[1], samples=(sample(1, 11, **more),))
    answer = health(replace(good, ranks=(good.ranks[0], sick)))
    (check,) = [check for check in answer.checks if check.state == BAD]
    assert check.name == "devices"
    assert words in check.words


def test_ranks_that_do_not_keep_step_are_apart(good: Outcome) -> None:
    slow = replace(
        good.ranks[1],
        rows=tuple({**one, "dur_ns": 2 * (one["dur_ns"] or 0)} for one in good.ranks[1].rows),
    )
    answer = health(replace(good, ranks=(good.ranks[0], slow)))
    assert states(answer)["step times"] == BAD


def test_one_rank_has_nobody_to_wait_for(good: Outcome) -> None:
    answer = health(replace(good, ranks=good.ranks[:1], expected=frozenset({0}), findings=None))
    assert answer.state == OK
    assert "straggler" not in states(answer)


def test_the_ranks_expected_are_those_of_the_machine_where_one_is_seen(good: Outcome) -> None:
    def told(rank: int, host: str, **more: int) -> RankTail:
        return replace(
            good.ranks[0], rank=rank, metadata={"rank": rank, "world_size": 8, "host": host, **more}
        )

    second = told(5, "b", local_rank=1, local_world_size=4)
    assert expected_ranks([second]) == frozenset({4, 5, 6, 7})
    assert expected_ranks([second, told(0, "a", local_rank=0, local_world_size=4)]) == frozenset(
        range(8)
    )
    assert expected_ranks([told(5, "b")]) == frozenset(range(8))
    assert expected_ranks([]) == frozenset()
