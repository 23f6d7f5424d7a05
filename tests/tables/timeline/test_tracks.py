"""What a timeline draws of our own: it adds up to what the report says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stepscope.analyses.collectives.matching import match
from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.collectives.waits import with_waits
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.core.facts import PARTS
from stepscope.core.trace import NONE
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.tables.perfetto.timeline import MAX_LANES, nest
from stepscope.tables.timeline.job_clock import RankClock, align
from stepscope.tables.timeline.tracks import (
    Spans,
    allocator_memory,
    collective_bandwidth,
    copy_bandwidth,
    partition_spans,
    queue_depth,
    step_spans,
)
from tests.builders import source
from tests.rank_records import Call, collective_records
from tests.shared_data import DEMO, lab_traces
from tests.tracing import call, copy, kernel, mark, trace_of
from tests.wording import mentions

US = 1000


def lengths(spans: Spans) -> dict[str, int]:
    found: Counter[str] = Counter()
    for start, end, name in zip(
        spans.start_ns.tolist(), spans.end_ns.tolist(), spans.name.tolist(), strict=True
    ):
        found[spans.names[name]] += end - start
    return dict(found)


def test_the_parts_of_the_demo_are_the_reports_and_fill_its_steps() -> None:
    found = build_context(read_trace(source(DEMO), use_cache=False), None)
    facts = measure_rank(found, 0)
    spans, steps = partition_spans(found), step_spans(found)
    spans.self_check()
    steps.self_check()
    assert facts.partition is not None
    assert lengths(spans) == {
        part: sum(values) for part, values in facts.partition.parts.items() if sum(values)
    }
    assert (
        sum(lengths(spans).values())
        == int((steps.end_ns - steps.start_ns).sum())
        == sum(facts.steps.step_intervals)
    )


def test_waiting_for_another_rank_is_told_apart_as_in_the_report() -> None:
    paths = lab_traces("ranks2/ddp_straggler.slow.*")
    found = [
        build_context(read_trace(Source(path=path, label=str(path)), use_cache=False), None)
        for path in paths
    ]
    rank_records = [collective_records_of(one, rank) for rank, one in enumerate(found)]
    matched = match(rank_records)
    waited = 0
    for rank, one in enumerate(found):
        facts = with_waits(measure_rank(one, rank), rank_records[rank], matched)
        spans = partition_spans(one, rank_records[rank], matched)
        spans.self_check()
        assert facts.partition is not None
        assert lengths(spans) == {
            part: sum(values) for part, values in facts.partition.parts.items() if sum(values)
        }
        waited += lengths(spans).get("comms_wait", 0)
    assert waited > 0


def test_without_steps_there_is_nothing_to_draw() -> None:
    found = build_context(trace_of(), None)
    assert len(step_spans(found)) == len(partition_spans(found)) == 0
    assert partition_spans(found).names == PARTS
    assert queue_depth(found) is None
    assert copy_bandwidth(found) is None
    assert collective_bandwidth(None) is None
    assert allocator_memory(found) == []


def test_the_queue_grows_with_launches_and_shrinks_as_work_begins() -> None:
    trace = trace_of(
        mark("ProfilerStep#1", 0, 100 * US),
        call("cudaLaunchKernel", 10 * US, 12 * US, 1),
        call("cudaLaunchKernel", 20 * US, 22 * US, 2),
        kernel("a", 15 * US, 50 * US, 1),
        kernel("b", 50 * US, 60 * US, 2),
        kernel("unlinked", 70 * US, 80 * US, 9),
    )
    found = queue_depth(build_context(trace, None))
    assert found is not None
    assert list(zip(found.time_ns.tolist(), found.value.tolist(), strict=True)) == [
        (10 * US, 1.0),
        (15 * US, 0.0),
        (20 * US, 1.0),
        (50 * US, 0.0),
    ]


def test_copies_under_way_together_add_up() -> None:
    trace = trace_of(
        copy("Memcpy HtoD (Pinned -> Device)", 0, 1000, 1, size=3000),
        copy("Memcpy DtoH (Device -> Pinned)", 500, 1000, 2, stream=8, size=1000),
        copy("Memcpy HtoD (size not recorded)", 2000, 3000, 3),
    )
    found = copy_bandwidth(build_context(trace, None))
    assert found is not None
    assert found.time_ns.tolist() == [0, 500, 1000]
    assert found.value.tolist() == pytest.approx([3e9, 5e9, 0.0])
    assert found.value[-1] == 0.0


def test_a_collective_moves_its_message_in_its_time() -> None:
    found = collective_bandwidth(
        collective_records(
            0, [Call(at=10, end=14, bytes=8_000_000), Call(at=20, end=30, bytes=None)], num_steps=1
        )
    )
    assert found is not None
    assert found.value.tolist() == pytest.approx([2e9, 0.0])
    assert int(found.time_ns[1] - found.time_ns[0]) == 4_000_000


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=60)


@given(INTERVALS)
def test_slices_of_a_lane_nest_and_open_and_close_in_turn(raw: list[tuple[int, int]]) -> None:
    slices = sorted(((at, at + dur) for at, dur in raw), key=lambda one: (one[0], -one[1]))
    start, end = (
        np.array([s for s, _ in slices], np.int64),
        np.array([e for _, e in slices], np.int64),
    )
    nested = nest(start, end)
    assert sorted(i if i >= 0 else ~i for i in nested.order.tolist()) == sorted(
        [*range(len(slices))] * 2
    )
    stacks: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for one in nested.order.tolist():
        event = one if one >= 0 else ~one
        lane, time = int(nested.lane[event]), slices[event][0 if one >= 0 else 1]
        assert time >= times.get(lane, 0)
        times[lane] = time
        if one >= 0:
            stacks.setdefault(lane, []).append(event)
        else:
            assert stacks[lane].pop() == event
    crossing = any(a[0] < b[0] < a[1] < b[1] for a in slices for b in slices)
    assert (int(nested.lane.max(initial=0)) > 0) == crossing


def test_what_overlaps_deeper_than_the_lanes_is_left_out() -> None:
    num = MAX_LANES + 5
    nested = nest(np.arange(num, dtype=np.int64), np.arange(num, dtype=np.int64) + 1000)
    assert nested.lane.tolist() == [*range(MAX_LANES)] + [NONE] * 5
    assert len(nested.order) == 2 * MAX_LANES


CALLS = [Call(at=at, end=at + 3 + at / 100) for at in (10, 41, 107, 330, 620)]


def head(rank: int, off_ns: int, base_ns: int, calls: list[Call] | None = CALLS) -> RankClock:
    """A rank whose clock runs ahead of its base by `off_ns`."""
    mine = None if calls is None else collective_records(rank, calls)
    if mine is not None:
        for name in ("start_ns", "end_ns", "exposed_start_ns", "exposed_end_ns"):
            getattr(mine, name)[:] += off_ns
        mine = structs.replace(mine, base_ns=base_ns)
    return RankClock(
        rank=rank, base_ns=base_ns, first_ns=off_ns, last_ns=off_ns + 10**9, collective_records=mine
    )


def test_ranks_are_placed_so_that_their_collectives_end_together() -> None:
    heads = [head(0, 0, 10**15), head(1, 3_000_000_000, 10**15 - 7_000)]
    placed = align(heads)
    ends = [
        one.collective_records.end_ns + shift
        for one, shift in zip(heads, placed.shift_ns, strict=True)
        if one.collective_records is not None
    ]
    assert ends[0].tolist() == ends[1].tolist()
    assert min(one.first_ns + shift for one, shift in zip(heads, placed.shift_ns, strict=True)) == 0
    assert placed.origin_wall_ns == 10**15
    assert mentions(placed.notes[0], "2 ranks", "rank 0", "-2,999,993.0 us")


def test_a_rank_without_collectives_stands_by_its_wall_clock_and_a_note_says_so() -> None:
    heads = [head(0, 0, 10**15), head(1, 0, 10**15), head(2, 500, 10**15 + 40, None)]
    placed = align(heads, room_ns=100)
    assert placed.shift_ns == (100, 100, 140)
    assert placed.origin_wall_ns == 10**15 - 100
    assert mentions(placed.notes[0], "2 ranks", "rank 0", "unmoved")
    assert mentions(placed.notes[-1], "nothing", "rank(s) 2 to")


def test_traces_of_one_rank_are_not_compared() -> None:
    placed = align([head(0, 0, 10**15), head(0, 0, 10**15 + 60)])
    assert placed.matched is None
    assert placed.shift_ns == (0, 60)
    assert "wall clocks" in placed.notes[0]


def test_a_single_rank_needs_no_note() -> None:
    assert align([head(3, 77, 10**15)]).notes == ()
    assert align([head(3, 77, 10**15)]).shift_ns == (-77,)
