from __future__ import annotations

from stepscope.analyses.links import link
from stepscope.analyses.steps.windows import StepCut, cut_steps
from stepscope.core.trace import NONE, Kind, Trace
from tests.tracing import Event, call, copy, index_of, kernel, mark, op, python, trace_of


def cut(trace: Trace) -> StepCut:
    result = cut_steps(trace, link(trace))
    result.steps.self_check()
    return result


def run_ahead(num_steps: int, host_ns: int = 10, device_ns: int = 100) -> list[Event]:
    """A host that launches a step in `host_ns` while the device needs `device_ns` for it."""
    events: list[Event] = []
    for i in range(num_steps):
        at = i * host_ns
        events += [
            mark(f"ProfilerStep#{i}", at, at + host_ns - 1),
            call("cudaLaunchKernel", at + 1, at + 2, i + 1),
            kernel("work", 5 + i * device_ns, 5 + (i + 1) * device_ns, i + 1),
        ]
    return events


def test_steps_are_cut_where_the_work_is_not_where_the_host_is() -> None:
    steps = cut(trace_of(*run_ahead(4))).steps
    assert steps.source == "ProfilerStep"
    assert steps.step_intervals == (100, 100, 100)
    assert set(steps.host_ns) == {9}


def test_work_launched_before_the_recording_belongs_to_no_step() -> None:
    late = kernel("stale", -50, -10, 999)
    trace = trace_of(late, *run_ahead(3))
    assert cut(trace).step_of[index_of(trace, "stale")] == NONE


def test_unlinked_work_follows_the_work_before_it_on_its_stream() -> None:
    trace = trace_of(*run_ahead(2), kernel("lost", 90, 95, 777, stream=7))
    assert cut(trace).step_of[index_of(trace, "lost")] == 0


def test_one_step_with_work_of_the_one_before_still_has_an_interval() -> None:
    before = kernel("before", -40, 2, 999)
    steps = cut(trace_of(before, *run_ahead(1))).steps
    assert steps.windows == ((2, 105),)
    assert steps.is_step_interval


def test_one_step_alone_has_no_interval() -> None:
    steps = cut(trace_of(*run_ahead(1))).steps
    assert not steps.is_step_interval
    assert steps.num_seen == 1


def test_a_users_mark_around_the_launches_is_a_step() -> None:
    events: list[Event] = []
    for i in range(3):
        at = i * 100
        events += [
            mark(f"train iteration {i}", at, at + 90),
            call("cudaLaunchKernel", at + 1, at + 2, i + 1),
            kernel("k", at + 10, at + 50, i + 1),
        ]
    steps = cut(trace_of(*events)).steps
    assert steps.source == "mark 'train iteration #'"
    assert steps.step_intervals == (100, 100)


def test_optimizer_steps_tell_steps_apart() -> None:
    events: list[Event] = []
    for i in range(3):
        at = i * 100
        events += [
            call("cudaLaunchKernel", at + 1, at + 2, 2 * i + 1),
            kernel("forward", at + 10, at + 50, 2 * i + 1),
            mark("Optimizer.step#AdamW.step", at + 60, at + 90),
            call("cudaLaunchKernel", at + 61, at + 62, 2 * i + 2),
            kernel("adam", at + 65, at + 80, 2 * i + 2),
        ]
    steps = cut(trace_of(*events)).steps
    assert steps.source == "Optimizer.step"
    assert steps.step_intervals == (100, 100)


def test_a_repeating_launch_pattern_tells_steps_apart() -> None:
    names = ["embed", "mm", "relu", "mm", "relu", "head", "loss", "adam"]
    events = [
        kernel(name, i * 800 + j * 100, i * 800 + j * 100 + 90, stream=7)
        for i in range(5)
        for j, name in enumerate(names)
    ]
    steps = cut(trace_of(*events)).steps
    assert steps.source == "launch pattern"
    assert set(steps.step_intervals) == {800}


