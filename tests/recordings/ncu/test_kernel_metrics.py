"""What kernels weigh, and that two tools' names for one kernel meet."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from stepscope.recordings.ncu import (
    barrier_stalls,
    low_l2_hits,
    low_occupancy,
    memory_stalls,
    register_pressure,
    tail_wave,
    uncoalesced_access,
)
from stepscope.recordings.ncu.kernel_metrics import plain_name
from stepscope.recordings.ncu.memory_stalls import advise
from tests.rules.kernels import beside, kernel, recorded
from tests.shared_data import SAMPLES
from tests.wording import mentions

RULES = (
    barrier_stalls,
    low_l2_hits,
    low_occupancy,
    memory_stalls,
    register_pressure,
    tail_wave,
    uncoalesced_access,
)
SLOW = {"long_scoreboard": 0.6, "selected": 0.4}
TRACED = SAMPLES / "formats" / "kernel_names.json"
"""Kernels of a trace of the model whose kernels ncu recorded."""


def test_weight_is_of_the_step_where_a_trace_tells_it() -> None:
    kernels = (
        kernel("void at::f<float, 2, 0>(T1 *)", stalls=SLOW),
        kernel("void at::f<float, 2, 0>(T1 *)", duration_ns=3000.0),
        kernel("other", stalls=SLOW),
    )
    traced = "void at::native::f<float, 2ul, false>(float*)"
    (advice,) = advise(beside(*kernels, shares={traced: 0.4, "gemm": 0.5}))
    assert advice.weight == pytest.approx(0.4 * 1000 / 4000), (
        "of its launches, those with the fault; `other` is not in the step"
    )
    assert advice.weight_of == "the step"
    assert advice.kernels == (traced, "other")
    (elsewhere,) = advise(beside(*kernels, shares={"gemm": 0.5}))
    assert mentions(elsewhere.weight_of, "kernels", "measured"), (
        "a trace with none of them says nothing of them"
    )
    (alone,) = advise(beside(*kernels))
    assert alone.weight == pytest.approx(2000 / 5000)
    assert mentions(alone.weight_of, "kernels", "measured")


def test_next_to_nothing_is_not_told_and_unknown_times_have_no_weight() -> None:
    small = kernel(stalls=SLOW, duration_ns=1.0)
    assert advise(beside(small, kernel("big"))) == ()
    (advice,) = advise(beside(replace(small, duration_ns=None)))
    assert (advice.weight, advice.weight_of) == (None, "")


def test_many_kernels_are_cut_and_the_cut_is_said() -> None:
    (advice,) = advise(beside(*(kernel(f"k{i}", stalls=SLOW) for i in range(40))))
    assert len(advice.evidence) == 11
    assert advice.evidence[-1] == "and 30 more kernels"
    assert "40 kernels" in advice.summary


def test_names_that_differ_stay_apart() -> None:
    pairs = [
        ("f<1>()", "f<2>()"),
        ("f<true>()", "f<false>()"),
        ("f<g(int)::{lambda()#1}>", "f<g(int)::{lambda()#2}>"),
        ("a::f", "b::f"),
    ]
    for one, other in pairs:
        assert plain_name(one) != plain_name(other)
    assert plain_name("f<(" * 3000) == plain_name("f<(" * 3000)


def test_every_recorded_kernel_is_found_in_a_trace_of_the_same_model() -> None:
    traced = set(json.loads(TRACED.read_text()))
    by_name = {plain_name(name): name for name in traced}
    assert len(by_name) == len(traced) == 43, "no two of a trace become one"
    report = recorded().kernels
    assert report is not None
    assert all(plain_name(one.name) in by_name for one in report.kernels)
    assert sum(one.name in traced for one in report.kernels) < len(report.kernels), (
        "spelled alike they would prove nothing"
    )


def test_matrix_products_of_a_recorded_step_get_no_advice() -> None:
    report = recorded().kernels
    assert report is not None
    products = tuple(one for one in report.kernels if one.name.startswith("nvjet"))
    assert len(products) == 4
    for product in products:
        assert [advice for rule in RULES for advice in rule.advise(beside(product))] == []
