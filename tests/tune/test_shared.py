"""Several processes at one search: who has which setting, what becomes of those of a process that
is gone, and who proves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.errors import InputError
from stepscope.tune import study_trials
from stepscope.tune.final import Settled
from stepscope.tune.policy import TunePolicy
from stepscope.tune.shapes.tuning import AGAIN, MEASURED, SEARCH, Tried
from stepscope.tune.study import Study, opened_study
from stepscope.tune.study_trials import MAX_LOST
from stepscope.tune.tuner import Search
from stepscope.tune.workers import GONE_S, Workers
from tests.clocked_searches import Clocked, loader_clock, proven, space
from tests.installed import need
from tests.waiting import LONGEST_S
from tests.wording import mentions

need("optuna")


class Time:
    """A clock that goes by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Pair:
    """Two processes, as far as the storage can tell, and their clock."""

    def __init__(self, folder: Path, *knobs: str) -> None:
        self.clock, self.storage = Time(), str(folder / "sub" / "trials.journal")
        self.first, self.second = (
            Study(
                space(*knobs),
                name="one",
                storage=self.storage,
                seed=seed,
                host=host,
                clock=self.clock,
            )
            for seed, host in enumerate("ab")
        )


def measured(settings: Any, ns: float = 1e7, host: str = "a") -> Tried:
    return Tried(
        number=0,
        settings=settings,
        state=MEASURED,
        ms=ns / 1e6,
        step_ms=ns / 1e6,
        num_steps=9,
        wall_s=1.0,
        host=host,
    )


WORKER = """
import json, sys, time
from stepscope.tune.policy import TunePolicy
from stepscope.tune.tuner import Search
from tests.clocked_searches import Clocked, loader_clock, proven, space
made = Clocked(loader_clock)
search = Search(
    space("num_workers=1,2"), made, TunePolicy(num_trials=2, storage=sys.argv[1]), host=sys.argv[2],
    rest=lambda _seconds: time.sleep(0.01))
def at_once(_given):
    # Both have the study open: what one proves is not from before the other came.
    print("ready", flush=True)
    sys.stdin.readline()
    return ()
search.run(at_once)
tuning = proven(search)
print(json.dumps({
    "runs": len(made.changes), "winner": dict(tuning.winner.settings), "verdict": tuning.verdict,
    "notes": list(tuning.notes), "gain": tuning.verified.speedup.value,
    "trials": [[tried.settings["num_workers"], tried.host] for tried in tuning.trials],
}))
"""


def test_two_processes_at_once_share_the_trials_and_one_of_them_proves(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WORKER, str(tmp_path / "trials.journal")]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    both = [subprocess.Popen([*words, host], **pipes) for host in "ab"]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=LONGEST_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    results = [json.loads(out) for out, _ in outputs]
    assert results[0]["trials"] == results[1]["trials"]
    assert sorted(workers for workers, _ in results[0]["trials"]) == [1, 2], "each setting once"
    assert results[0]["winner"] == results[1]["winner"] == {"num_workers": 2}
    assert results[0]["gain"] == results[1]["gain"], "one proof"
    # A baseline for each, two trials, and the ten runs of one proof.
    assert results[0]["runs"] + results[1]["runs"] == 2 + 2 + 10
    notes = [note for result in results for note in result["notes"]]
    assert sum(mentions(note, "proven by", "process on") for note in notes) == 1


