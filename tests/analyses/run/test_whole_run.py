"""Every second of a run is in one part, and planted ones in the right one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.analyses.run.idle import rests
from stepscope.analyses.run.whole_run import rank_whole_run
from stepscope.core.run import OwnTime
from stepscope.protocol.run_folder import STEP_SUMMARY_COLUMNS
from stepscope.readers.run_folder.folder import RankRecord
from tests.analyses.run.whole_runs import MS, WALL, Row, S, accounted, record, row


def test_a_stall_every_20_steps_is_a_third_of_the_time() -> None:
    rows = [row(n, 660 if n % 20 == 0 else 60) for n in range(1, 201)]
    run = accounted(record(rows, first_ns=0), tail_ns=0)
    assert run.ns_of("stalls") == 6 * S
    assert run.ns_of("steady") == 12 * S
    assert run.productive_share == pytest.approx(2 / 3)
    (slow,) = run.stalls
    assert (slow.every_steps, slow.num, slow.once_seconds, slow.cause) == (20, 10, 0.6, None)
    assert run.num_clean_steps == 190


def test_a_stall_in_an_evaluated_step_is_not_the_evaluation() -> None:
    rows = []
    for n in range(1, 201):
        held = 600 * (n % 20 == 0) + 300 * (n % 50 == 0)
        rows.append(row(n, 30 + held, num_evals=int(n % 50 == 0)))
    run = accounted(record(rows))
    assert run.ns_of("stalls") == 6 * S
    assert run.ns_of("evaluation") == 4 * 300 * MS


def test_slow_steps_at_any_distance_have_no_period() -> None:
    slow = {7, 12, 40, 65, 97, 98}
    run = accounted(record([row(n, 630 if n in slow else 30) for n in range(1, 201)]))
    (group,) = run.stalls
    assert (group.every_steps, group.num, group.seconds) == (None, 6, 3.6)


def test_saves_epochs_and_collections_are_named() -> None:
    rows = [row(n, 30, wait_ns=MS) for n in range(1, 101)]
    rows[24] |= {"dur_ns": 130 * MS, "save_ns": 100 * MS}
    rows[49] |= {"dur_ns": 430 * MS, "wait_ns": 301 * MS}
    rows[74] |= {"dur_ns": 80 * MS, "gc_ns": 50 * MS}
    epoch = {"kind": "epoch", "at_ns": 1, "step": 50, "dur_ns": 100 * MS, "wait_ns": 300 * MS}
    run = accounted(record(rows, epoch))
    assert [run.ns_of(each) for each in ("saves", "epoch_start", "gc", "stalls")] == [
        100 * MS,
        400 * MS,
        50 * MS,
        0,
    ]
    assert {part.what: part.num for part in run.parts if part.num} == {
        "saves": 1,
        "epoch_start": 1,
        "gc": 1,
    }


def test_collections_that_every_step_holds_are_how_the_job_steps() -> None:
    rows = [row(n, 170 + n % 3 * 10, gc_ns=(160 + n % 3 * 10) * MS) for n in range(1, 101)]
    assert accounted(record(rows)).ns_of("gc") == 0
    rows[74] |= {"dur_ns": 600 * MS, "gc_ns": 590 * MS}
    assert accounted(record(rows)).ns_of("gc") > 400 * MS


def test_logging_is_what_a_step_logs_longer_than_most() -> None:
    rows = [row(n, 30, log_ns=2 * MS) for n in range(1, 101)]
    for at in (19, 39, 59, 79, 99):
        rows[at] |= {"dur_ns": 42 * MS, "log_ns": 14 * MS}
    rows[50] |= {"dur_ns": 330 * MS, "log_ns": 202 * MS}
    run = accounted(record(rows))
    assert run.ns_of("logging") == 5 * 12 * MS + 200 * MS
    assert run.ns_of("stalls") == 100 * MS
    assert run.step_ms == 30


def test_a_log_on_a_device_that_is_waited_for_anyway_costs_nothing() -> None:
    rows = [row(n, 30, device_ns=30 * MS) for n in range(1, 101)]
    rows[50] |= {"log_ns": 25 * MS}
    assert accounted(record(rows)).ns_of("logging") == 0


def test_an_evaluations_loader_begins_no_epoch() -> None:
    rows = [row(n, 30) for n in range(1, 101)]
    rows[49] |= {"dur_ns": 430 * MS, "wait_ns": 200 * MS, "num_batches": 5, "num_evals": 1}
    of_other = {"kind": "epoch", "step": 50, "dur_ns": 100 * MS, "wait_ns": 100 * MS, "loader": 1}
    run = accounted(record(rows, of_other, first_step={"loader": 0}))
    assert (run.ns_of("evaluation"), run.ns_of("epoch_start")) == (400 * MS, 0)
    run = accounted(record(rows, of_other, first_step={"loader": 1}))
    assert (run.ns_of("evaluation"), run.ns_of("epoch_start")) == (200 * MS, 200 * MS)


def test_the_start_is_start_up_first_batch_and_compiling() -> None:
    rows = [row(n, 30) for n in range(1, 51)]
    first = {"begun_ns": 2 * S, "iter_ns": S // 2, "wait_ns": S, "dynamo_compile_s": 1.2}
    made = record(rows, first_step=first, started_ns=S // 10, imported_ns=S)
    run = accounted(made)
    assert run.ns_of("start_up") == 2 * S
    assert run.ns_of("first_batch") == 3 * S // 2
    assert run.ns_of("compile") == 1200 * MS
    assert run.ns_of("warm_up") == 5 * S - 2 * S - 3 * S // 2 - 1200 * MS - 30 * MS
    assert run.ns_of("shutdown") == S
    (start,) = [part for part in run.parts if part.what == "start_up"]
    assert list(start.of_it.values()) == [0.1, 0.9]


@pytest.mark.parametrize("years_ns", [799_999_999_981_000_000, 2**61 + 12345])
def test_a_clock_that_was_set_makes_a_run_of_years_and_no_fault(years_ns: int) -> None:
    made = record([row(n, 30 + n % 3) for n in range(1, 51)], first_ns=years_ns + 7)
    run = rank_whole_run(
        made, {"started_wall_ns": WALL, "ended_wall_ns": WALL + (made.rows[-1]["end_ns"] or 0)}
    )
    assert run is not None
    assert run.ns_of("start_up", "warm_up") > 0.9 * run.dur_ns


def test_a_host_that_runs_ahead_is_not_slow_where_it_waits() -> None:
    """It waits for the device in every tenth step, for all ten of them."""
    rows = [row(n, 2 if n % 10 else 182, device_ns=20 * MS) for n in range(1, 201)]
    run = accounted(record(rows, machine={"devices": [{"name": "GPU"}]}))
    assert run.ns_of("stalls") == 0
    assert run.step_ms == 20


def test_workers_that_deliver_together_are_how_the_job_steps() -> None:
    rows = [row(n, 10 if n % 4 else 110, wait_ns=0 if n % 4 else 100 * MS) for n in range(1, 101)]
    assert accounted(record(rows)).ns_of("stalls") == 0


def test_a_stall_is_seen_among_steps_of_two_lengths() -> None:
    """As on a machine that others use: more steps than a quarter take twice as long."""
    rows = [row(n, 12 if n % 3 == 0 else 6) for n in range(1, 201)]
    for n in range(20, 200, 20):
        rows[n]["dur_ns"] = 600 * MS
    run = accounted(record(rows))
    assert [(slow.every_steps, slow.num) for slow in run.stalls] == [(20, 9)]
    assert run.ns_of("stalls") == pytest.approx(9 * 592 * MS, rel=1e-3)


def test_a_stall_is_the_part_that_holds_it() -> None:
    """On a machine that others use, a thread that has slept gets its core at once: its step has
    40 ms less of the backward pass than the usual one."""
    usual = {"between_ns": MS, "backward_ns": 44 * MS}
    rows = [row(n, 60 + n % 3, **usual) for n in range(1, 201)]
    for n in range(20, 200, 20):
        rows[n] |= {"dur_ns": 621 * MS, "between_ns": 601 * MS, "backward_ns": 4 * MS}
    run = accounted(record(rows))
    assert run.ns_of("stalls") == pytest.approx(9 * 600 * MS, rel=1e-3)


def test_recorded_steps_cost_the_recording_and_still_train() -> None:
    rows = [row(n, 30) for n in range(1, 61)]
    for n, state in ((20, 2), (21, 2), (22, 3)):
        rows[n - 1] |= {"dur_ns": 50 * MS, "state": state}
    run = accounted(record(rows))
    assert run.ns_of("recording") == 60 * MS
    assert run.ns_of("steady") == 61 * 30 * MS


def test_what_ranks_wait_for_one_another_is_not_productive() -> None:
    own = OwnTime(
        num_steps=40,
        step_ns=30 * MS,
        own_ns=20 * MS,
        loader_ns=0,
        backward_ns=0,
        share_longest=0.0,
        spread=0.0,
    )
    run = accounted(record([row(n, 30) for n in range(1, 51)]), own)
    assert run.ns_of("waits") == run.ns_of("steady") / 2


def test_a_run_of_few_steps_is_accounted_for_by_its_warm_up() -> None:
    rows = [row(n, ms, state=1) for n, ms in enumerate((90, 30, 30, 30), 1)]
    run = accounted(record(rows))
    assert run.step_ms == 30
    assert run.ns_of("warm_up") == 60 * MS
    assert run.ns_of("steady") == 5 * 30 * MS, "with the first step, which is no row"


def test_a_run_with_no_step_that_was_timed_is_not_accounted_for() -> None:
    assert rank_whole_run(record([row(n, 30, state=2) for n in range(1, 5)]), {}) is None


def test_a_step_of_more_backward_passes_is_longer_and_not_slow() -> None:
    """The first steps of a second loop stand as one: here 50, after 4 s of something else."""
    rows = [row(n, 30) for n in range(1, 101)]
    rows[60] |= {"dur_ns": 5500 * MS, "num_backwards": 50}
    run = accounted(record(rows))
    assert run.ns_of("stalls") == 4 * S
    assert run.ns_of("steady") == (100 + 50) * 30 * MS


def sampled(*seconds: tuple[float, float], **more: float) -> tuple[dict[str, Any], ...]:
    """Samples at these seconds, each with the cores that were used since the one before."""
    return tuple(
        {"at_ns": round(at * S), "step": 51, "cpu_user_cores": cores, "cpu_sys_cores": 0.0, **more}
        for at, cores in seconds
    )


RESTS = tuple((7.6 + at, 0.01) for at in range(5))


def slept(rank: int = 0, samples: tuple[dict[str, Any], ...] = ()) -> RankRecord:
    """Steps of 50 ms, one of which takes 5 s more, from 7.5 s on."""
    rows = [row(n, 5050 if n == 51 else 50) for n in range(1, 101)]
    return replace(record(rows), rank=rank, samples=samples)


def test_a_job_that_rests_is_idle() -> None:
    line = {"kind": "slow", "step": 51, "at_ns": 8 * S, "line": "train.py(7)"}
    made = replace(slept(samples=sampled(*RESTS)), events=(line,))
    run = accounted(made)
    assert (run.ns_of("idle"), run.ns_of("stalls")) == (5 * S, 0)
    (part,) = (each for each in run.parts if each.what == "idle")
    assert (part.num, part.of_it) == (1, {"train.py(7)": 5})
    assert sum(stretch.get("idle", 0) for stretch in run.over_time) == pytest.approx(5)


@pytest.mark.parametrize(
    "more",
    [
        {"cpu_user_cores": 0.9},
        {"children_cores": 1.0},
        {"main_thread_queued_share": 0.8},
        {"disk_read_bytes_s": 5e7},
        {"devices": [{"gpu_util_percent": 40}]},
    ],
)
def test_a_job_that_works_is_slow(more: dict[str, Any]) -> None:
    run = accounted(slept(samples=sampled(*RESTS, **more)))
    assert (run.ns_of("idle"), run.ns_of("stalls")) == (0, 5 * S)


def test_without_samples_nothing_is_known_to_rest() -> None:
    assert accounted(slept()).ns_of("idle") == 0
    lacking = tuple({"at_ns": round(at * S), "step": 51} for at, _ in RESTS)
    assert accounted(slept(samples=lacking)).ns_of("idle") == 0
    made = slept(samples=sampled(*RESTS))
    on_device = replace(made, metadata={**made.metadata, "machine": {"devices": [{}]}})
    assert accounted(on_device).ns_of("idle") == 0, "nobody asked the device"


def test_half_of_a_slow_step_may_be_rest() -> None:
    """Two seconds of rest and two of work: 2.5 s of the 5.05 it takes are idle."""
    run = accounted(slept(samples=sampled((7.6, 0), (8.6, 0), (9.6, 0), (10.6, 1), (11.6, 1))))
    assert run.ns_of("idle") == pytest.approx(2.525 * S)
    assert run.ns_of("stalls") == 5 * S - run.ns_of("idle")


def test_a_rank_that_rests_while_another_works_waits_for_it() -> None:
    mine, busy = slept(samples=sampled(*RESTS)), tuple((at, 1.0) for at, _ in RESTS)
    for theirs, what in ((RESTS, "idle"), (busy, "waits")):
        both = [mine, slept(1, sampled(*theirs))]
        ends = {"started_wall_ns": WALL, "ended_wall_ns": WALL + 20 * S}
        run = rank_whole_run(mine, ends, None, rests(both)[0])
        assert run is not None
        assert {each.what for each in run.parts} == {"start_up", "steady", what, "shutdown"}
        assert run.ns_of(what) == 5 * S


def test_rest_in_turn_is_slow_steps_with_their_period() -> None:
    rows = [row(n, 3050 if n % 20 == 0 else 50) for n in range(1, 101)]
    samples = tuple(
        {"at_ns": at * S // 2, "step": 0, "cpu_user_cores": 0.0, "cpu_sys_cores": 0.0}
        for at in range(10, 50)
    )
    run = accounted(replace(record(rows), samples=samples))
    assert (run.ns_of("idle"), run.stalls[0].every_steps) == (0, 20)


def test_a_long_pause_at_the_place_of_shorter_ones_is_not_in_their_turn() -> None:
    rows = [row(n, 450 if n in (45, 48, 54, 57) else 50) for n in range(1, 101)]
    rows[50] |= {"dur_ns": 5050 * MS}
    samples = sampled(*((9.2 + at, 0.0) for at in range(5)))
    run = accounted(replace(record(rows), samples=samples))
    (slow,) = run.stalls
    assert (slow.num, slow.seconds, run.ns_of("idle")) == (4, 1.6, 5 * S)


def test_rest_after_the_last_step_is_idle_until_the_process_ends() -> None:
    rows = [row(n, 50) for n in range(1, 101)]
    samples = sampled(*((10.2 + at, 0.0) for at in range(6)))
    made = replace(record(rows, ended_ns=16 * S), samples=samples)
    run = accounted(made, tail_ns=8 * S)
    assert (run.ns_of("idle"), run.ns_of("shutdown")) == (6 * S, 2 * S)


def test_rest_in_a_long_runs_stretch_is_idle() -> None:
    made = record([row(n, 30) for n in range(1, 101)], ended_ns=40 * S)
    last = made.rows[-1]["end_ns"] or 0
    stretch: Row = {
        **dict.fromkeys(STEP_SUMMARY_COLUMNS, 0),
        "first_step": 101,
        "num_steps": 100,
        "from_ns": last,
        "to_ns": last + 100 * 30 * MS + 10 * S,
        "slow_ns": 10 * S,
    }
    samples = sampled(*((9.5 + at, 0.0) for at in range(10)))
    made = replace(made, stretches=(stretch,), samples=samples)
    run = rank_whole_run(made, {"started_wall_ns": WALL})
    assert run is not None
    assert (run.ns_of("idle"), run.ns_of("stalls")) == (9 * S, S)


def test_a_run_whose_end_nobody_saw_is_accounted_for_up_to_its_last_line() -> None:
    made = record([row(n, 30) for n in range(1, 51)], {"kind": "gc", "at_ns": 60 * S})
    run = rank_whole_run(made, {"started_wall_ns": WALL})
    assert run is not None
    assert (run.dur_ns, run.is_over, run.ns_of("shutdown")) == (60 * S, False, 0)


def test_a_long_runs_stretches_are_accounted_for_too() -> None:
    made = record([row(n, 30) for n in range(1, 101)])
    last = made.rows[-1]["end_ns"] or 0
    stretch: Row = {
        **dict.fromkeys(STEP_SUMMARY_COLUMNS, 0),
        "first_step": 101,
        "num_steps": 300,
        "from_ns": last,
        "to_ns": last + 300 * 30 * MS + 2 * S,
        "save_ns": S // 2,
        "slow_ns": 3 * S // 2,
    }
    run = rank_whole_run(replace(made, stretches=(stretch,)), {"started_wall_ns": WALL})
    assert run is not None
    assert (run.ns_of("saves"), run.ns_of("stalls"), run.num_steps) == (S // 2, 3 * S // 2, 401)
    assert run.ns_of("steady") == 401 * 30 * MS
    bursty = replace(made, stretches=(stretch | {"to_ns": last + 300 * 30 * MS, "save_ns": 0},))
    run = rank_whole_run(bursty, {})
    assert run is not None
    assert run.ns_of("stalls") == 0, "as fast as the usual step: nothing was lost"


NS = st.integers(0, 2**40)


@given(
    st.lists(st.tuples(*[NS] * 5, st.integers(0, 3), st.integers(0, 2)), min_size=4, max_size=60),
    st.lists(st.tuples(st.sampled_from(("save", "epoch", "evaluation", "window")), NS, NS)),
    st.tuples(NS, NS, NS),
)
def test_parts_sum_to_the_run_whatever_was_recorded(
    steps: list[tuple[int, ...]], noted: list[tuple[str, int, int]], ends: tuple[int, int, int]
) -> None:
    names = ("dur_ns", "wait_ns", "save_ns", "gc_ns", "device_ns", "state", "num_evals")
    rows = [row(n, 0, **dict(zip(names, each, strict=True))) for n, each in enumerate(steps, 1)]
    events = [
        {"kind": kind, "at_ns": at_ns, "dur_ns": ns, "step": ns % len(rows), "saved_ns": ns}
        for kind, at_ns, ns in noted
    ]
    first = {"begun_ns": ends[0], "wait_ns": ends[1], "save_ns": ends[2]}
    made = record(rows, *events, first_step=first, started_ns=ends[0], ended_ns=ends[2])
    run = rank_whole_run(made, {"started_wall_ns": WALL + ends[1]})
    if run is not None:
        assert sum(part.dur_ns for part in run.parts) == run.dur_ns
        assert all(part.dur_ns > 0 for part in run.parts)
