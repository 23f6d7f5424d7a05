from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.cli.verify.options import ALLOWABLE
from stepscope.core.experiments.trials import Change, Setup, Trial
from stepscope.experiments.compare.comparability import (
    TERMS,
    causes,
    differences,
    loose_terms,
    partly_taken,
    refusal_words,
    untaken,
)
from tests.wording import mentions

NAMES = tuple(term.name for term in TERMS)
SETUP = Setup(
    world_size=2, batch_size=32, num_batches=1.0, seed=1, data="abc",
    ends_with="an optimizer's step", num_parameters=1000,
    model="GPT", dataset="Texts", device="cpu", versions={"torch": "2.13.0"},
)  # fmt: skip
OTHER: dict[str, tuple[str, Any]] = {
    "world-size": ("world_size", 4),
    "batch-size": ("batch_size", 64),
    "batches": ("num_batches", 2.0),
    "seed": ("seed", 2),
    "updates": ("ends_with", "a backward pass"),
    "data": ("data", "abd"),
    "parameters": ("num_parameters", 999),
    "model": ("model", "Bert"),
    "dataset": ("dataset", "Images"),
    "device": ("device", "cuda"),
    "versions": ("versions", {"torch": "2.4.0"}),
}


def test_every_term_can_be_allowed_and_is_tried_here() -> None:
    assert set(NAMES) == set(OTHER)
    assert set(ALLOWABLE) == {*NAMES, "numerics"}


@pytest.mark.parametrize("name", NAMES)
def test_a_difference_is_seen_named_and_may_be_allowed(name: str) -> None:
    field, value = OTHER[name]
    other = replace(SETUP, **{field: value})
    differing = differences([SETUP, SETUP], [other, other])
    assert [difference.what for difference in differing] == [name]
    assert not differing[0].is_allowed
    words = refusal_words(differing[0])
    assert f"--allow {name}" in words
    shown = value["torch"] if isinstance(value, dict) else str(value)
    assert shown in words
    assert all(
        difference.is_allowed for difference in differences([SETUP, SETUP], [other, other], [name])
    )


def test_equal_sides_differ_in_nothing_nor_does_what_was_not_measured() -> None:
    assert differences([SETUP, SETUP], [SETUP]) == ()
    assert differences([SETUP, SETUP], [Setup()]) == ()
    assert differences([SETUP], []) == ()


def test_an_unseeded_baseline_cannot_be_held_to_its_data() -> None:
    first, second, third = (
        replace(SETUP, data=data, seed=seed) for data, seed in (("a", 1), ("b", 2), ("c", 3))
    )
    assert differences([first, second], [third]) == ()
    assert differences([first], [third]) == (), "one run does not tell whether it repeats itself"
    seed, data = loose_terms([first, second])
    assert mentions(seed, "seed")
    assert mentions(data, "data")
    assert loose_terms([SETUP, SETUP]) == ()


def test_another_batch_size_brings_other_batches() -> None:
    other = replace(SETUP, batch_size=64, data="xyz")
    assert all(
        difference.is_allowed for difference in differences([SETUP, SETUP], [other], ["batch-size"])
    )
    refused = [
        difference.what
        for difference in differences([SETUP, SETUP], [other], ["data"])
        if not difference.is_allowed
    ]
    assert refused == ["batch-size"]


def test_what_follows_from_another_difference_is_not_told_beside_it() -> None:
    seeded = differences([SETUP, SETUP], [replace(SETUP, seed=2, data="xyz", model="Bert")])
    assert [difference.what for difference in seeded] == ["model", "seed", "data"]
    assert [difference.what for difference in causes(seeded)] == ["model", "seed"]
    data = differences([SETUP, SETUP], [replace(SETUP, data="xyz")])
    assert causes(data) == data


def trial(
    taken: dict[str, int], notes: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> Trial:
    change = Change(knobs=dict.fromkeys(taken, 2), environment=environment or {})
    return Trial(
        folder="f", change=change, exit_code=0, step_ns=(1,), wall_s=1.0, taken=taken, notes=notes
    )


def test_a_knob_that_never_took_hold_is_told_with_its_reason() -> None:
    (why,) = untaken(trial({"num_workers": 0}))
    assert mentions(why, "num_workers", "no DataLoader")
    assert untaken(trial({"num_workers": 0}, ("num_workers: the loader is iterable",)))[0].endswith(
        "the loader is iterable"
    )
    assert untaken(trial({"num_workers": 1})) == ()
    assert untaken(trial({})) == ()


def test_of_several_knobs_one_that_took_hold_is_enough_and_the_others_are_noted() -> None:
    half = trial({"num_workers": 1, "persistent_workers": 0})
    assert untaken(half) == ()
    (why,) = partly_taken(half)
    assert mentions(why, "persistent_workers", "no DataLoader")
    assert partly_taken(trial({"num_workers": 0})) == (), "that is refused"
