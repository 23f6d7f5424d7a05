"""Two runs compared: the ratio and its interval, what is not the same work, predictions held, and
real pairs of the lab."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import Finding
from stepscope.core.experiments.comparison import Comparison
from stepscope.core.scaling import SCALING_PARTS, UNPROFILED
from stepscope.errors import FormatError
from stepscope.experiments.bootstrap import trimmed_mean
from stepscope.experiments.compare.comparison import compare
from stepscope.experiments.compare.saved import side_of_json
from stepscope.experiments.compare.side import CompareSide, WorkDone
from stepscope.pipeline.comparison import read_side
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording, diagnose
from stepscope.report.comparison.words import step_words
from stepscope.report.diagnosis.json import to_json
from tests.experiments.compare.test_pairing import pieces
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.shared_data import SAMPLES, lab_trace
from tests.wording import any_mentions, mentions

MS = 1_000_000


def side(label: str, steps: Sequence[float] = (), **more: object) -> CompareSide:
    """A run of these unprofiled steps, in ms."""
    made = CompareSide(
        label=label,
        kind="run",
        step_ns=statistics.median(steps) * MS if steps else None,
        step_source="measured",
        unprofiled=tuple(round(ms * MS) for ms in steps),
        knobs={},
        is_judged=True,
    )
    return replace(made, **more)


def noisy(middle: float, num: int, seed: int, spread: float = 0.02) -> list[float]:
    chance = random.Random(seed)
    return [middle * (1 + spread * chance.gauss(0, 1)) for _ in range(num)]


def finding(code: str, gain: float = 2.0) -> Finding:
    return Finding(
        code=code,
        bound="host",
        summary="",
        action="",
        evidence=(),
        ranks=(0,),
        predicted_speedup=gain,
        predicted_low=gain * 0.95,
        predicted_high=gain * 1.05,
        predicted_step_ms=1.0,
    )


def test_a_speedup_is_before_over_after_and_its_interval_mostly_holds_the_truth() -> None:
    holds = 0
    for seed in range(20):
        before, after = noisy(20, 80, seed), noisy(10, 60, seed + 100)
        speedup = compare(side("a", before), side("b", after)).speedup
        assert speedup.value == pytest.approx(trimmed_mean(before) / trimmed_mean(after), rel=1e-6)
        assert speedup.verdict == "faster"
        low, high, smallest = speedup.low or 0.0, speedup.high or 0.0, speedup.smallest or 0.0
        assert 1.9 < low < (speedup.value or 0.0) < high < 2.1
        assert 1 < smallest < 1.05
        holds += low < 2.0 < high
    assert holds >= 16


def test_a_slower_run_is_under_one() -> None:
    speedup = compare(side("a", noisy(10, 60, 1)), side("b", noisy(12, 60, 2))).speedup
    assert (speedup.high or 9) < 1
    assert speedup.verdict == "slower"


def test_the_same_run_twice_is_no_difference_seen() -> None:
    speedup = compare(side("a", noisy(10, 60, 3)), side("b", noisy(10, 60, 4))).speedup
    assert (speedup.low or 9) < 1 < (speedup.high or 0)
    assert speedup.verdict == "no difference seen"


@pytest.mark.parametrize("num", [1, 2, 3, 7])
def test_few_steps_give_no_interval(num: int) -> None:
    speedup = compare(side("a", noisy(20, num, 1)), side("b", noisy(10, 50, 2))).speedup
    assert (speedup.low, speedup.high, speedup.smallest, speedup.verdict) == (
        None,
        None,
        None,
        "not told",
    )
    assert mentions(speedup.why, f"{num} step")


def test_given_step_times_have_a_ratio_and_no_interval() -> None:
    a, b = (
        side(name, step_ns=ms * MS, step_source="given", unprofiled=())
        for name, ms in (("a", 30.0), ("b", 12.0))
    )
    speedup = compare(a, b).speedup
    assert speedup.value == 2.5
    assert speedup.low is None
    assert mentions(speedup.why, "given")


def test_profiled_and_unprofiled_steps_are_never_compared() -> None:
    unprofiled = side("a", noisy(10, 50, 1))
    recorded = side("b", recorded=(12 * MS,) * 10, recorded_ns=12 * MS, step_source="trace")
    comparison = compare(unprofiled, recorded)
    assert comparison.speedup.value is None
    assert comparison.speedup.verdict == "not told"
    both = compare(replace(unprofiled, recorded=(24 * MS,) * 10), recorded)
    assert both.speedup.value == 2.0
    assert both.before.source == "recorded"
    assert any("under a profiler" in note for note in both.notes)


def test_a_burst_that_the_median_does_not_see_is_told() -> None:
    """Of steps under a profiler, of which a diagnosis has the median; of others it has the mean."""
    bursty, even = [10.0, 10.0, 10.0, 40.0] * 20, noisy(10, 80, 5, spread=0.001)
    recorded = [
        side(name, recorded=tuple(round(ms * MS) for ms in steps), step_source="trace")
        for name, steps in (("a", bursty), ("b", even))
    ]
    comparison = compare(*recorded)
    assert comparison.speedup.value == pytest.approx(1.0, rel=0.01)
    assert any_mentions(comparison.notes, "median does not see")
    timed = compare(side("a", bursty), side("b", even))
    assert timed.speedup.value == pytest.approx(1.67, rel=0.01)
    assert not any_mentions(timed.notes, "median does not see")


def test_a_median_that_is_not_the_pace_is_told_whatever_the_interval() -> None:
    # Both alike: the ratio of medians and that of means agree. A mean of 17.5 ms less a twentieth
    # at each end is 16.67 ms.
    bursty = [10.0, 10.0, 10.0, 40.0] * 20
    notes = [
        note for note in compare(side("a", bursty), side("b", bursty)).notes if "two kinds" in note
    ]
    assert len(notes) == 2
    assert mentions(notes[0], "first run")
    assert mentions(notes[1], "16.7 ms", "median is 10 ms")
    few = compare(side("a", bursty[:7]), side("b", noisy(10, 40, 1))).notes
    assert sum("two kinds" in note for note in few) == 1
    even = compare(side("a", noisy(10, 80, 1, spread=0.1)), side("b", noisy(12, 80, 2))).notes
    assert not any("two kinds" in note for note in even)


def test_a_side_that_stands_alone_is_told_as_it_was_timed() -> None:
    timed, empty = side("a", noisy(2.6, 20, 1)), side("b", step_source="trace")
    comparison = compare(timed, empty)
    assert comparison.speedup.value is None
    assert mentions(comparison.speedup.why, "no step", "second")
    assert (comparison.before.source, comparison.before.num_steps) == ("unprofiled", 20)
    assert comparison.before.step_ms == pytest.approx(2.6, rel=0.02)
    assert comparison.after.step_ms is None
    assert mentions(step_words(comparison.before), "no profiler", "mean of 20 steps")
    recorded = compare(
        empty, side("c", recorded=(12 * MS,) * 10, recorded_ns=12 * MS, step_source="trace")
    )
    assert (recorded.after.source, recorded.after.num_steps) == ("recorded", 10)
    assert mentions(recorded.speedup.why, "no step", "first")
    assert mentions(compare(empty, empty).speedup.why, "no step", "either")
    log = compare(empty, side("d", step_ns=4.0 * MS, step_source="log"))
    assert log.after.source == "kept"


def test_steps_that_logs_tell_are_compared_and_never_with_recorded_ones() -> None:
    slow, fast = (
        side(
            name, step_ns=ms * MS, step_source="log", recorded=(9 * MS,) * 10, recorded_ns=9.0 * MS
        )
        for name, ms in (("a", 8.0), ("b", 4.0))
    )
    assert compare(slow, fast).speedup.value == 2.0
    assert (
        compare(slow, side("c", recorded=(3 * MS,) * 10, step_source="trace")).speedup.value == 3.0
    )


def test_the_parts_sum_to_the_step_that_is_compared() -> None:
    """A run was timed without a profiler at 10 ms, and recorded under one at 7; the other was only
    recorded."""
    parts = dict.fromkeys(SCALING_PARTS, 0)
    timed = side(
        "a", [10.0] * 9 + [12.0], parts_ns=parts | {"compute": 7 * MS, UNPROFILED: 3 * MS + 200_000}
    )
    timed = replace(timed, recorded=(7 * MS,) * 10)
    recorded = side(
        "b", recorded=(5 * MS,) * 10, step_source="trace", parts_ns=parts | {"compute": 5 * MS}
    )
    comparison = compare(timed, recorded)
    assert comparison.before.source == "recorded"
    account = comparison.accounts.get("part")
    assert account is not None
    assert (account.before_ns, account.after_ns) == (7 * MS, 5 * MS)
    assert [row.name for row in account.rows] == ["compute"]
    alone = compare(timed, timed).accounts.get("part")
    assert alone is not None
    # The mean, as the diagnosis has it.
    assert (alone.before_ns, alone.after_ns) == (10.2 * MS, 10.2 * MS)


def test_waits_that_one_run_does_not_tell_are_compared_with_the_transfers() -> None:
    parts: dict[str, int | None] = dict.fromkeys(SCALING_PARTS, 0)
    split = side(
        "a", [10.0] * 10, parts_ns=parts | {"comms_wait": 4 * MS, "comms_transfer": 6 * MS}
    )
    whole = side("b", [10.0] * 10, parts_ns=parts | {"comms_wait": None, "comms_transfer": 10 * MS})
    for comparison in (compare(split, whole), compare(whole, split)):
        account = comparison.accounts.get("part")
        assert account is not None
        assert [(row.name, row.change_ns) for row in account.rows] == [("comms_transfer", 0)]


def test_stacks_of_one_run_alone_are_told_of() -> None:
    plain = pieces([("forward aten::mm[1]", "gemm", 50)])
    named = replace(plain, sorts=tuple(replace(sort, module="layers.0") for sort in plain.sorts))
    steps = noisy(10, 20, 1)
    notes = compare(side("a", steps, pieces=named), side("b", steps, pieces=plain)).notes
    assert any_mentions(notes, "modules", "not compared")
    assert not any(
        "modules" in note
        for note in compare(side("a", steps, pieces=named), side("b", steps, pieces=named)).notes
    )


def test_one_run_each_points_to_verify() -> None:
    assert any(
        "stepscope verify" in note
        for note in compare(side("a", noisy(9, 20, 1)), side("b", noisy(9, 20, 2))).notes
    )


def test_another_batch_size_is_no_speedup_and_samples_in_a_second_are_compared() -> None:
    work = WorkDone(world_size=2, batch_size=8, num_batches=1.0)
    comparison = compare(
        side("a", noisy(10, 60, 1), work=work),
        side("b", noisy(15, 60, 2), work=replace(work, batch_size=16)),
    )
    assert comparison.unequal == ("batch size: 8 -> 16",)
    assert comparison.speedup.verdict == "slower"
    assert comparison.throughput is not None
    assert comparison.throughput.value == pytest.approx((comparison.speedup.value or 0) * 2)
    assert comparison.throughput.verdict == "faster"


def test_the_same_batch_is_the_same_work() -> None:
    work = WorkDone(world_size=1, batch_size=8, num_batches=1.0, flops=1e12)
    comparison = compare(
        side("a", noisy(10, 20, 1), work=work),
        side("b", noisy(10, 20, 2), work=replace(work, flops=1.01e12)),
    )
    assert comparison.unequal == ()
    assert comparison.throughput is None


def test_flops_tell_where_no_batch_is_known() -> None:
    comparison = compare(
        side("a", noisy(10, 20, 1), work=WorkDone(flops=1e12)),
        side("b", noisy(10, 20, 2), work=WorkDone(flops=3e12)),
    )
    assert comparison.throughput is not None
    assert comparison.throughput.unit == "FLOPs"
    assert comparison.throughput.value == pytest.approx(3 * (comparison.speedup.value or 0))
    assert comparison.unequal


def test_a_prediction_is_held_against_what_it_gave() -> None:
    a = side(
        "a",
        noisy(20, 60, 1),
        findings=(finding("gone-one", 2.0), finding("stays", 1.5), finding("blind", 1.2)),
    )
    b = side(
        "b",
        noisy(10, 60, 2),
        findings=(finding("stays", 1.4), finding("fresh", 1.1)),
        abstained=frozenset({"blind"}),
    )
    held = {row.code: row for row in compare(a, b).held}
    assert {code: row.status for code, row in held.items()} == {
        "gone-one": "gone", "stays": "still there", "blind": "not judged", "fresh": "new"
    }  # fmt: skip
    assert held["gone-one"].measured == pytest.approx(2.0, rel=0.05)
    assert held["gone-one"].agrees is True
    assert held["stays"].measured is None
    wrong = compare(replace(a, findings=(finding("gone-one", 4.0),)), b).held[0]
    assert wrong.agrees is False


def test_a_prediction_is_not_held_against_steps_that_the_profiler_slowed() -> None:
    slow = side(
        "a",
        recorded=(82 * MS,) * 10,
        step_source="trace",
        bound="host",
        findings=(finding("gone-one", 2.0),),
    )
    fixed = side("b", recorded=(81 * MS,) * 10, step_source="trace", bound="host")
    comparison = compare(slow, fixed)
    assert comparison.held[0].status == "gone"
    assert comparison.held[0].agrees is None
    assert any_mentions(comparison.notes, "predicted", "not told")
    slow, fixed = (
        replace(each, bound="memory", recorded_ns=float(each.recorded[0])) for each in (slow, fixed)
    )
    parts = dict.fromkeys(SCALING_PARTS, 0)
    waiting = replace(fixed, parts_ns=parts | {"compute": 71 * MS, "idle_launch": 10 * MS})
    assert (
        compare(replace(slow, parts_ns=parts | {"compute": 82 * MS}), waiting).held[0].agrees
        is None
    )
    bound = compare(slow, fixed)
    assert bound.held[0].agrees is False
    assert not any("is not told" in note for note in bound.notes)


def test_a_run_with_fewer_of_its_ranks_is_the_same_work_and_fixed_nothing() -> None:
    whole = side(
        "a",
        noisy(10, 20, 1),
        num_ranks=4,
        work=WorkDone(world_size=4, flops=4e12, num_read=4),
        findings=(finding("late-rank"),),
    )
    single = side(
        "b", noisy(10, 20, 2), num_ranks=1, work=WorkDone(world_size=4, flops=1e12, num_read=1)
    )
    comparison = compare(whole, single)
    assert comparison.unequal == ()
    assert comparison.throughput is None
    assert comparison.held[0].status == "not judged"
    assert any_mentions(comparison.notes, "b: 1 of its 4 ranks")
    assert compare(single, whole).unequal == ()


def test_runs_of_other_widths_point_to_scaling() -> None:
    narrow, four = (
        side(str(n), noisy(10, 20, n), num_ranks=n, work=WorkDone(world_size=n)) for n in (2, 4)
    )
    assert any("--scaling" in note for note in compare(narrow, four).notes)
    assert not any("--scaling" in note for note in compare(narrow, narrow).notes)


def test_findings_gone_at_once_are_held_together() -> None:
    a = side(
        "a",
        noisy(20, 20, 1),
        findings=(finding("one", 1.6), finding("two", 1.3)),
        ladder=(1.6, 1.95),
    )
    comparison = compare(a, side("b", noisy(10, 20, 2)))
    assert comparison.predicted_together == 1.95
    assert all(row.agrees is None for row in comparison.held)
    assert any_mentions(comparison.notes, "2 findings", "at once")


def test_a_run_that_was_not_judged_fixed_nothing() -> None:
    a = side("a", noisy(20, 20, 1), findings=(finding("one"),))
    assert compare(a, side("b", noisy(10, 20, 2), is_judged=False)).held[0].status == "not judged"


def recorded_run(folder: Path, dur_ms: float, workers: int, **notes: object) -> Path:
    run = write_run(folder, command=["python", "train.py", "--workers", str(workers)])
    loader = {"is_feeding": True, "num_workers": workers, "batch_size": 32}
    recorded = {
        "flags": {"matmul_tf32": False},
        "environment": {"OMP_NUM_THREADS": "8", "MASTER_PORT": str(29500 + workers)},
    }
    rank = write_rank(run, 0, loaders=[loader], **(recorded | notes))
    chance = random.Random(workers)
    add_steps(
        rank, [row(step, dur_ms=dur_ms * (1 + 0.01 * chance.random())) for step in range(5, 65)]
    )
    return run


def run_side(path: Path) -> CompareSide:
    with Recording([path], Options(use_cache=False, jobs=1)) as recording:
        return read_side(recording, path.name)


def test_run_folders_are_compared_by_their_timed_steps_and_settings(tmp_path: Path) -> None:
    a = recorded_run(tmp_path / "a", 20.0, 0)
    b = recorded_run(tmp_path / "b", 10.0, 4, flags={"matmul_tf32": True})
    comparison = compare(run_side(a), run_side(b))
    assert (comparison.before.source, comparison.before.num_steps) == ("unprofiled", 60)
    assert comparison.speedup.value == pytest.approx(2.0, rel=0.02)
    assert comparison.speedup.verdict == "faster"
    knobs = {knob.name: (knob.before, knob.after) for knob in comparison.knobs}
    assert knobs["loader.num_workers"] == ("0", "4")
    assert knobs["flags.matmul_tf32"] == ("False", "True")
    assert "environment.MASTER_PORT" not in knobs
    assert "environment.OMP_NUM_THREADS" not in knobs
    assert comparison.before.samples == 32
    assert comparison.unequal == ()


def test_a_kept_diagnosis_of_a_run_has_the_interval_of_its_mean(tmp_path: Path) -> None:
    paths = [recorded_run(tmp_path / name, ms, 2) for name, ms in (("a", 20.0), ("b", 10.0))]
    texts = [to_json(diagnose([str(path)], Options(use_cache=False, jobs=1))) for path in paths]
    comparison = compare(
        *(side_of_json(text, name) for text, name in zip(texts, "ab", strict=True))
    )
    assert comparison.before.source == "kept"
    assert comparison.speedup.value == pytest.approx(2.0, rel=0.02)
    assert (
        1.9
        < (comparison.speedup.low or 0)
        < (comparison.speedup.value or 0)
        < (comparison.speedup.high or 0)
        < 2.1
    )


def test_a_run_and_its_own_kept_diagnosis_show_no_difference(tmp_path: Path) -> None:
    """Every third step waits: the mean, which a diagnosis keeps, is far above the median."""
    run = write_run(tmp_path / "a")
    rank = write_rank(run, 0)
    chance = random.Random(1)
    add_steps(
        rank,
        [
            row(step, dur_ms=(10.0, 10.0, 40.0)[step % 3] * (1 + 0.01 * chance.random()))
            for step in range(5, 125)
        ],
    )
    diagnosis = diagnose([str(run)], Options(use_cache=False, jobs=1))
    text = to_json(diagnosis)
    twice = compare(run_side(run), run_side(run))
    assert diagnosis.step.ms is not None
    assert twice.before.step_ms == pytest.approx(diagnosis.step.ms, abs=1e-6)
    for sides in (
        (run_side(run), side_of_json(text, "kept")),
        (side_of_json(text, "kept"), run_side(run)),
    ):
        comparison = compare(*sides)
        # Of 120 steps 40 are long, and the longest and shortest six are left out.
        mean = (34 * 40.2 + 74 * 10.05) / 108
        assert comparison.speedup.value == pytest.approx(1.0, rel=0.01)
        assert comparison.speedup.verdict == "no difference seen"
        assert [comparison.before.step_ms, comparison.after.step_ms] == pytest.approx(
            [mean, mean], rel=0.01
        )


@pytest.mark.parametrize("seldom", [100, 5])
def test_steps_that_save_are_told_of_beside_the_ratio(seldom: int, tmp_path: Path) -> None:
    """Usual steps are the same in both; one run saves in every fifth of them, for 90 ms more."""

    def saved(name: str, every: int) -> Path:
        run = write_run(tmp_path / name)
        rank = write_rank(run, 0)
        rows = [
            row(
                s,
                dur_ms=10 + s % 2 * 0.1 + 90 * (s % every == 0),
                save_ns=80_000_000 * (s % every == 0),
            )
            for s in range(5, 65)
        ]
        add_steps(rank, rows)
        return run

    comparison = compare(run_side(saved("a", 5)), run_side(saved("b", seldom)))
    assert comparison.speedup.value == pytest.approx(1.0, rel=0.02)
    notes = [note for note in comparison.notes if "save or evaluate" in note]
    if seldom == 5:
        assert notes == []
    else:
        assert "instead of 28.1 ms: 2.79x" in notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": "stepscope.diagnosis/1"}',
        '{"schema": "stepscope.diagnosis/9", "step": 1}',
    ],
    ids=["cut", "list", "empty", "other"],
)
def test_what_is_no_diagnosis_is_refused_in_words(text: str) -> None:
    with pytest.raises(FormatError, match="Diagnose"):
        side_of_json(text, "a.json")


TRUTH = json.loads((SAMPLES / "truth.json").read_text())["cases"]


def lab_pair(name: str) -> Comparison:
    sides = []
    for which in ("slow", "fixed"):
        path = lab_trace(f"single/{name}.{which}")
        with Recording(
            [path], Options(step_ms=TRUTH[name][f"{which}_ms"], use_cache=False, jobs=1)
        ) as recording:
            sides.append(read_side(recording, which))
    comparison = compare(*sides)
    comparison.self_check()
    return comparison


# What the lab's planted fault must be seen as: the part that changed most, and operators at the
# head of what changed.
LAB = {
    "elementwise_chain": ("compute", {"aten::mul", "aten::tanh"}, "replaced"),
    "nchw": ("compute", {"aten::native_batch_norm_backward"}, "kernels"),
    "h2d_pageable": ("transfer", {"aten::copy_"}, "kernels"),
    "launch_tiny": ("idle_launch", {"aten::addmm"}, "launcher"),
}


@pytest.mark.parametrize("name", LAB)
def test_the_planted_fault_is_what_changed(name: str) -> None:
    part, ops, how = LAB[name]
    comparison = lab_pair(name)
    assert comparison.speedup.value == pytest.approx(TRUTH[name]["speedup"], rel=0.01)
    account = comparison.accounts.get("part")
    assert account is not None
    assert account.rows[0].name == part
    assert account.after_ns - account.before_ns == round(
        (TRUTH[name]["fixed_ms"] - TRUTH[name]["slow_ms"]) * MS
    )
    assert comparison.device is not None
    first = comparison.changed[0]
    assert how in first.how
    assert first.before is not None
    assert ops & set(first.before.ops)
    fixed = {row.code: row for row in comparison.held if row.status == "gone"}
    cause = next(fixed[code] for code in TRUTH[name]["causes"] if code in fixed)
    assert cause.agrees is True
    assert comparison.unequal == ()


def test_another_model_is_not_the_same_work() -> None:
    names = ("nchw.fixed", "launch_tiny.slow")
    sides = [run_side(lab_trace(f"single/{name}")) for name in names]
    comparison = compare(*sides)
    comparison.self_check()
    assert any(why.startswith("FLOPs a step") for why in comparison.unequal)
    assert comparison.throughput is not None
    assert comparison.throughput.unit == "FLOPs"


def test_work_without_counterparts_on_both_sides_is_another_models() -> None:
    first = pieces(
        [
            ("forward aten::cudnn_convolution[1]", "conv", 900),
            ("optimizer aten::add[1]", "add", 100),
        ]
    )
    second = pieces([("forward aten::mm[2]", "gemm", 800), ("optimizer aten::add[1]", "add", 100)])
    steps = noisy(10, 20, 1)
    comparison = compare(side("a", steps, pieces=first), side("b", steps, pieces=second))
    assert len(comparison.unequal) == 1
    assert mentions(comparison.unequal[0], "90%", "first", "89%", "second", "another model")
    assert compare(side("a", steps, pieces=first), side("b", steps, pieces=first)).unequal == ()
    # A loop over cells and one fused recurrence: little of the one has a name in the other, and
    # they do the same.
    loop, fused = WorkDone(flops=7.72e10, num_read=1), WorkDone(flops=7.73e10, num_read=1)
    assert (
        compare(
            side("a", steps, pieces=first, work=loop), side("b", steps, pieces=second, work=fused)
        ).unequal
        == ()
    )


def test_a_trace_against_itself_shows_no_change_at_all() -> None:
    with Recording(
        [lab_trace("single/nchw.fixed")],
        Options(use_cache=False, jobs=1),
    ) as recording:
        again = read_side(recording, "again")
    comparison = compare(again, again)
    assert comparison.device is not None
    assert comparison.changed == ()
    assert all(
        row.change_ns == 0
        for account in comparison.accounts.values()
        for row in (*account.rows, account.rest)
    )
    assert {finding.status for finding in comparison.held} <= {"still there", "not judged"}
    assert comparison.speedup.value == 1.0


def test_a_run_that_failed_is_told_so(tmp_path: Path) -> None:
    from stepscope.pipeline.comparison import _failure
    from stepscope.protocol.run_folder import ENDED_FILE
    from stepscope.readers.run_folder.folder import read_run
    from tests.live_runs import write_rank, write_run

    failed = write_run(tmp_path / "failed", exit_code=1)
    rank = write_rank(failed, 0)
    assert mentions(_failure(read_run(failed)), "exit code 1", "until then")
    (rank / ENDED_FILE).touch()
    assert _failure(read_run(failed)) is None, "it was ended after the steps that were asked for"
    assert _failure(read_run(write_run(tmp_path / "good", exit_code=0))) is None
