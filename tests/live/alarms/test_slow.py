"""Planted steps of several ranks: who is late, since when, and what takes longer."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stepscope.live.alarms.episodes import Trouble
from stepscope.live.alarms.slow import NUM_FROM_START, SlowSteps
from stepscope.live.alarms.steps import JobStep, RankStep, StepTable
from stepscope.protocol.run_folder import STEP_COLUMNS
from stepscope.readers.run_folder.tail import RankTail
from tests.wording import mentions

MS = 1_000_000
STEP_S = 0.1
FAULT = 200
"""The step that it begins with."""

More = Callable[[int, int], dict[str, float]]
"""Milliseconds more in a part of a rank's step."""


def tail(rank: int, rows: list[dict[str, int | None]], **notes: object) -> RankTail:
    return RankTail(
        rank=rank,
        metadata={"wall_ns": 0, "perf_ns": 0, **notes},
        head=(),
        rows=(),
        stretches=(),
        samples=(),
        new_rows=tuple(rows),
        new_samples=(),
        num_windows=0,
        sign_wall_ns=0,
        step_wall_ns=0,
        problem=None,
    )


class Job:
    """Ranks that exchange gradients: each step ends when the last of them is through."""

    def __init__(self, num_ranks: int = 4, seed: int = 1, noise_ms: float = 1.0) -> None:
        self.ranks = range(num_ranks)
        self._rng = random.Random(seed)
        self._noise_ms = noise_ms
        self._at_ns = 0
        self.table, self.slow = StepTable(), SlowSteps()
        self.cores = dict.fromkeys(self.ranks, 0.3)
        self.queued = dict.fromkeys(self.ranks, 0.02)

    def go(self, first: int, last: int, more: More = lambda _rank, _step: {}) -> list[Trouble]:
        troubles = []
        for step in range(first, last):
            troubles += self._step(step, more)
        return troubles

    def _step(self, step: int, more: More) -> list[Trouble]:
        parts = {rank: self._parts(rank, step, more) for rank in self.ranks}
        slowest = max(part["loader"] + part["forward"] for part in parts.values())
        exchange = max(part["backward"] for part in parts.values())
        length = slowest + exchange
        self._at_ns += round(length * MS)
        tails = []
        for rank, part in parts.items():
            row: dict[str, int | None] = dict.fromkeys(STEP_COLUMNS, 0)
            row |= {"step": step, "end_ns": self._at_ns, "dur_ns": round(length * MS)}
            row |= {"device_ns": None, "wait_ns": round(part["loader"] * MS), "num_backwards": 1}
            row["backward_ns"] = round((length - part["loader"] - part["forward"]) * MS)
            tails.append(tail(rank, [row]))
            sample = {
                "cpu_user_cores": self.cores[rank],
                "cpu_sys_cores": 0.0,
                "main_thread_queued_share": self.queued[rank],
            }
            self.slow.add_samples(rank, [(self._at_ns / 1e9, sample)])
        return self.slow.add(self.table.add(tails))

    def _parts(self, rank: int, step: int, more: More) -> dict[str, float]:
        usual = {"loader": 5.0, "forward": 60.0, "backward": 20.0}
        extra = more(rank, step)
        return {
            name: ms + abs(self._rng.gauss(0, self._noise_ms)) + extra.get(name, 0.0)
            for name, ms in usual.items()
        }


def one(troubles: list[Trouble]) -> Trouble:
    (trouble,) = [trouble for trouble in troubles if trouble.ended_s is None]
    return trouble


@pytest.mark.parametrize("noise_ms", [0.5, 4.0])
def test_a_late_rank_is_named_with_its_first_step_and_its_part(noise_ms: float) -> None:
    job = Job(noise_ms=noise_ms)
    assert job.go(0, FAULT) == []
    trouble = one(job.go(FAULT, 320, lambda rank, _: {"forward": 30.0 * (rank == 2)}))
    assert (trouble.kind, trouble.ranks) == ("late-rank", (2,))
    assert trouble.step is not None
    assert abs(trouble.step - FAULT) <= 20
    assert mentions(trouble.words, "in its forward", "others wait")
    (over,) = job.go(320, 450)
    assert over.ended_s is not None


def test_a_group_is_named_together_and_with_its_host() -> None:
    job = Job()
    for rank in job.ranks:
        job.slow.add_host(rank, "node-a" if rank < 2 else "node-b")
    job.go(0, FAULT)
    trouble = one(job.go(FAULT, 320, lambda rank, _: {"forward": 30.0 * (rank >= 2)}))
    assert (trouble.kind, trouble.ranks) == ("slow-group", (2, 3))
    assert "node-b" in trouble.words


def test_a_job_whose_ranks_are_all_slower_has_no_late_rank() -> None:
    job = Job()
    job.go(0, FAULT)
    trouble = one(job.go(FAULT, 320, lambda *_: {"forward": 30.0}))
    assert (trouble.kind, trouble.ranks) == ("step-time", (0, 1, 2, 3))
    job = Job()
    job.go(0, FAULT)
    assert job.go(FAULT, 400, lambda *_: {"forward": 12.0}) == [], "a seventh more is no alarm"