def test_the_setting_of_a_killed_process_is_tried_by_another(tmp_path: Path) -> None:
    storage = str(tmp_path / "trials.journal")
    dies = (
        "import os, signal, sys\n"
        "from stepscope.tune.policy import TunePolicy\n"
        "from stepscope.tune.tuner import Search\n"
        "from tests.clocked_searches import Clocked, loader_clock, space\n"
        "made = Clocked(loader_clock)\n"
        "def measure(change, on_steps):\n"
        "    return made(change, on_steps) if change.is_none else os.kill(os.getpid(), "
        "signal.SIGKILL)\n"
        "Search(space('num_workers=0..2'), measure, TunePolicy(num_trials=3, "
        "storage=sys.argv[1]), host='dead').run()\n"
    )
    ran = subprocess.run([sys.executable, "-c", dies, storage], capture_output=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    time, made, said = Time(), Clocked(loader_clock), list[str]()

    def rest(seconds: float) -> None:
        time.now_s += seconds

    policy = TunePolicy(num_trials=3, storage=storage, seed=1)
    search = Search(
        space("num_workers=0..2"), made, policy, said.append, clock=time, rest=rest, host="alive"
    )
    search.run()
    assert search.study is not None
    assert sorted(tried.settings["num_workers"] for tried in search.study.trials()) == [0, 1, 2]
    assert search.ended == "3 trials were made"
    assert GONE_S < time.now_s < 2 * GONE_S, "it waited for the other one first"
    assert any(mentions(note, "dead", "num_workers=0", "again") for note in search.notes)
    assert any(mentions(words, "waiting", "on dead") for words in said)
    assert not search.study.others()


def test_a_database_that_two_processes_lay_out_at_once_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class IntegrityError(Exception):
        pass

    made = []
    problems: list[Exception] = [
        IntegrityError("UNIQUE constraint failed"),
        IntegrityError("table studies already exists"),
    ]

    def create_study(**options: Any) -> str:
        made.append(options["study_name"])
        if problems:
            raise problems.pop()
        return "the study"

    optuna = SimpleNamespace(
        create_study=create_study,
        pruners=SimpleNamespace(NopPruner=object),
        storages=SimpleNamespace(RDBStorage=lambda *_, **__: 1),
    )
    monkeypatch.setattr("stepscope.tune.study.AGAIN_S", 0.0)
    assert opened_study(optuna, "sqlite:///trials.db", "one", None) == "the study"
    assert made == ["one"] * 3
    problems[:] = [ValueError("no such driver\nand much more")]
    with pytest.raises(InputError, match=r"cannot .*: ValueError: no such driver$"):
        opened_study(optuna, "sqlite:///trials.db", "one", None)


def test_a_storage_that_is_lost_in_the_midst_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    def lost(*_: Any) -> None:
        raise optuna.exceptions.StorageInternalError("the disk is gone\nand much more")

    monkeypatch.setattr(Study, "ask", lost)
    storage = str(tmp_path / "trials.journal")
    search = Search(
        space("num_workers=0..2"), Clocked(loader_clock), TunePolicy(num_trials=2, storage=storage)
    )
    with pytest.raises(InputError, match=r"trials\.journal cannot .*: the disk is gone\. "):
        search.run()


def test_trials_are_counted_over_all_processes(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "num_workers=0..7")
    assert pair.first.ask(1) is not None
    assert pair.second.ask(1) is None
    assert pair.second.ask(2) is not None


def test_a_trial_that_has_no_setting_yet_is_waited_for_no_longer_than_its_process_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path, "num_workers=0..7")
    pair.first._study.ask()
    waits = []

    def sleep(_seconds: float) -> None:
        waits.append(1)
        pair.clock.now_s += GONE_S / 3

    monkeypatch.setattr("stepscope.tune.study.time.sleep", sleep)
    assert pair.second.ask() is not None
    assert len(waits) == 4


def test_a_second_look_is_taken_once(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "num_workers=0..7")
    asked = pair.first.ask()
    assert asked is not None
    pair.first.tell(asked, measured(asked.settings))
    assert pair.second.num_looks(asked.settings) == 1
    for study in (pair.first, pair.second):
        study.suggest(asked.settings, AGAIN)
    assert pair.second.num_looks(asked.settings) > 1
    looks = [study.ask() for study in (pair.first, pair.second)]
    assert [look.origin for look in looks if look is not None] == [AGAIN, SEARCH]


def test_what_a_process_measured_that_was_taken_for_gone_is_kept(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "num_workers=0,1")
    asked = pair.first.ask()
    assert asked is not None
    assert pair.second.close_lost() == []
    pair.clock.now_s += GONE_S + 1
    (lost,) = pair.second.close_lost()
    assert (lost.settings, lost.host, lost.is_in_line) == (asked.settings, "a", True)
    assert pair.second.close_lost() == []
    assert pair.first.watch(asked, 1e6)(1e7, 8), "nothing is said of a trial that was closed"
    pair.first.tell(asked, measured(asked.settings, 5e6))
    assert [(tried.settings, tried.ns) for tried in pair.second.trials()] == [(asked.settings, 5e6)]


