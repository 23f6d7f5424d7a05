"""The winner before it is named: that it computes what the baseline does, and that the proof may
compare the two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.experiments.experiment import NumericsCheck
from stepscope.core.experiments.trials import Change, NumericRow, Setup, Trial
from stepscope.experiments.verify.numerics_check import NOISE
from stepscope.tune.cache import TuningCache
from stepscope.tune.knob_space import Space
from stepscope.tune.policy import OnSteps
from stepscope.tune.shapes.tuning import NOT_PROVEN, PROVEN, REFUSED, Tuning
from stepscope.tune.start import keep, key_of
from tests.clocked_searches import Clocked, proven, searched, space, trial
from tests.installed import need
from tests.wording import mentions

need("optuna")


def numerics_of(differs: Callable[[Change], bool]) -> Any:
    def numerics(change: Change) -> Trial:
        rows = tuple(
            NumericRow(
                step=i,
                loss=1 / i + differs(change),
                grad_norm=1.0,
                parameters=None,
                parameter_norm=None,
            )
            for i in range(1, 9)
        )
        return trial(change, 10, numerics=rows)

    return numerics


def test_a_setting_that_computes_something_else_is_passed_over() -> None:
    def clock(change: Change) -> float:
        return (
            10 - 4 * (change.knobs.get("amp") == "bf16") - int(change.knobs.get("num_workers", 0))
        )

    where = space("amp=off,bf16", "num_workers=0,1,2")
    numerics = numerics_of(lambda change: change.knobs.get("amp") == "bf16")
    tuning = proven(searched(where, Clocked(clock)), numerics)
    assert tuning.verdict == REFUSED
    assert isinstance(tuning.check, NumericsCheck)
    assert "--free numerics" in tuning.because
    free = proven(searched(where, Clocked(clock), free=frozenset({"numerics"})), numerics)
    assert free.verdict == PROVEN
    assert free.winner is not None
    assert free.winner.settings["amp"] == "bf16"


def amp_clock(change: Change) -> float:
    return 20 - 8 * (change.knobs.get("amp") == "bf16") - int(change.knobs.get("num_workers", 0))


def seen_by(rows: Any, **more: Any) -> Any:
    """Numerics that list the changes they were asked for; `more` is made from the change."""
    asked: list[Change] = []

    def numerics(change: Change) -> Trial:
        asked.append(change)
        values = {name: make(change) for name, make in more.items()}
        return trial(change, 10, **{"numerics": rows(change).numerics, **values})

    return numerics, asked


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (
            {"exit_code": 1, "tail": "Traceback\nRuntimeError: no kernel"},
            "exit code 1: RuntimeError: no kernel",
        ),
        ({"exit_code": 143, "is_timed_out": True}, "not end in time"),
        ({"exit_code": 1, "is_out_of_memory": True}, "out of memory"),
        ({"exit_code": 137, "is_out_of_memory": True, "is_killed": True}, "was killed (SIGKILL)"),
        ({"step_ns": ()}, "timed no step"),
    ],
)
def test_a_setting_that_fails_while_it_is_checked_is_passed_over(
    failure: dict[str, Any], said: str
) -> None:
    same = numerics_of(lambda _change: False)

    def numerics(change: Change) -> Trial:
        return trial(change, 10, **failure) if change.knobs.get("amp") == "bf16" else same(change)

    where = space("amp=off,bf16", "num_workers=0,1")
    tuning = proven(searched(where, Clocked(amp_clock), prune=False), numerics)
    assert tuning.verdict == PROVEN
    assert tuning.winner is not None
    assert tuning.winner.settings == {"amp": "off", "num_workers": 1}
    passed = [note for note in tuning.notes if "was passed over" in note]
    assert len(passed) == 2
    assert all("amp=bf16" in note and said in note for note in passed)
    # What need not be equal must run all the same.
    alone = proven(
        searched(space("amp=off,bf16"), Clocked(amp_clock), free=frozenset({"numerics"})), numerics
    )
    assert alone.verdict == NOT_PROVEN
    assert said in alone.because
    assert alone.verified is None


def test_a_baseline_that_fails_while_it_is_checked_proves_nothing() -> None:
    same, count = numerics_of(lambda _change: False), [0]

    def numerics(change: Change) -> Trial:
        count[0] += 1
        return (
            trial(change, 10, exit_code=1, step_ns=(), tail="disk full")
            if count[0] == 2
            else same(change)
        )

    tuning = proven(searched(space("num_workers=0,1,2"), Clocked(amp_clock)), numerics)
    assert tuning.verdict == NOT_PROVEN
    assert mentions(tuning.because, "baseline", "exit code 1: disk full")
    assert tuning.verified is None
    assert count == [2]
    count[0] = 0
    free = proven(
        searched(space("num_workers=0,1,2"), Clocked(amp_clock), free=frozenset({"numerics"})),
        numerics,
    )
    assert free.verdict == PROVEN
    assert any("disk full" in note for note in free.notes)


def checked(tmp_path: Path, tuning: Tuning, setup: Setup | None = None) -> bool:
    cache = TuningCache(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl")
    assert keep(cache, key_of("train.py", (), Setup()), tuning, setup or Setup())
    return cache.entries()[0].checked


def test_what_was_not_shown_to_be_the_same_is_kept_as_unchecked(tmp_path: Path) -> None:
    def tuning_with(numerics: Any) -> Tuning:
        return proven(searched(space("num_workers=0,1,2"), Clocked(amp_clock)), numerics)

    same = tuning_with(numerics_of(lambda _change: False))
    assert checked(tmp_path, same)
    unknown = tuning_with(lambda change: trial(change, 10))
    assert unknown.verdict == PROVEN
    assert any(mentions(note, "not be compared") for note in unknown.notes)
    assert not checked(tmp_path, unknown)
    losses = iter((1.0, 1.005, 1.004))

    def restless(change: Change) -> Trial:
        rows = [
            NumericRow(step=step, loss=loss, grad_norm=None, parameters=None, parameter_norm=None)
            for step, loss in enumerate((2.0, next(losses)), 1)
        ]
        return trial(change, 10, numerics=tuple(rows))

    noise = tuning_with(restless)
    assert noise.check is not None
    assert noise.check.verdict == NOISE
    assert not checked(tmp_path, noise)


def test_the_other_knobs_of_a_new_batch_are_checked_at_the_old_one(tmp_path: Path) -> None:
    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        size = int(change.knobs.get("batch_size", 8))
        ms = 10 + size / 4 - 4 * (change.knobs.get("amp") == "bf16")
        return trial(
            change, ms, on_steps, setup=Setup(batch_size=size, num_batches=1.0, world_size=1)
        )

    def tuned(where: Space, numerics: Any) -> Tuning:
        return proven(searched(where, measure, free=frozenset({"batch"})), numerics)

    both = space("batch_size=8,32", "amp=off,bf16")
    other, asked = seen_by(numerics_of(lambda change: change.knobs.get("amp") == "bf16"))
    tuning = tuned(both, other)
    assert all("batch_size" not in change.knobs for change in asked[2:3])
    assert asked[2].knobs == {"amp": "bf16"}
    assert tuning.winner is not None
    assert tuning.winner.settings == {"batch_size": 32, "amp": "off"}
    assert any(
        "batch_size=32 amp=bf16 was passed over" in note and "the loss differs" in note
        for note in tuning.notes
    )
    assert not checked(tmp_path, tuning, Setup(batch_size=8, num_batches=1.0, world_size=1))
    same, asked = seen_by(numerics_of(lambda _change: False))
    tuning = tuned(both, same)
    assert tuning.winner is not None
    assert tuning.winner.settings == {"batch_size": 32, "amp": "bf16"}
    assert tuning.check is not None
    assert tuning.check.because.startswith("amp=bf16 by itself")
    assert [change.knobs for change in asked] == [{}, {}, {"amp": "bf16"}]
    assert not checked(tmp_path, tuning, Setup(batch_size=8, num_batches=1.0, world_size=1))
    nothing, asked = seen_by(numerics_of(lambda _change: True))
    alone = tuned(space("batch_size=8,32"), nothing)
    assert alone.verdict == PROVEN
    assert asked == []
    assert any("cannot be compared" in note for note in alone.notes)


def random_data(change: Change) -> Setup:
    """A dataset that draws random numbers: each number of workers has others."""
    return Setup(
        data=f"batches of {change.knobs.get('num_workers', 0)} workers, seed {change.arguments}"
    )


def test_workers_that_draw_other_numbers_are_no_other_computation(tmp_path: Path) -> None:
    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        return trial(change, amp_clock(change), on_steps, setup=random_data(change))

    numerics, asked = seen_by(
        numerics_of(lambda change: bool(change.knobs.get("num_workers"))), setup=random_data
    )
    tuning = proven(searched(space("num_workers=0,1,2"), measure), numerics)
    assert tuning.verdict == PROVEN
    assert any(mentions(note, "other random numbers") for note in tuning.notes)
    assert not checked(tmp_path, tuning)
    # Auxiliary another knob, that one is held to what the baseline computes.
    numerics, asked = seen_by(numerics_of(lambda change: not change.is_none), setup=random_data)
    refused = proven(searched(space("num_workers=2", "amp=bf16"), measure), numerics)
    assert refused.verdict == REFUSED
    assert asked[-1].knobs == {"amp": "bf16"}


def test_a_proof_that_is_refused_names_the_options_of_tune() -> None:
    def measure(change: Change, on_steps: OnSteps | None) -> Trial:
        return trial(change, 6 if change.arguments else 10, on_steps, setup=random_data(change))

    where = space("seed=1", ways=("seed=--seed={}",))
    tuning = proven(searched(where, measure), numerics_of(lambda _change: False))
    assert tuning.verdict == NOT_PROVEN
    assert mentions(tuning.because, "data", "differs")
    assert "--free numerics" in tuning.because
    assert "--allow" not in tuning.because
    assert tuning.verified is not None
    assert not any("--allow" in words for words in tuning.verified.refusals)
    free = proven(
        searched(where, measure, free=frozenset({"numerics"})), numerics_of(lambda _change: False)
    )
    assert free.verdict == PROVEN