@pytest.mark.parametrize(("ranks", "kind"), [((1,), "loader"), ((0, 1, 2, 3), "loader")])
def test_a_slow_loader_is_named(ranks: tuple[int, ...], kind: str) -> None:
    job = Job()
    job.go(0, FAULT)
    trouble = one(job.go(FAULT, 320, lambda rank, _: {"loader": 40.0 * (rank in ranks)}))
    assert (trouble.kind, trouble.ranks) == (kind, ranks)


def test_an_exchange_that_takes_longer_is_told_from_longer_computing() -> None:
    job = Job()
    job.go(0, FAULT)
    trouble = one(job.go(FAULT, 320, lambda *_: {"backward": 40.0}))
    assert (trouble.kind, trouble.ranks) == ("bandwidth", (0, 1, 2, 3))
    job = Job()
    job.go(0, FAULT)
    for rank in job.ranks:
        # 0.3 cores of an 85 ms step, and all of the 40 ms more.
        job.cores[rank] = (0.3 * 85 + 40) / 125
    assert one(job.go(FAULT, 320, lambda *_: {"backward": 40.0})).kind == "step-time"


def test_a_rank_that_others_keep_from_its_core_is_a_busy_machine() -> None:
    job = Job()
    job.go(0, FAULT)
    job.queued[3] = 0.3
    trouble = one(job.go(FAULT, 320, lambda rank, _: {"forward": 30.0 * (rank == 3)}))
    assert (trouble.kind, trouble.ranks) == ("busy-machine", (3,))


def test_a_rank_that_is_late_from_the_start_is_named_by_its_peers() -> None:
    job = Job()
    trouble = one(job.go(0, 2 * NUM_FROM_START, lambda rank, _: {"forward": 40.0 * (rank == 0)}))
    assert (trouble.kind, trouble.ranks) == ("late-rank", (0,))
    assert "from the start" in trouble.words
    assert [each.ended_s is None for each in job.go(120, 300)] == [False]


def test_a_rank_without_a_core_from_the_start_is_a_busy_machine() -> None:
    """Of steps of half a second, fewer are enough."""
    job = Job()
    job.queued[1] = 0.8
    trouble = one(job.go(0, 40, lambda rank, _: {"forward": 400.0 * (rank == 1)}))
    assert (trouble.kind, trouble.ranks) == ("busy-machine", (1,))


def wandering(seed: int) -> More:
    """As on a machine that others use: for seconds the exchange takes up to twice as long."""
    rng = random.Random(seed)
    levels = [abs(rng.gauss(0, 12.0)) for _ in range(100)]
    return lambda _, step: {"backward": levels[step // 20 % len(levels)]}


@pytest.mark.parametrize("seed", range(4))
def test_a_late_rank_is_named_though_the_exchange_wanders(seed: int) -> None:
    job, noise = Job(), wandering(seed)
    assert job.go(0, 600, noise) == []
    late = one(job.go(600, 680, lambda rank, n: {**noise(0, n), "forward": 35.0 * (rank == 2)}))
    assert (late.kind, late.ranks) == ("late-rank", (2,))


@pytest.mark.parametrize(("queued", "kind"), [(0.02, "bandwidth"), (0.12, "busy-machine")])
def test_an_exchange_between_threads_without_cores_is_a_busy_machine(
    queued: float, kind: str
) -> None:
    job = Job()
    job.go(0, FAULT)
    job.queued = dict.fromkeys(job.ranks, queued)
    trouble = one(job.go(FAULT, 320, lambda *_: {"backward": 40.0}))
    assert (trouble.kind, trouble.ranks) == (kind, (0, 1, 2, 3))


def test_ranks_that_do_not_wait_for_one_another_are_judged_each_by_itself() -> None:
    slow, at_s = SlowSteps(), 0.0
    troubles = []
    for step in range(400):
        at_s += STEP_S
        own = {rank: 50 * MS * (2 if rank == 1 and step >= FAULT else 1) for rank in range(2)}
        parts = {
            rank: RankStep(length=ns, own=ns, waited=0, loader=0, exchange=0, optimizer=0)
            for rank, ns in own.items()
        }
        troubles += slow.add([JobStep(step=step, at_s=at_s, ranks=parts, is_coupled=False)])
    assert [(trouble.kind, trouble.ranks) for trouble in troubles] == [("late-rank", (1,))]


@pytest.mark.parametrize("noise_ms", [1.0, 6.0])
@pytest.mark.parametrize("seed", range(3))
def test_an_even_job_has_no_trouble(seed: int, noise_ms: float) -> None:
    assert Job(2, seed, noise_ms).go(0, 3_000) == []


def test_a_rank_with_more_to_wait_for_is_not_late() -> None:
    """A rank that does less than the others comes to do as much: nobody waits longer for it."""
    job = Job()
    light: More = lambda rank, _: {"forward": -40.0 * (rank == 1)}  # noqa: E731 - as above
    job.go(0, FAULT, light)
    assert job.go(FAULT, 400) == []