def test_a_trial_that_version_0_2_0_stored_is_read() -> None:
    stored = {"number": 1, "settings": {}, "state": MEASURED, "ns": 5e6, "num_steps": 9}
    (tried,) = (study_trials._tried(stored),)
    assert tried == Tried(number=1, settings={}, state=MEASURED, ms=5.0, num_steps=9)


def test_a_beat_keeps_a_claim(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "num_workers=0,1")
    pair.first.workers = Workers(True, "a", beat_s=0.001)
    eye = Study(space("num_workers=0,1"), name="one", storage=pair.storage, clock=Time())
    asked = pair.first.ask()
    assert asked is not None
    assert pair.second.close_lost() == []
    pair.clock.now_s += GONE_S + 1
    (before,) = eye.others()
    with pair.first.at_work(asked):
        while eye.others() == [before]:
            pass
    assert pair.second.close_lost() == [], "its mark has changed since it was last looked at"


def test_a_setting_with_which_two_processes_were_lost_is_left_alone(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "num_workers=0,1")
    lost = []
    for number in range(MAX_LOST):
        other = Study(
            space("num_workers=0,1"), name="one", storage=pair.storage, host=f"lost {number}"
        )
        asked = other.ask()
        assert asked is not None
        lost.append(asked.settings)
        pair.first.close_lost()
        pair.clock.now_s += GONE_S + 1
        assert [lost_trial.is_in_line for lost_trial in pair.first.close_lost()] == [
            number + 1 < MAX_LOST
        ]
    assert lost[0] == lost[1]
    asked = pair.first.ask()
    assert asked is not None
    assert asked.settings != lost[0]


@contextmanager
def at_the_end(study: Study, waits: list[str], give_up_after: int = 3) -> Iterator[Any]:
    def wait(host: str) -> None:
        waits.append(host)
        if len(waits) >= give_up_after:
            raise TimeoutError

    with study.final.turn(lambda best: best == {"num_workers": 2}, wait) as taken:
        yield taken


def test_one_proves_and_the_other_takes_it_over(tmp_path: Path) -> None:
    pair, waits = Pair(tmp_path, "num_workers=0..7"), list[str]()
    settled = Settled(
        best={"num_workers": 2},
        settings={"num_workers": 2},
        ns=1e6,
        verdict="proven",
        because="it is",
    )
    with at_the_end(pair.first, waits) as mine:
        assert mine is None
        with pytest.raises(TimeoutError), at_the_end(pair.second, waits):
            pass
        assert waits == ["a"] * 3
        pair.first.final.keep(settled)
        with at_the_end(pair.second, waits) as taken:
            assert (taken.settings, taken.verdict, taken.host) == (
                {"num_workers": 2},
                "proven",
                "a",
            )
    late = Study(space("num_workers=0..7"), name="one", storage=pair.storage, host="late")
    with at_the_end(late, waits) as taken:
        assert taken is None, "a proof from before it began is not about its trials"


def test_a_proof_that_was_broken_off_is_left_to_the_next(tmp_path: Path) -> None:
    pair, waits = Pair(tmp_path, "num_workers=0..7"), list[str]()
    with at_the_end(pair.first, waits):
        pass
    with at_the_end(pair.second, waits) as taken:
        assert taken is None
    # One whose process is gone does not come out of the line by itself.
    hung = Study(space("num_workers=0..7"), name="one", storage=pair.storage, host="hung")
    hung.final._enter()

    def wait(_host: str) -> None:
        pair.clock.now_s += GONE_S / 2

    with pair.second.final.turn(lambda _best: True, wait) as taken:
        assert taken is None
    assert GONE_S < pair.clock.now_s <= 2 * GONE_S


def test_a_process_beside_this_one_is_told(tmp_path: Path) -> None:
    other = Study(
        space("num_workers=0..2"),
        name="stepscope-tune",
        storage=str(tmp_path / "trials.journal"),
        host="here",
    )
    assert other.ask() is not None
    time = Time()

    def rest(seconds: float) -> None:
        time.now_s += seconds

    policy = TunePolicy(num_trials=2, storage=str(tmp_path / "trials.journal"), seed=1)
    search = Search(
        space("num_workers=0..2"), Clocked(loader_clock), policy, clock=time, rest=rest, host="here"
    )
    search.run()
    assert any(mentions(note, "another process", "here too") for note in search.notes)
    assert proven(search).winner is not None
