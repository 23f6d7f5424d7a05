"""Scaling: what the FLOPs say of the work, what is lost, and parts that add up to it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from stepscope.analyses.run.width import mean_parts, median_interval, run_step, width_run
from stepscope.core.facts import PARTS, Facts, RangeRow
from stepscope.core.scaling import SCALING_PARTS, RunStep, WidthRun
from stepscope.scaling.scale import fit_amdahl, infer_kind, karp_flatt, scale
from tests.scenarios import MS, rank_facts
from tests.wording import any_mentions

PARTS_MS = st.dictionaries(st.sampled_from(PARTS), st.floats(0, 500, allow_nan=False), min_size=1)
SIZES = st.integers(0, 10**12)
RESIDUALS = st.integers(-(10**9), 10**9)


def run_of(width: int, step_ns: int | None, **changes: Any) -> WidthRun:
    """A run all of whose step is compute."""
    parts = None if step_ns is None else dict.fromkeys(SCALING_PARTS, 0) | {"compute": step_ns}
    run = WidthRun(
        path=f"w{width}",
        width=width,
        width_source="recorded",
        num_ranks=width,
        step=RunStep(count=3, ns=step_ns, profiled_ns=step_ns, source="trace"),
        parts_ns=parts,
        flops=1e12,
        gradient_bytes=None,
        device_name="H100",
        op_shares={},
    )
    return replace(run, **changes)


def split_run(width: int, parts: Mapping[str, int], *, waits_told: bool) -> WidthRun:
    """A run of these parts; without `waits_told` its waits are within its transfers."""
    whole: dict[str, int | None] = dict(parts)
    if not waits_told:
        whole |= {
            "comms_wait": None,
            "comms_transfer": parts["comms_wait"] + parts["comms_transfer"],
        }
    total = sum(parts.values())
    return run_of(width, total, parts_ns=whole)


@st.composite
def runs(draw: st.DrawFn) -> tuple[WidthRun, WidthRun]:
    one = draw(st.integers(1, 4096))
    other = draw(st.integers(one + 1, 8192))
    found = []
    for width in (one, other):
        parts = {part: draw(SIZES if part in PARTS else RESIDUALS) for part in SCALING_PARTS}
        parts["compute"] += 3 * 10**9
        found.append(split_run(width, parts, waits_told=draw(st.booleans())))
    return found[0], found[1]


@given(runs(), st.sampled_from(["weak", "strong"]))
def test_the_parts_of_a_loss_sum_to_it_exactly(pair: tuple[WidthRun, WidthRun], kind: str) -> None:
    base, run = pair
    found = scale([run, base], kind)
    found.self_check()
    gain = found.gains[1]
    assert gain is not None
    loss = gain.loss
    assert loss is not None
    assert loss.parts_ns is not None
    assert (
        sum(ns or 0 for ns in loss.parts_ns.values())
        == loss.lost_ns
        == (run.step.ns or 0) - loss.ideal_ns
    )
    grown = 1.0 if kind == "weak" else run.width / base.width
    assert loss.ideal_ns == pytest.approx((base.step.ns or 0) / grown, abs=1)
    # The ideal is told in whole nanoseconds, which of a step over thousands of ranks are not few.
    assert gain.efficiency * (run.step.ns or 1) == pytest.approx(loss.ideal_ns, rel=1e-6, abs=1)
    assert (loss.parts_ns["comms_wait"] is None) == any(
        r.parts_ns and r.parts_ns["comms_wait"] is None for r in pair
    )


@given(runs(), st.sampled_from(["weak", "strong"]))
def test_no_part_of_a_loss_is_off_by_more_than_rounding(
    pair: tuple[WidthRun, WidthRun], kind: str
) -> None:
    base, run = pair
    gain = scale(pair, kind).gains[1]
    assert gain is not None
    assert gain.loss is not None
    assert gain.loss.parts_ns is not None
    assert base.parts_ns is not None
    assert run.parts_ns is not None
    grown = 1.0 if kind == "weak" else run.width / base.width
    for part in set(SCALING_PARTS) - {"comms_wait", "comms_transfer"}:
        exact = (run.parts_ns[part] or 0) - (base.parts_ns[part] or 0) / grown
        assert gain.loss.parts_ns[part] == pytest.approx(exact, abs=1.01, rel=1e-9)


@given(
    st.lists(PARTS_MS, min_size=1, max_size=5),
    st.none() | st.integers(1, 10**10),
    st.integers(1, 4),
)
def test_the_parts_of_a_run_sum_to_its_step(
    ranks: list[dict[str, float]], given_ns: int | None, num_windows: int
) -> None:
    measured = tuple(
        rank_facts(parts, rank=at, num_windows=num_windows) for at, parts in enumerate(ranks)
    )
    run = width_run("run", Facts(ranks=measured, given_step_ns=given_ns), None)
    assert run.parts_ns is not None
    run.self_check()


def test_a_runs_parts_are_the_mean_over_its_ranks() -> None:
    ranks = [
        rank_facts({"compute": 10, "comms_wait": 4}),
        rank_facts({"compute": 14, "comms_wait": 0}, rank=1),
    ]
    facts = Facts(ranks=tuple(ranks), given_step_ns=12 * MS)
    parts = mean_parts(ranks, run_step(facts))
    assert parts is not None
    assert (parts["compute"], parts["comms_wait"]) == (12 * MS, 2 * MS)
    assert (parts["rank_spread"], parts["unprofiled"]) == (0, -2 * MS)


def test_one_rank_whose_waits_are_not_told_makes_them_unknown_for_the_run() -> None:
    ranks = [
        rank_facts({"compute": 10, "comms_wait": 4}),
        rank_facts({"compute": 10, "comms_transfer": 4}, rank=1),
    ]
    parts = mean_parts(ranks, run_step(Facts(ranks=tuple(ranks))))
    assert parts is not None
    assert parts["comms_wait"] is None
    assert parts["comms_transfer"] == 4 * MS


@pytest.mark.parametrize(
    ("flops", "kind", "source"),
    [
        ((8.0, 8.0, 8.1), "weak", "measured"),
        ((8.0, 4.0, 2.05), "strong", "measured"),
        ((8.0, 8.0, 2.0), None, "mixed"),
        ((8.0, 6.0, 5.0), None, "mixed"),
        ((8.0, None, 2.0), None, "not measured"),
    ],
)
def test_the_flops_of_a_rank_tell_the_kind(
    flops: tuple[float | None, ...], kind: str | None, source: str
) -> None:
    series = [run_of(width, 10, flops=value) for width, value in zip((1, 2, 4), flops, strict=True)]
    found, told, because = infer_kind(series)
    assert (found, told) == (kind, source)
    assert "width 2" in because


def test_widths_too_close_are_not_told_apart() -> None:
    kind, source, because = infer_kind([run_of(63, 10), run_of(64, 10)])
    assert (kind, source) == (None, "mixed")
    assert "too close" in because


def test_without_a_kind_there_are_step_times_alone_and_an_option_overrides() -> None:
    series = [run_of(1, 80, flops=None), run_of(2, 50, flops=None)]
    assert scale(series).gains == (None, None)
    asked = scale(series, "strong")
    assert asked.kind_source == "given"
    assert asked.gains[1] is not None
    assert asked.gains[1].speedup == pytest.approx(1.6)


def test_an_override_against_the_evidence_is_said() -> None:
    notes = scale([run_of(1, 80), run_of(2, 80)], "strong").notes
    assert any_mentions(notes, "measured", "weak")
    assert not any(
        "measured, it is" in note for note in scale([run_of(1, 80), run_of(2, 80)], "weak").notes
    )


def test_a_run_without_a_step_is_compared_with_nothing() -> None:
    found = scale([run_of(1, 80), run_of(2, None), run_of(4, 80)])
    assert found.gains[1] is None
    assert found.gains[2] is not None
    assert any_mentions(found.notes, "no step", "width 2")


def test_better_than_ideal_has_no_worst_part() -> None:
    gain = scale([run_of(1, 80), run_of(2, 70)]).gains[1]
    assert gain is not None
    assert gain.efficiency > 1
    assert gain.loss is not None
    assert gain.loss.lost_ns == -10
    assert gain.loss.worst is None


@given(st.floats(0, 0.9), st.integers(1, 8))
def test_amdahls_serial_share_is_found_again_whatever_the_base(serial: float, base: int) -> None:
    widths = [base, 2 * base, 4 * base, 8 * base]
    series = [run_of(n, round(1e12 * (serial + (1 - serial) / n)), flops=1e12 / n) for n in widths]
    fit = fit_amdahl(series)
    assert fit is not None
    assert fit.serial_fraction == pytest.approx(serial, abs=1e-6)
    assert fit.worst < 1e-6


@given(st.floats(0, 1), st.integers(2, 64))
def test_karp_and_flatt_invert_amdahl(serial: float, grown: int) -> None:
    assert karp_flatt(1 / (serial + (1 - serial) / grown), grown) == pytest.approx(serial, abs=1e-9)


def test_amdahl_needs_three_widths_and_a_step_that_shrinks() -> None:
    assert fit_amdahl([run_of(1, 80), run_of(2, 50)]) is None
    assert fit_amdahl([run_of(1, 80), run_of(2, None), run_of(4, 50)]) is None
    growing = scale([run_of(1, 80), run_of(2, 90), run_of(4, 95)], "strong")
    assert growing.amdahl is None
    assert any("does not shrink" in note for note in growing.notes)
    superlinear = fit_amdahl([run_of(1, 80), run_of(2, 38), run_of(4, 18)])
    assert superlinear is not None
    assert superlinear.serial_fraction == 0


def test_weak_scaling_has_no_serial_share() -> None:
    found = scale([run_of(1, 80), run_of(2, 90), run_of(4, 95)])
    assert found.amdahl is None
    assert [gain.karp_flatt for gain in found.gains if gain is not None] == [None, None]


def steps_of(*step_intervals: int) -> Any:
    steps = rank_facts({"compute": 1}).steps
    edges = [sum(step_intervals[:i]) for i in range(len(step_intervals) + 1)]
    return structs.replace(steps, windows=tuple(pairwise(edges)))


def test_the_medians_interval_needs_seven_steps() -> None:
    assert median_interval(steps_of(*range(10, 16))) == (None, None)
    assert median_interval(steps_of(*range(10, 17))) == (10, 16)
    # Of 20 the fifth and the sixteenth: the sixth and fifteenth would miss the median in 4 % of all
    # cases.
    assert median_interval(steps_of(*range(1, 21))) == (5, 16)
    assert median_interval(structs.replace(steps_of(*range(10, 17)), is_step_interval=False)) == (
        None,
        None,
    )


def test_an_efficiency_has_an_interval_where_both_steps_have() -> None:
    def timed(width: int, ns: int, low: int | None, high: int | None) -> WidthRun:
        step = RunStep(count=9, ns=ns, profiled_ns=ns, source="trace", low_ns=low, high_ns=high)
        return run_of(width, ns, step=step)

    gain = scale([timed(1, 100, 90, 110), timed(2, 125, 120, 150)]).gains[1]
    assert gain is not None
    assert gain.efficiency == pytest.approx(0.8)
    assert gain.efficiency_low == pytest.approx(90 / 150)
    assert gain.efficiency_high == pytest.approx(110 / 120)
    lacking = scale([timed(1, 100, 90, 110), timed(2, 125, None, None)]).gains[1]
    assert lacking is not None
    assert lacking.efficiency_low is None


def test_what_was_recorded_without_a_step_is_no_step() -> None:
    rank = rank_facts({"compute": 100})
    steps = structs.replace(rank.steps, source="whole trace", is_step_interval=False)
    facts = Facts(ranks=(structs.replace(rank, steps=steps),))
    assert run_step(facts).ns is None
    assert mean_parts(facts.ranks, run_step(facts)) is None
    assert run_step(structs.replace(facts, given_step_ns=50)).ns == 50


def test_a_given_step_time_has_no_interval() -> None:
    rank = structs.replace(rank_facts({"compute": 1}), steps=steps_of(*range(10, 17)))
    assert run_step(Facts(ranks=(rank,))).low_ns == 10
    assert run_step(Facts(ranks=(rank,), given_step_ns=12)).low_ns is None


def with_ops(width: int, **counts: int) -> WidthRun:
    rows = tuple(
        RangeRow(name=name.replace("__", "::"), count=count, device_ns=1)
        for name, count in counts.items()
    )
    return width_run(f"w{width}", Facts(ranks=(rank_facts({"compute": 8}, ops=rows),)), width)


def unlike(*series: WidthRun) -> list[str]:
    return [note for note in scale(series, "weak").notes if "different" in note]


def test_runs_of_different_models_are_doubted() -> None:
    net = {"aten__mm": 40, "aten__gelu": 10}
    convolutions = {"aten__conv2d": 40, "aten__relu": 30, "aten__mm": 2}
    assert len(unlike(with_ops(1, **net), with_ops(2, **convolutions))) == 1
    assert (
        unlike(with_ops(1, **net), with_ops(2, **net, c10d__allreduce_=400, record_param_comms=400))
        == []
    )


def test_runs_with_gradients_of_another_size_or_other_devices_are_doubted() -> None:
    series = [
        run_of(1, 80),
        run_of(2, 80, gradient_bytes=208e6),
        run_of(4, 80, gradient_bytes=209e6),
    ]
    assert unlike(*series) == []
    (note,) = unlike(*series[:2], run_of(4, 80, gradient_bytes=416e6))
    assert "208 and 416 MB" in note
    (note,) = unlike(run_of(1, 80), run_of(2, 80, device_name="A100"))
    assert "H100 and A100" in note
