"""Knobs as they are given: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

from stepscope.errors import UsageError
from stepscope.tune.knob_space import Knob, Space, parse_knobs, parse_ways


def knob(text: str, *ways: str) -> Knob:
    return parse_knobs([text], parse_ways(ways))[0]


def test_ranges_and_lists_have_their_values() -> None:
    assert knob("num_workers=0..4").values == (0, 1, 2, 3, 4)
    assert knob("num_workers=1..8:step=3").values == (1, 4, 7)
    assert knob("batch_size=16,32,64").values == (16, 32, 64)
    assert knob("compile_mode=off,default").values == ("off", "default")
    assert knob("fused_optimizer=on/off").values == (True, False)
    log = knob("bucket_cap_mb=1..250:log")
    assert (log.values, log.low, log.high, log.is_log) == (None, 1.0, 250.0, True)
    assert knob("lr=1e-4..1e-2:log", "lr=--lr={}").low == 1e-4
    assert knob("k=1,2.5,x", "k=env:K").choices == (1, 2.5, "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_workers=0-16", "num_workers=0..16"),
        ("num_workers=0:16", "num_workers=0..16"),
        ("num_workers=0...16", "num_workers=0..16"),
        ("num_workers=[0,16]", "num_workers=0..16"),
        ("num_workers=16..0", "num_workers=0..16"),
        ("num_workers=1..8:lg", ":log"),
        ("num_workers=0..8:log", "num_workers=1..8:log"),
        ("num_workers=0..1000", "0 to 256"),
        ("num_workers=0.5..3", "whole number"),
        ("num_workers=1,,3", "missing"),
        ("num_workers=1,1", "twice"),
        ("num_workers", "num_workers=0..8"),
        ("num_worker=1..3", "num_workers"),
        ("lr=1..3", "--as lr="),
        ("compile_mode=deflt", "default"),
        ("compile_mode=1..3", "reduce-overhead"),
        ("pin_memory=maybe", "true, false"),
    ],
)
def test_what_cannot_be_read_gets_the_nearest_form(text: str, said: str) -> None:
    with pytest.raises(UsageError) as problem:
        knob(text)
    assert said in str(problem.value)


def test_a_knob_reaches_the_job_on_its_way() -> None:
    ways = parse_ways(
        ["lr=--lr {}", "OMP=env:OMP_NUM_THREADS", "ema=--ema", "alloc=env:CONF=split:{}"]
    )
    knobs = parse_knobs(
        ["lr=0.1,0.25", "OMP=1..4", "ema=on,off", "alloc=8,16", "num_workers=0..4"], ways
    )
    change = Space(knobs=knobs).change(
        {"lr": 0.25, "OMP": 3, "ema": True, "alloc": 16, "num_workers": 2}
    )
    assert change.arguments == ("--lr", "0.25", "--ema")
    assert change.environment == {"OMP_NUM_THREADS": "3", "CONF": "split:16"}
    assert change.knobs == {"num_workers": 2}
    assert Space(knobs=knobs).change({"ema": False}).arguments == ()


def test_a_value_cannot_add_words_to_the_command() -> None:
    knobs = parse_knobs(["name=a b;rm,c"], parse_ways(["name=--name={}"]))
    assert Space(knobs=knobs).change({"name": "a b;rm"}).arguments == ("--name=a b;rm",)


@pytest.mark.parametrize("text", ["lr", "lr=", "=x", "x=env:9", 'x=--a="'])
def test_a_way_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--as"):
        parse_ways([text])


def test_a_few_values_are_filled_up_and_brought_into_range() -> None:
    space = Space(
        knobs=parse_knobs(
            ["num_workers=0..4", "prefetch_factor=1,4", "compile_mode=default,off"], {}
        )
    )
    assert space.filled({"num_workers": 16}) == {
        "num_workers": 4,
        "prefetch_factor": 1,
        "compile_mode": "off",
    }
    assert space.filled({"pin_memory": True}) is None
    assert space.size == 20
    assert len(list(space.cells())) == 20
