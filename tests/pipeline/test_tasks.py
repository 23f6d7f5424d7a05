"""Tasks on workers that die: retried, and given up in words, never waited for."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import StepscopeError
from stepscope.pipeline.measure import measure_job
from stepscope.pipeline.workers import DiedError, Workers, death_words, local_workers, run_tasks
from stepscope.readers.inputs import find_sources
from tests.builders import trace_text, write
from tests.shared_data import ROOT
from tests.tasks import die_always, die_once, no_memory, square
from tests.wording import mentions


@pytest.fixture(autouse=True)
def path_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers leave out the working folder, from which the tests are often started."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


def test_every_item_has_its_result_whatever_the_order() -> None:
    with ThreadPoolExecutor(3) as pool:
        assert dict(run_tasks(Workers(pool, 4), square, range(50))) == {n: n * n for n in range(50)}
        assert dict(run_tasks(Workers(pool, 4), square, [])) == {}


class Counting(Executor):
    """Does the work at once, and counts what has been given to it."""

    def __init__(self) -> None:
        self.num = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.num += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_only_a_few_are_in_flight() -> None:
    executor = Counting()
    results = run_tasks(Workers(executor, 3), square, range(100))
    next(results)
    assert executor.num == 3


def test_a_worker_killed_midway_costs_a_retry(tmp_path: Path) -> None:
    items = (
        [str(tmp_path / "innocent")] * 3
        + [str(tmp_path / "marker")]
        + [str(tmp_path / "innocent")] * 3
    )
    with local_workers(2) as workers:
        results = dict(run_tasks(workers, die_once, items))
    assert (tmp_path / "marker").exists()
    assert sorted(results) == list(range(7))
    assert not any(isinstance(result, DiedError) for result in results.values())


def test_a_task_that_always_kills_is_given_up_and_takes_no_other_with_it() -> None:
    names = ["a", "b", "poison", "c", "d", "e"]
    with local_workers(2) as workers:
        results = dict(run_tasks(workers, die_always, names))
    died = results.pop(2)
    assert isinstance(died, DiedError)
    assert mentions(died, "lack of memory")
    assert results == {n: name for n, name in enumerate(names) if name != "poison"}


def test_a_task_out_of_memory_is_given_up_after_a_try_alone() -> None:
    with ThreadPoolExecutor(2) as pool:
        results = dict(run_tasks(Workers(pool, 3), no_memory, range(4)))
    assert isinstance(results.pop(1), DiedError)
    assert results == {0: 0, 2: 2, 3: 3}


class Deadly(Executor):
    """Breaks at one rank's file, and is whole again for the next."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if args[0].rank == 1:
            future.set_exception(BrokenExecutor())
        else:
            future.set_result(fn(*args, **kwargs))
        return future


class Renewed(Workers):
    def renew(self) -> str:
        return "in a test"


def test_a_rank_whose_worker_always_dies_is_named_and_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json.gz", trace_text(header={}))
    with find_sources([tmp_path]) as found:
        measured = measure_job(found.sources, workers=Renewed(Deadly(), 1))
    assert [facts.rank for facts in measured.facts.ranks] == [0, 2]
    assert any("rank1.json.gz" in note and "died" in note for note in measured.notes)


def test_how_a_worker_died_is_told_by_its_exit_code() -> None:
    terminated = -signal.SIGTERM
    assert mentions(death_words([terminated, -signal.SIGKILL]), "lack of memory")
    assert death_words([terminated, -signal.SIGSEGV]) == "ended by SIGSEGV"
    assert mentions(death_words([0, 1, terminated]), "exit code 1")
    assert mentions(death_words([terminated, None]), "signal from outside")


def test_a_script_without_a_guard_is_not_run_again_in_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "from stepscope.pipeline.workers import local_workers\nprint('begun')\n"
        "with local_workers(1) as workers:\n"
        "    print(workers.executor.submit(abs, -2).result())\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["begun", "2"]


class Gone(Executor):
    """Its tasks are cancelled, as those of a cluster whose scheduler went away."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


def test_cancelled_tasks_end_the_job_in_words() -> None:
    with pytest.raises(StepscopeError, match="cancelled"):
        dict(run_tasks(Workers(Gone(), 1), square, [1]))