def test_a_launch_pattern_is_counted_from_the_recordings_end() -> None:
    """The batch is copied before the first kernel and belongs to the step it is for; a first step
    that is cut short is none."""
    names = ["embed", "mm", "relu", "mm", "relu", "head", "loss", "adam"]
    events: list[Event] = []
    for i in range(4):
        at = i * 2000
        events += [
            copy("Memcpy HtoD (Pinned -> Device)", at, at + 50, 100 * i + 9),
            call("cudaMemcpyAsync", at, at + 1, 100 * i + 9),
        ]
        for j, name in enumerate(names):
            launch = at + 100 + j * 100
            events += [
                call("cudaLaunchKernel", launch, launch + 1, 100 * i + j),
                kernel(name, launch + 5, launch + 95, 100 * i + j),
            ]
    steps = cut(trace_of(*events)).steps
    assert (steps.source, steps.num_seen, set(steps.step_intervals)) == (
        "launch pattern",
        4,
        {2000},
    )
    late = cut(trace_of(*events[12:])).steps
    assert (late.source, late.num_seen, set(late.step_intervals)) == ("launch pattern", 3, {2000})


def test_repeating_layers_of_one_step_are_not_steps() -> None:
    layer = ["norm", "qkv", "attn", "proj", "mlp_up", "mlp_down"]
    names = ["embed", "rope", *(layer * 12), "final_norm", "logits", "argmax"]
    events = [kernel(name, i * 100, i * 100 + 90) for i, name in enumerate(names)]
    assert cut(trace_of(*events)).steps.source == "whole trace"


def test_with_several_optimizers_a_step_ends_with_the_last_of_them() -> None:
    events: list[Event] = []
    for i in range(4):
        at = i * 100
        events += [
            call("cudaLaunchKernel", at + 1, at + 2, 2 * i + 1),
            kernel("discriminate", at + 5, at + 30, 2 * i + 1),
            mark("Optimizer.step#Adam.step", at + 35, at + 40),
            call("cudaLaunchKernel", at + 50, at + 51, 2 * i + 2),
            kernel("generate", at + 55, at + 80, 2 * i + 2),
            mark("Optimizer.step#AdamW.step", at + 85, at + 90),
        ]
    steps = cut(trace_of(*events)).steps
    assert steps.num_seen == 4
    assert set(steps.step_intervals) == {100}


def test_without_a_device_a_users_marks_give_one_window_fewer() -> None:
    events = [mark("my step", i * 1000, i * 1000 + 600) for i in range(4)]
    steps = cut(
        trace_of(*events, *(op("aten::mm", i * 1000 + 10, i * 1000 + 500) for i in range(4)))
    ).steps
    assert steps.step_intervals == (1000, 1000, 1000)


def test_the_profilers_own_span_is_no_step() -> None:
    span = Event(kind=Kind.OVERHEAD, name="PyTorch Profiler (0)", start=0, end=1000)
    assert cut(trace_of(span)).steps.windows == ()


def test_without_a_device_the_host_marks_are_the_windows() -> None:
    events = [mark(f"ProfilerStep#{i}", i * 100, i * 100 + 95) for i in range(3)]
    steps = cut(
        trace_of(*events, *(op("aten::mm", i * 100 + 10, i * 100 + 60) for i in range(3)))
    ).steps
    assert steps.where == "host"
    assert steps.windows == ((0, 100), (100, 200), (200, 295))


def test_steps_without_device_work_do_not_stretch_the_interval() -> None:
    """Steps 0 and 1 launch work, 2 to 4 none, 5 and 6 again: the window from 1 to 5 is no step."""
    events: list[Event] = [mark(f"ProfilerStep#{i}", i * 100, i * 100 + 99) for i in range(7)]
    for number, i in enumerate((0, 1, 5, 6)):
        events += [
            call("cudaLaunchKernel", i * 100 + 1, i * 100 + 2, number + 1),
            kernel("k", i * 100 + 10, i * 100 + 60, number + 1),
        ]
    steps = cut(trace_of(*events)).steps
    assert steps.step_intervals == (100, 100)
    assert (steps.num_seen, steps.num_marked) == (4, 7)


def test_marks_inside_python_frames_still_tell_steps_apart() -> None:
    events: list[Event] = [python("train.py(10): main", 0, 1000)]
    for i in range(3):
        at = i * 100
        events += [
            mark("my step", at + 1, at + 95),
            mark("my forward", at + 2, at + 50),
            call("cudaLaunchKernel", at + 3, at + 4, i + 1),
            kernel("k", at + 10, at + 50, i + 1),
        ]
    assert cut(trace_of(*events)).steps.source == "mark 'my step'"


def test_no_events_give_no_windows() -> None:
    steps = cut(trace_of()).steps
    assert steps.windows == ()
    assert steps.num_seen == 0
