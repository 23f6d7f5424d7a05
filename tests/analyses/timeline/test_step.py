"""The timeline of one step: its gaps are the partition's, its slices the trace's, and thinning
loses no time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.intervals import Intervals, union
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.analyses.timeline import gaps as timeline_gaps
from stepscope.analyses.timeline.rows import join_small, rows_of
from stepscope.analyses.timeline.step import MAX_SLICES, Shared, draw
from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.timeline import Timeline
from stepscope.core.trace import NONE, Kind, Trace
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from tests.shared_data import DEMO, lab_trace
from tests.tracing import call, copy, kernel, mark, op, python, trace_of

US = 1000
LAB = (
    "traces/table_trivial_loader.slow",
    "single/recompiles.slow",
    "ranks2/fsdp_even.slow.rank0",
    "formats/ddp_even_rank0",
)


def read(path: Path) -> tuple[Trace, RankFacts]:
    trace = read_trace(Source(path=path, label=path.name), use_cache=False)
    return trace, measure_rank(build_context(trace, None), 3)


def drawn(
    trace: Trace,
    facts: RankFacts,
    *,
    waiting: Intervals | None = None,
    most: int = MAX_SLICES,
) -> Timeline:
    timeline = draw(Shared(build_context(trace, None), facts, waiting), most=most)
    timeline.self_check()
    return timeline


@pytest.fixture(scope="module")
def demo() -> tuple[Trace, RankFacts]:
    return read(DEMO)


def assert_gaps_are_the_partition(timeline: Timeline, facts: RankFacts) -> None:
    assert facts.partition is not None
    assert timeline.window == facts.steps.windows[timeline.step]
    assert {part: timeline.part_ns(part) for part in PARTS} == {
        p: facts.partition.parts[p][timeline.step] for p in PARTS
    }


def test_gaps_per_cause_sum_to_the_partition_of_the_window(demo: tuple[Trace, RankFacts]) -> None:
    timeline = drawn(*demo)
    assert_gaps_are_the_partition(timeline, demo[1])
    assert timeline.part_ns("idle_input") > timeline.part_ns("compute") > 0


@pytest.mark.parametrize("name", LAB)
def test_gaps_per_cause_sum_to_the_partition_of_recorded_runs(name: str) -> None:
    trace, facts = read(lab_trace(name))
    assert_gaps_are_the_partition(drawn(trace, facts), facts)


def test_gaps_too_many_to_draw_keep_their_sums(
    demo: tuple[Trace, RankFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = drawn(*demo)
    monkeypatch.setattr(timeline_gaps, "MAX_PIECES", 100)
    monkeypatch.setattr(timeline_gaps, "NUM_BINS", 50)
    timeline = drawn(*demo)
    assert len(timeline.gaps.part) < len(whole.gaps.part) / 4
    assert timeline.gaps.moved_ns > whole.gaps.moved_ns == 0
    assert_gaps_are_the_partition(timeline, demo[1])


def test_slices_of_the_device_are_the_work_of_the_trace(demo: tuple[Trace, RankFacts]) -> None:
    trace, facts = demo
    timeline = drawn(trace, facts)
    low, high = timeline.low_ns, timeline.window[1]
    wanted = sorted(
        (int(s), int(d), trace.names[n])
        for s, d, n, k in zip(trace.start_ns, trace.dur_ns, trace.name, trace.kind, strict=True)
        if k in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET) and s < high and s + d > low
    )
    slices = timeline.slices
    found = sorted(
        (int(s), int(d), what.name)
        for s, d, what in zip(
            slices.start_ns, slices.dur_ns, (timeline.whats[w] for w in slices.what), strict=True
        )
        if what.kind in ("kernel", "copy", "set")
    )
    assert found == wanted
    assert timeline.num_left_out == 0


def test_every_kernel_points_to_the_call_with_its_correlation(
    demo: tuple[Trace, RankFacts],
) -> None:
    trace, facts = demo
    timeline = drawn(trace, facts)
    calls = {int(c): i for i, c in enumerate(trace.correlation) if trace.kind[i] == Kind.RUNTIME}
    by_start = {
        (int(trace.start_ns[i]), trace.names[trace.name[i]]): int(trace.correlation[i])
        for i in np.flatnonzero(trace.device_work)
    }
    slices, num = timeline.slices, 0
    for i in np.flatnonzero(slices.launch != NONE).tolist():
        launch = slices.launch[i]
        at = calls[by_start[int(slices.start_ns[i]), str(timeline.whats[slices.what[i]].name)]]
        assert (slices.start_ns[launch], slices.dur_ns[launch]) == (
            trace.start_ns[at],
            trace.dur_ns[at],
        )
        assert timeline.whats[slices.what[launch]].name == trace.names[trace.name[at]]
        num += 1
    kinds = [timeline.whats[w].kind for w in slices.what]
    assert num == sum(kind in ("kernel", "copy", "set") for kind in kinds)


def busy_by_row(timeline: Timeline) -> dict[int, int]:
    busy: dict[int, int] = defaultdict(int)
    for row, ns in zip(timeline.slices.row.tolist(), timeline.slices.busy_ns.tolist(), strict=True):
        busy[row] += ns
    return busy


@pytest.mark.parametrize("most", [4000, 600, 200])
def test_thinning_keeps_the_time_of_every_row(demo: tuple[Trace, RankFacts], most: int) -> None:
    whole, thin = drawn(*demo), drawn(*demo, most=most)
    assert most / 3 < len(thin.slices) <= most
    assert int(thin.slices.count.sum()) == len(whole.slices) == thin.num_events == whole.num_events
    assert thin.num_left_out == int(thin.slices.count[thin.slices.count > 1].sum()) > 0
    assert busy_by_row(thin) == busy_by_row(whole)
    assert thin.lanes == whole.lanes


def test_thinning_takes_the_short_and_deep_first(demo: tuple[Trace, RankFacts]) -> None:
    whole, thin = drawn(*demo), drawn(*demo, most=1000)
    alone = thin.slices.count == 1
    kept = set(
        zip(thin.slices.row[alone].tolist(), thin.slices.start_ns[alone].tolist(), strict=True)
    )
    weight = np.concatenate(
        [np.arange(lane.num_rows) + 2 if lane.kind == "host" else [1] for lane in whole.lanes]
    )
    rank = np.argsort(-whole.slices.dur_ns / weight[whole.slices.row])[:30]
    assert all(
        key in kept
        for key in zip(
            whole.slices.row[rank].tolist(), whole.slices.start_ns[rank].tolist(), strict=True
        )
    )
    stream = next(lane for lane in whole.lanes if lane.kind == "stream")
    on_stream = thin.slices.row == stream.first_row
    depth_three = thin.slices.row == whole.lanes[0].first_row + 3
    assert np.median(thin.slices.count[on_stream]) < np.median(thin.slices.count[depth_three])


def two_steps() -> Trace:
    return trace_of(
        mark("ProfilerStep#1", 0, 90 * US),
        call("cudaLaunchKernel", 10 * US, 12 * US, 1),
        kernel("first", 20 * US, 100 * US, 1),
        mark("ProfilerStep#2", 90 * US, 990 * US),
        python("train.py(7): step", 91 * US, 980 * US),
        python("nn.Module: Linear_0", 600 * US, 920 * US),
        op("aten::linear", 700 * US, 910 * US),
        op("aten::addmm", 800 * US, 908 * US),
        call("cudaLaunchKernel", 900 * US, 905 * US, 2),
        kernel("gemm", 910 * US, 970 * US, 2),
        call("cudaMemcpyAsync", 911 * US, 915 * US, 3),
        copy("Memcpy DtoH", 975 * US, 1000 * US, 3, stream=9, size=64),
        kernel("ncclDevKernel_AllReduce", 920 * US, 990 * US, 4, stream=11),
        call("cudaLaunchKernel", 916 * US, 918 * US, 4),
    )


def test_a_kernel_names_who_launched_it() -> None:
    trace = two_steps()
    timeline = drawn(trace, measure_rank(build_context(trace, None), 5))
    assert (timeline.rank, timeline.window) == (5, (100 * US, 1000 * US))
    assert [(lane.label, lane.kind, lane.num_rows) for lane in timeline.lanes] == [
        ("thread main", "host", 4),
        ("stream 7", "stream", 1),
        ("stream 9", "stream", 1),
        ("collectives", "collectives", 1),
    ]
    slices = timeline.slices
    named = {timeline.whats[w].name: i for i, w in enumerate(slices.what.tolist())}
    gemm = timeline.whats[slices.what[named["gemm"]]]
    assert (gemm.kind, gemm.category, gemm.op, gemm.module, gemm.line) == (
        "kernel",
        "gemm",
        "aten::addmm",
        "Linear_0",
        "train.py:7 in step",
    )
    assert slices.start_ns[slices.launch[named["gemm"]]] == 900 * US
    assert slices.size_bytes[named["Memcpy DtoH"]] == 64
    assert (
        slices.size_bytes[named["gemm"]]
        == slices.size_bytes[named["ncclDevKernel_AllReduce"]]
        == NONE
    )
    assert timeline.whats[slices.what[named["ncclDevKernel_AllReduce"]]].category == "all_reduce"
    depth = {
        name: int(slices.row[named[name]])
        for name in ("ProfilerStep#2", "aten::linear", "aten::addmm")
    }
    assert depth == {"ProfilerStep#2": 0, "aten::linear": 1, "aten::addmm": 2}
    assert timeline.num_frames == 2
    assert "train.py(7): step" not in named


def test_waiting_for_other_ranks_is_taken_from_communication() -> None:
    trace = two_steps()
    facts = measure_rank(build_context(trace, None), 0)
    waiting = union(np.array([972 * US]), np.array([980 * US]))
    timeline = drawn(trace, facts, waiting=waiting)
    assert (timeline.part_ns("comms_wait"), timeline.part_ns("comms_transfer")) == (8 * US, 12 * US)
    assert timeline.gaps.waits_split


def test_a_host_that_runs_ahead_is_shown_from_its_first_launch_at_most_a_step_before() -> None:
    def steps(launch: int) -> Trace:
        return trace_of(
            mark("ProfilerStep#1", 0, 5),
            call("cudaLaunchKernel", 1, 2, 1),
            kernel("first", 100, 1000, 1),
            mark("ProfilerStep#2", 5, 3000),
            call("cudaLaunchKernel", launch, launch + 2, 2),
            kernel("last", 1000, 1500, 2),
        )

    for launch, low in ((700, 700), (20, 500), (1000, 1000)):
        trace = steps(launch)
        timeline = drawn(trace, measure_rank(build_context(trace, None), 0))
        assert (timeline.low_ns, timeline.window) == (low, (1000, 1500))


def test_a_run_on_the_host_alone_is_drawn_too() -> None:
    events = [mark(f"ProfilerStep#{n}", n * 1000, n * 1000 + 990) for n in range(3)]
    work = [op("aten::mm", n * 1000 + 100, n * 1000 + 600) for n in range(3)]
    trace = trace_of(*events, *work)
    facts = measure_rank(build_context(trace, None), 0)
    timeline = drawn(trace, facts)
    assert timeline.where == "host"
    assert_gaps_are_the_partition(timeline, facts)
    assert [lane.kind for lane in timeline.lanes] == ["host"]


def test_too_many_threads_are_left_out_and_counted() -> None:
    threads = [op("aten::add", 200 * US, (300 + n) * US, thread=f"t{n}") for n in range(60)]
    events = [
        mark("ProfilerStep#1", 0, 90 * US),
        call("cudaLaunchKernel", 10 * US, 12 * US, 1),
        kernel("first", 20 * US, 100 * US, 1),
        mark("ProfilerStep#2", 90 * US, 990 * US),
        call("cudaLaunchKernel", 900 * US, 905 * US, 2),
        kernel("gemm", 910 * US, 1000 * US, 2),
    ]
    trace = trace_of(*events, *threads)
    timeline = drawn(trace, measure_rank(build_context(trace, None), 0))
    assert (len(timeline.lanes), timeline.num_lanes_left_out) == (40, 22)
    assert timeline.num_left_out == 22
    assert timeline.num_events == len(timeline.slices) + 22


intervals = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80)), max_size=40)


@given(intervals)
def test_rows_hold_no_two_events_at_once(drawn_events: list[tuple[int, int]]) -> None:
    events = sorted(drawn_events, key=lambda e: (e[0], -e[1]))
    start = np.array([s for s, _ in events], np.int64)
    end = np.array([s + d for s, d in events], np.int64)
    rows = rows_of(start, end, 1000)
    assert (rows != NONE).all()
    for i in range(len(events)):
        for j in range(i):
            assert rows[i] != rows[j] or end[j] <= start[i]


@given(intervals, st.integers(1, 30))
def test_blocks_are_runs_of_one_row_and_not_more_than_asked(
    drawn_events: list[tuple[int, int]], most: int
) -> None:
    events = sorted(drawn_events, key=lambda e: (e[0], -e[1]))
    start = np.array([s for s, _ in events], np.int64)
    end = np.array([s + d for s, d in events], np.int64)
    row = rows_of(start, end, 1000)
    order = np.lexsort((start, row))
    row, start, end = row[order], start[order], end[order]
    blocks = join_small(row, start, end, row + 1, most)
    num_rows = len(np.unique(row))
    assert len(blocks.first) <= max(most, num_rows)
    assert len(blocks.of) == len(events)
    assert all(len(set(row[blocks.of == b].tolist())) == 1 for b in range(len(blocks.first)))
    if len(events) <= most:
        assert len(blocks.first) == len(events)
