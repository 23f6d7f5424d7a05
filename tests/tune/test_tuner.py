"""The search on made-up clocks: what it finds, what it leaves alone, and what it says of what went
wrong."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from stepscope.core.experiments.trials import Change, Setup, Trial
from stepscope.errors import InputError, UsageError
from stepscope.tune.batch import check_batch
from stepscope.tune.cache import TuningCache
from stepscope.tune.policy import OnSteps, TunePolicy
from stepscope.tune.shapes.tuning import (
    CACHE,
    DIAGNOSIS,
    FAILED,
    MEASURED,
    NOT_PROVEN,
    NOTHING_FASTER,
    OUT_OF_MEMORY,
    PROVEN,
    PRUNED,
    UNEQUAL,
)
from stepscope.tune.start import from_cache, from_findings, keep, key_of
from stepscope.tune.tuner import Search
from tests.clocked_searches import Clock, Clocked, loader_clock, proven, searched, space, trial
from tests.installed import need
from tests.wording import mentions

need("optuna")


def test_the_best_setting_is_found_named_and_proven() -> None:
    measure = Clocked(loader_clock)
    search = searched(space("num_workers=0..8", "num_threads=1..4"), measure)
    result = proven(search)
    assert measure.changes[0].is_none
    assert result.verdict == PROVEN
    assert result.winner is not None
    assert result.winner.settings == {"num_workers": 5, "num_threads": 2}
    assert "num_workers=5 in DataLoader(...)" in result.winner.words
    assert result.verified is not None
    assert result.verified.speedup is not None
    assert result.verified.speedup.lowest < 45 / 20 < result.verified.speedup.highest


def test_importance_is_told_where_enough_was_measured() -> None:
    where = space("num_workers=0..8", "num_threads=1..4")
    result = proven(searched(where, Clocked(loader_clock), num_trials=8, prune=False), skip=True)
    assert result.importance is not None
    assert sum(result.importance.values()) == pytest.approx(1)
    assert result.importance["num_workers"] > 0
    assert (
        proven(searched(where, Clocked(loader_clock), num_trials=3), skip=True).importance is None
    )


def test_no_setting_is_measured_twice_but_for_a_second_look() -> None:
    search = searched(
        space("num_workers=0..2", "num_threads=1,2"),
        Clocked(lambda change: 10 + len(str(change))),
        num_trials=50,
    )
    assert search.study is not None
    settings = [str(tried.settings) for tried in search.study.trials() if tried.origin != "again"]
    assert len(settings) == len(set(settings)) == 6
    assert mentions(search.ended, "every setting")


def test_without_workers_prefetching_makes_no_difference() -> None:
    search = searched(
        space("num_workers=0,1", "prefetch_factor=1,2,4"),
        Clocked(lambda _change: 10.0),
        num_trials=50,
    )
    assert search.study is not None
    assert sum(tried.settings["num_workers"] == 0 for tried in search.study.trials()) == 1


def test_slow_trials_end_early_and_say_why() -> None:
    search = searched(
        space("num_workers=0..8"),
        Clocked(lambda change: 10 + 4 * int(change.knobs.get("num_workers", 0))),
        num_trials=5,
    )
    assert search.study is not None
    pruned = [tried for tried in search.study.trials() if tried.state == PRUNED]
    assert pruned
    assert all(tried.num_steps == 10 and mentions(tried.why, "the best") for tried in pruned)
    assert proven(search).verdict == NOTHING_FASTER


def test_memory_that_runs_out_is_a_boundary() -> None:
    tried: list[int] = []

    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        size = int(change.knobs.get("batch_size", 16))
        tried.append(size)
        if size >= 48:
            return trial(
                change, 1, is_out_of_memory=True, exit_code=1, step_ns=(), tail="CUDA out of memory"
            )
        return trial(
            change,
            10 + size / 10,
            on_steps,
            setup=Setup(batch_size=size, num_batches=1.0, world_size=1),
        )

    search = searched(
        space("batch_size=16..80:step=16"), measure, num_trials=20, free=frozenset({"batch"})
    )
    assert search.study is not None
    states = {int(made.settings["batch_size"]): made.state for made in search.study.trials()}
    assert OUT_OF_MEMORY in states.values()
    smallest = min(size for size, state in states.items() if state == OUT_OF_MEMORY)
    asked = tried[1:]
    after = asked[asked.index(smallest) + 1 :]
    assert all(size < smallest for size in after)
    assert search.ranked()[0][0] == {"batch_size": 32}
    assert search.judge.per == "sample"
    # 13.2 ms for 32 samples.
    assert search.ranked()[0][1] == pytest.approx(13.2e6 / 32, rel=0.02)


def test_a_crash_is_told_and_the_search_goes_on() -> None:
    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        if change.knobs.get("num_workers") == 3:
            return trial(
                change, 1, exit_code=1, step_ns=(), tail="Traceback\nValueError: three is odd"
            )
        return trial(change, loader_clock(change), on_steps)

    search = searched(space("num_workers=0..4"), measure)
    assert search.study is not None
    states = {tried.settings["num_workers"]: tried for tried in search.study.trials()}
    assert states[3].state == FAILED
    assert mentions(states[3].why, "exit code 1", "ValueError: three is odd")
    assert states[4].state == MEASURED


def test_three_crashes_with_nothing_measured_end_it() -> None:
    def measure(change: Change, _on_steps: OnSteps | None) -> Trial:
        return (
            trial(change, 10)
            if change.is_none
            else trial(change, 1, exit_code=2, step_ns=(), tail="no such option")
        )

    search = searched(space("num_workers=0..9"), measure)
    assert mentions(search.ended, "first 3 trials", "failed")
    assert "no such option" in search.ended
    assert mentions(proven(search).because, "no setting", "measured")


def test_a_baseline_that_cannot_be_measured_is_said_and_nothing_is_searched() -> None:
    with pytest.raises(InputError, match="exit code 7"):
        searched(
            space("num_workers=0..9"), lambda change, _on: trial(change, 1, exit_code=7, step_ns=())
        )


def test_the_diagnosis_goes_first() -> None:
    measure = Clocked(loader_clock)
    starts = from_findings(
        ["looped-optimizer", "unheard-of", "thread-oversubscription"], num_ranks=1
    )
    search = searched(
        space("fused_optimizer=on,off", "num_workers=0..3"),
        measure,
        num_trials=2,
        starts=tuple(starts),
    )
    assert measure.changes[1].knobs == {"fused_optimizer": True, "num_workers": 0}
    assert search.study is not None
    assert search.study.trials()[0].origin == DIAGNOSIS


def test_a_batch_size_needs_an_accumulation() -> None:
    knobs = space("batch_size=8,16").knobs
    with pytest.raises(UsageError, match="effective batch"):
        check_batch(knobs, ())
    check_batch(knobs, ("batch",))
    with pytest.raises(UsageError, match="alone"):
        check_batch(space("accumulation=1..4", ways=("accumulation=--accum={}",)).knobs, ())


def test_the_effective_batch_stays() -> None:
    seen: list[tuple[int, str]] = []

    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        size = int(change.knobs.get("batch_size", 32))
        times = int(change.arguments[0].removeprefix("--accum=")) if change.arguments else 2
        seen.append((size, str(times)))
        return trial(
            change,
            10 + 100 / size,
            on_steps,
            setup=Setup(batch_size=size, num_batches=float(times), world_size=2),
        )

    where = space(
        "batch_size=8,16,24,32,64,128", "accumulation=1..4", ways=("accumulation=--accum={}",)
    )
    search = searched(where, measure)
    assert {size * int(times) for size, times in seen} == {64}
    assert sorted({size for size, _ in seen}) == [16, 32, 64]
    assert search.ranked()[0][0] == {"batch_size": 64, "accumulation": 1}


def test_another_number_of_samples_is_not_comparable() -> None:
    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        size = 8 if change.is_none else int(change.arguments[0])
        return trial(
            change, 10, on_steps, setup=Setup(batch_size=size, num_batches=1.0, world_size=1)
        )

    search = searched(space("bs=8,16", ways=("bs={}",)), measure)
    assert search.study is not None
    assert {tried.settings["bs"]: tried.state for tried in search.study.trials()} == {
        8: MEASURED,
        16: UNEQUAL,
    }


def test_a_knob_that_never_takes_hold_is_told() -> None:
    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        return trial(
            change, 10, on_steps, taken={name: int(name == "num_workers") for name in change.knobs}
        )

    search = searched(space("num_workers=0..3", "static_graph=on,off"), measure, num_trials=20)
    assert any("static_graph never took hold" in note for note in search.notes)
    assert search.study is not None
    assert len(search.study.trials()) < 8


def test_a_knob_of_jobs_that_ran_out_of_memory_at_once_is_not_taken_for_dead() -> None:
    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        if change.knobs.get("prefetch_factor", 2) != 2:
            return trial(
                change,
                10,
                step_ns=(),
                exit_code=1,
                is_out_of_memory=True,
                taken=dict.fromkeys(change.knobs, 0),
            )
        return trial(change, 10, on_steps)

    search = searched(space("prefetch_factor=2..4"), measure, num_trials=3)
    assert search.study is not None
    assert [tried.state for tried in search.study.trials()].count(OUT_OF_MEMORY) == 2
    assert all(not tried.not_taken for tried in search.study.trials())
    assert not search.study.ineffective


def test_a_job_that_times_no_step_is_told_what_a_step_is() -> None:
    with pytest.raises(InputError, match=r"no step timed.*optimizer"):
        searched(space("num_workers=0..2"), lambda change, _: trial(change, 10, step_ns=()))


def test_what_was_measured_survives_an_interruption() -> None:
    measure = Clocked(loader_clock)

    def interrupted(change: Change, on_steps: OnSteps | None) -> Trial:
        if len(measure.changes) == 4:
            raise KeyboardInterrupt
        return measure(change, on_steps)

    search = searched(space("num_workers=0..8"), interrupted)
    result = proven(search)
    assert search.is_interrupted
    assert len(result.trials) == 3
    assert result.verdict == NOT_PROVEN
    assert "interrupted" in result.because


def test_a_lucky_trial_is_not_proven() -> None:
    def lucky(change: Change, on_steps: OnSteps | None) -> Trial:
        lucky.count += 1  # type: ignore[attr-defined]
        is_lucky = change.knobs.get("num_workers") == 2 and lucky.count < 9  # type: ignore[attr-defined]
        return trial(change, 8 if is_lucky else 10, on_steps, seed=lucky.count)  # type: ignore[attr-defined]

    lucky.count = 0  # type: ignore[attr-defined]
    result = proven(searched(space("num_workers=0..3"), lucky, num_trials=4))
    assert result.winner is not None
    assert result.winner.settings == {"num_workers": 2}
    assert result.verdict == NOT_PROVEN


def test_two_machines_share_the_trials(tmp_path: Path) -> None:
    where, storage = space("num_workers=0..7"), str(tmp_path / "trials.journal")
    hosts = []
    for host, num in (("a", 4), ("b", 8)):
        search = Search(
            where,
            Clocked(loader_clock),
            TunePolicy(num_trials=num, seed=num, storage=storage),
            host=host,
        )
        search.run()
        hosts.append(search)
    assert hosts[1].study is not None
    trials = hosts[1].study.trials()
    assert [tried.host for tried in trials] == ["a"] * 4 + ["b"] * 4
    looks = [tried.settings["num_workers"] for tried in trials if tried.origin != "again"]
    assert len(looks) == len(set(looks))


def test_a_setting_that_is_claimed_is_not_tried_elsewhere(tmp_path: Path) -> None:
    from stepscope.tune.study import Study

    where, storage = space("num_workers=0..2"), str(tmp_path / "trials.journal")
    studies = [Study(where, name="one", storage=storage, seed=0) for _ in range(2)]
    asked = [studies[i % 2].ask() for i in range(3)]
    assert sorted(trial.settings["num_workers"] for trial in asked if trial is not None) == [
        0,
        1,
        2,
    ]
    assert studies[0].ask() is None
    studies[1].give_up(next(trial for trial in asked if trial is not None))
    assert studies[0].ask() is not None


def test_the_last_setting_is_taken_without_asking_the_sampler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stepscope.tune.study import Study

    study = Study(space("num_workers=0,1"), name="one", seed=0)
    first = study.ask()
    monkeypatch.setattr(
        study._study.sampler, "infer_relative_search_space", lambda *_: pytest.fail("it was asked")
    )
    last = study.ask()
    assert first is not None
    assert last is not None
    assert {first.settings["num_workers"], last.settings["num_workers"]} == {0, 1}


def test_a_database_keeps_the_trials(tmp_path: Path) -> None:
    search = searched(
        space("num_workers=0,1"),
        Clocked(loader_clock),
        num_trials=1,
        storage=str(tmp_path / "trials.db"),
    )
    assert search.study is not None
    assert [tried.state for tried in search.study.trials()] == [MEASURED]
    assert (tmp_path / "trials.db").stat().st_size > 0


def test_a_storage_that_cannot_be_used_is_said_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(InputError) as problem:
        searched(
            space("num_workers=0..2"),
            Clocked(loader_clock),
            storage=f"sqlite:///{tmp_path}/not/there.db",
        )
    assert "cannot be used" in str(problem.value)
    from stepscope.tune.study import hidden

    assert hidden("mysql://me:secret@host/db") == "mysql://host/db"


def test_the_cache_is_a_place_to_start_and_never_an_answer(tmp_path: Path) -> None:
    where, cache = space("num_workers=3..6"), TuningCache(tmp_path / "tuned.jsonl")
    result = proven(searched(where, Clocked(loader_clock)))
    old = key_of("train.py", where.knobs, Setup(device="cpu", versions={"torch": "2.7"}))
    new = key_of("train.py", where.knobs, Setup(device="cpu", versions={"torch": "2.8"}))
    assert keep(cache, old, result, Setup())
    earlier = from_cache(cache, new)
    assert [start.origin for start in earlier.starts] == [CACHE]
    assert "torch 2.7, here 2.8" in earlier.notes[0]
    assert "not taken over" in earlier.notes[0]
    measure = Clocked(loader_clock)
    searched(where, measure, num_trials=2, starts=earlier.starts)
    assert measure.changes[0].is_none
    assert measure.changes[1].knobs == {"num_workers": 5}


def landscape(seed: int) -> Clock:
    """A job with a loader, a model that threads, an optimizer and so many cores: 64 settings, 4 %
    of them near the best."""
    draw = random.Random(seed)
    load, model, optimizer = draw.uniform(10, 60), draw.uniform(20, 60), draw.uniform(2, 12)
    gain, cores = draw.uniform(0.3, 0.9), draw.choice([2, 3, 4])

    def clock(change: Change) -> float:
        settings = {
            "num_workers": 0,
            "num_threads": 2,
            "prefetch_factor": 4,
            "fused_optimizer": False,
            **change.knobs,
        }
        workers, threads = int(settings["num_workers"]), int(settings["num_threads"])
        beyond = max(0.0, workers * load / (model + load) + threads - cores)
        step = model / (1 + (min(threads, cores) - 1) * gain) * (1 + 0.15 * beyond)
        step += optimizer * (0.4 if settings["fused_optimizer"] else 1)
        loading = (
            load / max(1, min(workers, cores)) * (1.06 if settings["prefetch_factor"] == 1 else 1)
        )
        return step + load if workers == 0 else max(loading, step) + 0.6 * workers

    return clock


def test_a_fifth_of_the_trials_comes_within_5_percent_of_exhaustive_search() -> None:
    where = space(
        "num_workers=0..3", "num_threads=1..4", "prefetch_factor=1,4", "fused_optimizer=off,on"
    )
    regrets, num = [], 10 if os.environ.get("STEPSCOPE_EVERY") else 3
    for seed in range(num):
        clock = landscape(seed)
        search = searched(where, Clocked(clock), num_trials=13)
        best = min(clock(where.change(cell)) for cell in where.cells())
        regrets.append(clock(where.change(search.ranked()[0][0])) / best - 1)
    assert sum(regret <= 0.05 for regret in regrets) >= 0.8 * num
    assert max(regrets) < 0.10
    assert sum(regrets) / len(regrets) < 0.02


def test_a_disk_that_fills_up_does_not_take_what_was_measured() -> None:
    measure = Clocked(loader_clock)

    def until_full(change: Change, on_steps: OnSteps | None) -> Trial:
        if len(measure.changes) == 6:
            raise UsageError("the trial could not be started: no space left on device")
        return measure(change, on_steps)

    search = searched(space("num_workers=0..8"), until_full)
    assert mentions(search.ended, "not go on", "no space left")
    tuning = proven(search)
    assert tuning.verdict == NOT_PROVEN
    assert mentions(tuning.because, "check and proof", "not go on", "no space left")
    assert len(tuning.trials) == 5
    assert tuning.winner is not None


def test_a_command_that_cannot_be_measured_says_where_its_output_is_and_why() -> None:
    def measure(change: Change, _on_steps: OnSteps | None) -> Trial:
        return Trial(
            folder="out/trial-000",
            change=change,
            exit_code=0,
            step_ns=(),
            wall_s=1.0,
            notes=("4 steps were seen",),
        )

    with pytest.raises(InputError, match=r"no step timed.*out/trial-000\b.*\b4 steps were seen\. "):
        searched(space("num_workers=0..8"), measure)


def test_a_setting_that_is_slower_than_the_command_is_not_called_the_best() -> None:
    said: list[str] = []
    measure = Clocked(lambda change: 20 + 10 * int(change.knobs.get("num_workers", 0)))
    Search(
        space("num_workers=1,2"),
        measure,
        TunePolicy(num_trials=2, seed=1, prune=False),
        said.append,
    ).run()
    assert sum(words.startswith("trial") for words in said) == 3
    assert not any("best so far" in words for words in said)
    alone = proven(searched(space("num_workers=1"), measure))
    assert [tried.state for tried in alone.trials] == [PRUNED]
    assert alone.verdict == NOTHING_FASTER, (
        "it was measured for as long as it took to see that it is slow"
    )
    assert mentions(alone.because, "one setting", "not more than 1 %")
