"""The call tree from times alone, against a stack."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.host.nesting import (
    ancestor_by_levels,
    ancestor_with,
    by_levels,
    by_stack,
    enclosing,
    is_within,
)
from stepscope.core.compiled import load
from stepscope.core.trace import NONE, Trace
from tests.installed import needs
from tests.tracing import call, index_of, kernel, mark, op, python, trace_of

needs_library = needs("the compiled library")


def parent_name(trace: Trace, name: str) -> str | None:
    at = int(enclosing(trace)[index_of(trace, name)])
    return None if at == NONE else trace.names[trace.name[at]]


def test_enclosing_finds_the_innermost_open_range() -> None:
    trace = trace_of(
        op("linear", 0, 90), op("addmm", 10, 80), call("launch", 20, 30), op("relu", 95, 99)
    )
    assert [parent_name(trace, n) for n in ("linear", "addmm", "launch", "relu")] == [
        None,
        "linear",
        "addmm",
        None,
    ]


def test_enclosing_keeps_threads_apart_and_leaves_the_device_out() -> None:
    trace = trace_of(op("a", 0, 100), op("b", 10, 20, thread="other"), kernel("k", 30, 40))
    assert parent_name(trace, "b") is None
    assert parent_name(trace, "k") is None


def test_a_mark_that_outlives_the_frame_it_began_in_still_encloses() -> None:
    trace = trace_of(
        python("wrapper", 0, 100),
        python("__enter__", 5, 12),
        mark("Optimizer.step", 10, 90),
        python("inner", 20, 80),
        op("adam", 30, 40),
    )
    assert parent_name(trace, "Optimizer.step") == "__enter__"
    assert parent_name(trace, "inner") == "Optimizer.step"
    assert parent_name(trace, "adam") == "inner"


def test_an_event_of_no_length_is_inside_what_surrounds_it() -> None:
    trace = trace_of(op("outer", 0, 10), op("empty", 5, 5), op("after", 6, 8))
    assert parent_name(trace, "empty") == "outer"
    assert parent_name(trace, "after") == "outer"


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Properly nested intervals: each drawn inside one already drawn, or beside it."""
    made: list[tuple[int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while depth and high - at >= 2 and draw(st.booleans()):
            start = draw(st.integers(at, high - 2))
            end = draw(st.integers(start + 1, high))
            made.append((start, end))
            fill(start, end, depth - 1)
            at = end

    fill(0, 200, 4)
    return made


@given(nested())
def test_enclosing_agrees_with_a_stack_on_nested_ranges(ranges: list[tuple[int, int]]) -> None:
    trace = trace_of(*(op(f"e{i}", start, end) for i, (start, end) in enumerate(ranges)))
    stack: list[int] = []
    expected = []
    for i in range(len(trace)):
        while stack and trace.end_ns[stack[-1]] <= trace.start_ns[i]:
            stack.pop()
        expected.append(stack[-1] if stack else NONE)
        stack.append(i)
    assert enclosing(trace).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from("ab")), max_size=25)
)
def test_enclosing_of_any_ranges_is_open_at_the_start_and_has_no_cycle(
    ranges: list[tuple[int, int, str]],
) -> None:
    trace = trace_of(
        *(op(f"e{i}", min(a, b), max(a, b), thread=t) for i, (a, b, t) in enumerate(ranges))
    )
    parent = enclosing(trace)
    for i, at in enumerate(parent.tolist()):
        if at != NONE:
            assert trace.thread[at] == trace.thread[i]
            assert (
                trace.start_ns[at]
                <= trace.start_ns[i]
                < max(trace.end_ns[at], trace.start_ns[at] + 1)
            )
            assert at < i


@needs_library
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from("ab"), st.booleans()),
        max_size=25,
    )
)
def test_a_stack_and_levels_give_the_same(ranges: list[tuple[int, int, str, bool]]) -> None:
    library = load()
    assert library is not None
    trace = trace_of(
        *(
            op(f"e{i}", min(a, b), max(a, b), thread=t)
            if on_host
            else kernel(f"k{i}", min(a, b), max(a, b))
            for i, (a, b, t, on_host) in enumerate(ranges)
        )
    )
    assert by_stack(library, trace).tolist() == by_levels(trace).tolist()


def test_ancestor_with_finds_innermost_and_outermost() -> None:
    trace = trace_of(mark("m1", 0, 100), mark("m2", 10, 90), op("o", 20, 80), call("c", 30, 40))
    parent, start = enclosing(trace), np.array([index_of(trace, "c"), NONE])
    marked = np.array([trace.names[code].startswith("m") for code in trace.name])
    assert ancestor_with(parent, start, marked).tolist() == [index_of(trace, "m2"), NONE]
    assert ancestor_with(parent, start, marked, outermost=True).tolist() == [
        index_of(trace, "m1"),
        NONE,
    ]


@needs_library
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=25),
    st.lists(st.integers(NONE, 24), max_size=10),
    st.booleans(),
)
def test_one_by_one_and_by_levels_the_ancestors_are_the_same(
    ranges: list[tuple[int, bool]], events: list[int], outermost: bool
) -> None:
    parent = np.array(
        [max(i - back, 0) if i and back else NONE for i, (back, _) in enumerate(ranges)]
    )
    marked = np.array([is_marked for _, is_marked in ranges], np.bool_)
    asked = np.array([event for event in events if event < len(ranges)], np.int64)
    parent = parent.astype(np.int64)
    one_by_one = ancestor_with(parent, asked, marked, outermost=outermost)
    by_level = ancestor_by_levels(parent, asked, marked, outermost=outermost)
    assert one_by_one.tolist() == by_level.tolist()


def test_is_within_counts_the_event_itself_and_its_own_thread_alone() -> None:
    trace = trace_of(
        mark("m", 0, 100),
        call("c", 30, 40),
        op("o", 20, 80, thread="other"),
        call("d", 30, 40, thread="other"),
    )
    marked = np.array([trace.names[code] == "m" for code in trace.name])
    events = np.array([index_of(trace, name) for name in ("m", "c", "o", "d")] + [NONE])
    within = is_within(trace, enclosing(trace), events, marked)
    assert within.tolist() == [True, True, False, False, False]
    nothing = np.zeros(len(trace), np.bool_)
    assert not is_within(trace, enclosing(trace), events, nothing).any()
