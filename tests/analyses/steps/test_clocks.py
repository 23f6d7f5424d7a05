"""Clocks that cannot be right, and a step that one silence makes unlike the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import Kind, Trace
from stepscope.rules.case import Case, case_of
from stepscope.rules.job_case import job_case_of_rank
from stepscope.rules.judge import judge
from stepscope.rules.partition_verdict import clock_fault, has_step_time
from tests.rules.recorder import US, Recorder
from tests.tracing import Event, call, kernel, trace_of
from tests.wording import mentions

STEP_US = 1_000
MS = 1_000_000


def run(num_steps: int = 4, stall_us: float = 0.0, name: str | None = None) -> Recorder:
    """Steps of ten kernels; `stall_us` in the middle of the third."""
    recorder = Recorder()
    for number in range(num_steps):
        start = recorder.now
        for part in range(10):
            if part == 5 and number == 2 and stall_us:
                began = recorder.now
                recorder.work(stall_us)
                if name is not None:
                    recorder.span(name, began)
            recorder.launch("aten::mm", kernel_us=50, host_us=100, external=recorder.number + 1)
        recorder.step(number, start)
    return recorder


def moved(events: list[Event], when: Callable[[Event], bool], by_us: float) -> Trace:
    """The events, those that are meant at other times."""
    by = int(by_us * US)
    return trace_of(
        *(
            replace(each, start=each.start + by, end=each.end + by) if when(each) else each
            for each in events
        )
    )


def case(trace: Trace) -> Case:
    return case_of(build_context(trace, None), 0, None)


def notes(trace: Trace) -> str:
    return " ".join(build_context(trace, None).trace.notes)


def test_a_run_whose_clock_is_right_is_left_as_it_is() -> None:
    trace = run().trace
    assert build_context(trace, None).trace is trace


@pytest.mark.parametrize("by_us", [500, 10_000, 10_000_000])
def test_a_jump_forward_is_said_and_left_out(by_us: float) -> None:
    recorder = run()
    middle = recorder.now // 2
    usual = case(recorder.trace)
    jumped = case(moved(recorder.events, lambda each: each.start >= middle, by_us))
    assert mentions(jumped.facts.notes, "clock jumped", "stood still")
    for one, other in (
        (jumped.facts.steps.step_interval_ns, usual.facts.steps.step_interval_ns),
        (jumped.unprofiled_ns, usual.unprofiled_ns),
    ):
        assert one == pytest.approx(other, rel=0.1)
    assert max(jumped.facts.steps.step_intervals) < 1.2 * min(jumped.facts.steps.step_intervals)


@pytest.mark.parametrize("num_steps", [2, 4])
def test_so_is_time_between_two_steps_marks_however_few_they_are(num_steps: int) -> None:
    recorder = run(num_steps)
    second = [each for each in recorder.events if each.name.startswith("ProfilerStep")][1].start
    usual = case(recorder.trace)
    jumped = case(moved(recorder.events, lambda each: each.start >= second, 1_200))
    assert mentions(jumped.facts.notes, "clock jumped", "where the profiler alone runs")
    interval_ns = usual.facts.steps.step_interval_ns
    assert jumped.facts.steps.step_interval_ns == pytest.approx(interval_ns, rel=0.1)


def test_a_device_that_works_between_two_marks_is_no_clock() -> None:
    """The host stood still, and the device went on."""
    recorder = run()
    second = [each for each in recorder.events if each.name.startswith("ProfilerStep")][1].start
    starts = range(second, second + 1_200 * US, 10 * US)
    late = [kernel("late", start, start + 9 * US) for start in starts]
    events = [*recorder.events, *late]
    trace = moved(events, lambda each: each.start >= second and each.name != "late", 1_200)
    assert not mentions(notes(trace), "where the profiler alone runs")


def test_a_loader_that_was_seen_to_wait_in_one_step_is_no_clock() -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    assert "clock" not in notes(run(stall_us=2_000, name=name).trace)
    assert "clock" in notes(run(stall_us=2_000).trace)


@pytest.mark.parametrize("by_us", [-300, -2_000, -1_000_000])
def test_time_that_runs_back_gives_no_step_time_and_no_gain(by_us: float) -> None:
    recorder = run()
    middle = recorder.now // 2
    trace = moved(recorder.events, lambda each: each.start >= middle, by_us)
    facts = case(trace).facts
    assert mentions(clock_fault(facts), "clock ran back")
    assert not has_step_time(facts)


def test_numbers_that_begin_anew_are_no_clock() -> None:
    recorder = run()
    events = [
        replace(each, correlation=each.correlation - 20) if each.correlation > 20 else each
        for each in recorder.events
    ]
    assert "clock" not in notes(trace_of(*events))


def test_work_before_its_launch_is_a_clock_that_is_ahead() -> None:
    trace = moved(run().events, lambda each: each.stream == 7, -700)
    facts = case(trace).facts
    assert mentions(clock_fault(facts), "clocks", "disagree")
    assert has_step_time(facts)


def waited(name: str) -> list[Event]:
    """A run that waits by this call at the end of each step."""
    events = run().events
    marks = [each for each in events if each.name.startswith("ProfilerStep#")]
    waits = [call(name, mark.end - 2 * US, mark.end - US, 1_000) for mark in marks]
    assert len(waits) == 4
    return [*events, *waits]


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "cudaStreamSynchronize"])
def test_work_that_ends_after_it_was_waited_for_is_a_clock_that_is_behind(name: str) -> None:
    late = moved(waited(name), lambda each: each.stream == 7, 3_000)
    assert mentions(notes(late), "waited for")


def test_work_whose_launches_are_all_missing_says_nothing_of_the_clock() -> None:
    events = waited("cudaDeviceSynchronize")
    other = [
        replace(each, correlation=each.correlation + 10_000) if each.stream == 7 else each
        for each in events
    ]
    assert "waited for" not in notes(trace_of(*other))


@pytest.mark.parametrize(
    ("name", "is_late"), [("cudaDeviceSynchronize", True), ("cudaStreamSynchronize", False)]
)
def test_a_wait_for_one_stream_says_nothing_of_what_another_still_does(
    name: str, is_late: bool
) -> None:
    events = waited(name)
    marks = [each for each in events if each.name.startswith("ProfilerStep#")]
    for number, mark in enumerate(marks, start=2_000):
        # As NCCL's stream: launched in the step, done after it.
        events += [
            call("cudaLaunchKernel", mark.end - 6 * US, mark.end - 5 * US, number),
            kernel("ncclDevKernel_AllReduce", mark.end - 4 * US, mark.end + 400 * US, 20, number),
        ]
    assert mentions(notes(trace_of(*events)), "waited for") is is_late


def test_a_stretch_without_its_events_is_missing() -> None:
    recorder = run()
    begin, end = recorder.now // 2, recorder.now // 2 + 400 * US
    left = [each for each in recorder.events if not begin <= each.start < end]
    assert "events are missing" in notes(trace_of(*left))


def test_launches_of_work_that_stands_nowhere_are_said() -> None:
    """As where the device is steps behind, and its records end before its work does."""
    events = run().events
    kernels = [each for each in events if each.kind is Kind.KERNEL]
    few, many = set(map(id, kernels[-1:])), set(map(id, kernels[-3:]))
    left = [[each for each in events if id(each) not in gone] for gone in (few, many)]
    assert "launched in the steps" not in notes(trace_of(*left[0])), "one may be on its way"
    assert mentions(notes(trace_of(*left[1])), "events are missing", "3 of 40", "launched")


@pytest.mark.parametrize(("number", "said"), [(2, "1 steps between"), (3, "after the last step")])
def test_a_mark_that_is_missing_is_said(number: int, said: str) -> None:
    left = [each for each in run().events if each.name != f"ProfilerStep#{number}"]
    assert mentions(notes(trace_of(*left)), "events are missing", said, "no mark")


def test_a_device_that_stands_still_with_work_to_do_is_said() -> None:
    recorder = Recorder()
    for number in range(3):
        start = recorder.now
        for _ in range(10):
            recorder.launch("aten::mm", kernel_us=200, host_us=150)
        recorder.step(number, start)
    third = [each for each in recorder.events if each.stream == 7][15].start
    late = moved(recorder.events, lambda each: each.stream == 7 and each.start >= third, 1_000)
    assert mentions(notes(late), "stood still", "clock jumped")


def steps_of(kernel_us: float, host_us: float, pause_us: float = 0.0) -> Recorder:
    recorder = Recorder()
    for number in range(4):
        start = recorder.now
        recorder.work(pause_us)
        for _ in range(10):
            recorder.launch("aten::mm", kernel_us=kernel_us, host_us=host_us)
        recorder.step(number, start)
    return recorder


def test_a_device_whose_work_all_begins_late_has_a_clock_that_is_behind() -> None:
    """As where it jumps before the first step: no step is unlike the others."""
    late = moved(steps_of(20, 20, 600).events, lambda each: each.stream == 7, 400)
    assert mentions(notes(late), "clocks", "disagree", "0.404 ms or more after its launch")
    assert "disagree" not in notes(steps_of(400, 20).trace), "it has other work to do"


def test_a_silence_of_a_device_that_has_work_is_said_before_the_first_whole_step_too() -> None:
    recorder = steps_of(400, 20)
    second = next(each.start for each in recorder.events if each.name.endswith("Step#1"))
    # Inside the first step, whose mark is as much longer.
    by_us = 2_000
    longer = [
        replace(each, end=each.end + by_us * US) if each.name.endswith("Step#0") else each
        for each in recorder.events
    ]
    jumped = moved(longer, lambda each: each.start >= second // 2, by_us)
    assert mentions(notes(jumped), "clock jumped", "before the first whole step")


def test_steps_of_other_lengths_are_said_where_one_takes_ten_times_as_long() -> None:
    recorder = Recorder()
    for number, kernels in enumerate((10, 10, 10, 300)):
        start = recorder.now
        for _ in range(kernels):
            recorder.launch("aten::mm", kernel_us=50, host_us=100)
        recorder.step(number, start)
    assert mentions(notes(recorder.trace), "resemble")


def test_a_gain_of_more_than_twenty_needs_a_second_step_that_shows_it() -> None:
    def judged(slow: tuple[int, ...]) -> tuple[float, str]:
        recorder = Recorder()
        for number in range(3):
            start = recorder.now
            for _ in range(10):
                if number in slow:
                    began = recorder.now
                    recorder.work(5_000)
                    recorder.span("cudaMalloc", began, kind=call)
                recorder.launch("aten::mm", kernel_us=20, host_us=20)
            recorder.step(number, start)
        judgement = judge(job_case_of_rank(case(recorder.trace)))
        reasons = " ".join(each.reason for each in judgement.abstentions)
        gains = (each.predicted_speedup for each in judgement.findings)
        return max(gains, default=1.0), reasons

    gain, reasons = judged((2,))
    assert gain <= 20
    assert mentions(reasons, "one recorded step", "20x")
    gain, reasons = judged((1, 2))
    assert gain > 20
    assert "one recorded step" not in reasons
