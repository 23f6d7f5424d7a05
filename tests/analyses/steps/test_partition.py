"""Every nanosecond of a step in exactly one part, and the right one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.trace import NONE, Kind
from tests.tracing import Event, call, copy, kernel, mark, op, trace_of
from tests.wording import any_mentions


def measured(*events: Event) -> RankFacts:
    facts = measure_rank(build_context(trace_of(*events), None), 0)
    facts.self_check()
    return facts


def parts_of(facts: RankFacts, window: int = 0) -> dict[str, int]:
    assert facts.partition is not None
    return {
        part: facts.partition.parts[part][window]
        for part in PARTS
        if facts.partition.parts[part][window]
    }


def two_steps(*between: Event) -> list[Event]:
    """A short first step, then a window from 100 to 1000 ns (in microseconds below) that ends with
    a kernel."""
    us = 1000
    return [
        mark("ProfilerStep#1", 0, 90 * us),
        call("cudaLaunchKernel", 10 * us, 12 * us, 1),
        kernel("first", 20 * us, 100 * us, 1),
        mark("ProfilerStep#2", 90 * us, 990 * us),
        call("cudaLaunchKernel", 900 * us, 905 * us, 2),
        kernel("last", 910 * us, 1000 * us, 2),
        *between,
    ]


US = 1000


def test_a_gap_while_the_loader_runs_is_input() -> None:
    facts = measured(
        *two_steps(
            mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 95 * US, 895 * US)
        )
    )
    assert parts_of(facts) == {"compute": 90 * US, "idle_input": 795 * US, "idle_launch": 15 * US}


def test_a_gap_while_operators_run_is_launching() -> None:
    ops = [op(f"aten::op{i}", (95 + i * 10) * US, (104 + i * 10) * US) for i in range(81)]
    assert parts_of(measured(*two_steps(*ops))) == {"compute": 90 * US, "idle_launch": 810 * US}


def test_launching_again_after_a_sync_that_drained_the_device_is_the_syncs() -> None:
    sync = call("cudaStreamSynchronize", 50 * US, 110 * US)
    ops = [op(f"aten::op{i}", (110 + i * 10) * US, (119 + i * 10) * US) for i in range(79)]
    assert parts_of(measured(*two_steps(sync, *ops))) == {
        "compute": 90 * US,
        "idle_sync": 800 * US,
        "idle_launch": 10 * US,
    }


def test_allocator_and_compiler_are_told_apart_inside_one_gap() -> None:
    malloc = call("cudaMalloc", 200 * US, 300 * US)
    compiling = op("entire_frame_compile", 400 * US, 700 * US)
    parts = parts_of(measured(*two_steps(malloc, compiling)))
    assert parts["idle_allocator"] == 100 * US
    assert parts["idle_compile"] == 300 * US


def test_a_long_silence_is_idle_for_a_cause_not_seen() -> None:
    ms = 1_000_000
    facts = measured(
        mark("ProfilerStep#1", 0, 90 * US),
        call("cudaLaunchKernel", 10 * US, 12 * US, 1),
        kernel("first", 20 * US, 100 * US, 1),
        mark("ProfilerStep#2", 90 * US, 60 * ms),
        call("cudaLaunchKernel", 50 * ms, 50 * ms + 5 * US, 2),
        kernel("last", 50 * ms + 10 * US, 51 * ms, 2),
    )
    assert parts_of(facts)["idle_other"] == 50 * ms - 100 * US


def test_gaps_between_work_queued_long_before_are_the_devices_own() -> None:
    graph = [kernel(f"g{i}", (200 + i * 50) * US, (240 + i * 50) * US, 9) for i in range(4)]
    facts = measured(*two_steps(call("cudaGraphLaunch", 105 * US, 115 * US, 9), *graph))
    assert parts_of(facts)["idle_other"] == 3 * 10 * US


def test_exposed_comms_and_copies_give_way_to_compute() -> None:
    events = two_steps(
        kernel("ncclDevKernel_AllReduce_Sum", 100 * US, 500 * US, 3, stream=9),
        call("cudaLaunchKernel", 95 * US, 96 * US, 4),
        kernel("gemm", 200 * US, 300 * US, 4),
        copy("Memcpy HtoD (Pinned -> Device)", 450 * US, 600 * US, 5, stream=11),
    )
    parts = parts_of(measured(*events))
    assert parts["compute"] == 190 * US
    assert parts["comms_transfer"] == 300 * US
    assert parts["transfer"] == 100 * US


def test_a_mark_around_the_step_does_not_make_silence_launching() -> None:
    ms = 1_000_000
    events: list[Event] = []
    for i in range(3):
        at = i * 100 * ms
        events += [
            mark("train_step", at, at + 99 * ms),
            call("cudaLaunchKernel", at + 98 * ms, at + 98 * ms + 5 * US, i + 1),
            kernel("gemm", at + 98 * ms + 10 * US, at + 99 * ms, i + 1),
        ]
    parts = parts_of(measured(*events))
    assert parts["idle_other"] > 98 * ms
    assert parts["idle_launch"] < ms


def test_a_collective_that_the_host_carries_out_is_communication() -> None:
    gloo = mark("gloo:all_reduce", 200 * US, 800 * US, thread="gloo worker")
    assert parts_of(measured(*two_steps(gloo)))["comms_transfer"] == 600 * US


def test_the_profilers_own_work_is_not_launching() -> None:
    own = Event(kind=Kind.OVERHEAD, name="Activity Buffer Request", start=200 * US, end=700 * US)
    ops = [op(f"aten::op{i}", (95 + i * 10) * US, (104 + i * 10) * US) for i in range(81)]
    assert parts_of(measured(*two_steps(own, *ops)))["idle_other"] == 500 * US


def test_without_a_device_operators_are_the_work_and_the_loader_is_input() -> None:
    loader = mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 40)
    inside = op("aten::stack", 5, 20)
    facts = measured(mark("ProfilerStep#1", 0, 100), loader, inside, op("aten::mm", 50, 90))
    assert parts_of(facts) == {"compute": 40, "idle_input": 40, "idle_other": 20}


KINDS = st.sampled_from(["kernel", "nccl", "copy", "op", "sync", "malloc", "loader", "launch"])
EVENTS = st.lists(
    st.tuples(KINDS, st.integers(0, 400), st.integers(0, 60), st.integers(0, 2)), max_size=30
)


def random_event(number: int, kind: str, start: int, length: int, lane: int) -> list[Event]:
    end = start + length
    if kind in ("kernel", "nccl"):
        name = "ncclDevKernel_X" if kind == "nccl" else "gemm"
        return [
            call("cudaLaunchKernel", max(0, start - 7), max(0, start - 5), 10 + number),
            kernel(name, start, end, 10 + number, lane),
        ]
    if kind == "copy":
        return [copy("Memcpy HtoD (Pageable -> Device)", start, end, 10 + number, lane)]
    names = {
        "op": "aten::add",
        "sync": "cudaStreamSynchronize",
        "malloc": "cudaMalloc",
        "loader": "enumerate(DataLoader)#x",
        "launch": "cudaLaunchKernel",
    }
    if kind == "op":
        return [op(names[kind], start, end, thread=f"t{lane}")]
    return (
        [mark(names[kind], start, end)]
        if kind == "loader"
        else [call(names[kind], start, end, thread=f"t{lane}")]
    )


@given(EVENTS, st.integers(1, 4))
def test_the_parts_of_any_trace_sum_to_the_step_and_match_point_by_point(
    rows: list[tuple[str, int, int, int]], num_steps: int
) -> None:
    marks = [
        mark(f"ProfilerStep#{i}", i * 120, i * 120 + 110, thread="t0") for i in range(num_steps)
    ]
    events = [e for i, row in enumerate(rows) for e in random_event(i, *row)]
    facts = measured(*marks, *events)
    if facts.partition is None or facts.steps.where != "device":
        return
    compute = {t for e in events if e.name == "gemm" for t in range(e.start, e.end)}
    comms = {
        t for e in events if e.name == "ncclDevKernel_X" for t in range(e.start, e.end)
    } - compute
    copies = (
        {t for e in events if e.name.startswith("Memcpy") for t in range(e.start, e.end)}
        - compute
        - comms
    )
    for i, (low, high) in enumerate(facts.steps.windows):
        window = set(range(low, high))
        assert facts.partition.parts["compute"][i] == len(compute & window)
        assert facts.partition.parts["comms_transfer"][i] == len(comms & window)
        assert facts.partition.parts["transfer"][i] == len(copies & window)
        assert facts.busy_ns[i] == len((compute | comms | copies) & window)


def test_steps_in_which_nothing_was_recorded_have_no_parts() -> None:
    steps = [mark(f"ProfilerStep#{n}", n * 100 * US, (n * 100 + 98) * US) for n in range(3)]
    assert measured(*steps).partition is None
    calls = [call("cudaLaunchKernel", n * 100 * US, (n * 100 + 2) * US, n + 1) for n in range(3)]
    assert measured(*steps, *calls).partition is None
    ranges = [mark("forward", n * 100 * US, (n * 100 + 50) * US) for n in range(3)]
    facts = measured(*steps, *ranges)
    assert parts_of(facts) == {"compute": 50 * US, "idle_other": 50 * US}, "ranges stand for work"


def test_work_that_no_launch_can_be_found_for_is_not_said_to_come_from_before() -> None:
    facts = measured(
        *(call("cudaLaunchKernel", n * US, n * US + 100, NONE) for n in range(4)),
        *(kernel("k", n * US + 200, n * US + 900, NONE) for n in range(4)),
    )
    assert not any("before the recording" in note for note in facts.notes)
    assert any_mentions(facts.notes, "linked", "launch")
