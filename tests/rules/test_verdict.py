"""The verdict names the largest part of the step, and says what it could not judge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from stepscope.analyses.rank_context import build_context
from stepscope.core.diagnosis import BOUNDS, Diagnosis, Finding
from stepscope.core.facts import PARTS
from stepscope.core.trace import DeviceProperties
from stepscope.rules.case import case_of
from stepscope.rules.headline import is_unseen, of_findings, of_parts, second_of
from tests.rules.judging import diagnosed
from tests.tracing import Event, call, kernel, mark, op, trace_of
from tests.wording import any_mentions, mentions

MS = 1_000_000


def stepping(
    *inside: Event, work_ms: int = 1, step_ms: int = 10, name: str = "gemm"
) -> list[Event]:
    """Three steps; each launches one kernel of `work_ms` at its end."""
    events: list[Event] = list(inside)
    for i in range(3):
        at = i * step_ms * MS
        launch = at + (step_ms - work_ms) * MS
        events += [
            mark(f"ProfilerStep#{i}", at, at + step_ms * MS - 1),
            call("cudaLaunchKernel", launch - 5000, launch - 1000, i + 1),
            kernel(name, launch, launch + work_ms * MS, i + 1),
        ]
    return events


def judged(*events: Event, step_ns: int | None = None) -> Diagnosis:
    case = case_of(build_context(trace_of(*events), None), 0, step_ns)
    return diagnosed(case, step_ns)


def running_ahead(name: str) -> list[Event]:
    """Four steps that the host launches in 1 ms each while the device needs 10."""
    events: list[Event] = []
    for i in range(4):
        events += [
            mark(f"ProfilerStep#{i}", i * MS, (i + 1) * MS - 1),
            call("cudaLaunchKernel", i * MS + 1000, i * MS + 6000, i + 1),
            kernel(name, i * 10 * MS + 20_000, (i + 1) * 10 * MS + 18_000, i + 1),
        ]
    return events


def test_a_busy_device_is_compute_bound() -> None:
    diagnosis = judged(*running_ahead("ampere_sgemm_128x64_nn"))
    assert diagnosis.verdict.bound == "compute"
    assert diagnosis.verdict.shares["compute"] > 0.8
    assert diagnosis.step.profiled_ms == pytest.approx(10.0)
    # Without the device's peaks rules about kernels were not asked.
    assert "nothing found" not in diagnosis.verdict.summary


def test_kernels_that_only_move_bytes_are_memory_bound() -> None:
    assert judged(*running_ahead("vectorized_elementwise_kernel")).verdict.bound == "memory"


def test_a_device_that_waits_for_the_loader_is_data_bound() -> None:
    loaders = [
        mark("enumerate(DataLoader)#x.__next__", i * 10 * MS, i * 10 * MS + 8 * MS)
        for i in range(3)
    ]
    assert judged(*stepping(*loaders)).verdict.bound == "data"


def test_a_device_that_waits_for_launches_is_host_bound() -> None:
    ops = [op("aten::add", i * 50_000, i * 50_000 + 45_000) for i in range(590)]
    diagnosis = judged(*stepping(*ops))
    assert diagnosis.verdict.bound == "host"
    assert mentions(diagnosis.verdict.summary, "launches work")
    assert diagnosis.replay is not None
    assert abs(diagnosis.replay.error) < 0.03


def test_collectives_that_nothing_hides_are_comms_and_their_wait_is_not_judged() -> None:
    diagnosis = judged(*running_ahead("ncclDevKernel_AllReduce_Sum"))
    assert diagnosis.verdict.bound == "comms"
    assert any_mentions(diagnosis.notes, "comms_wait", "not measured")


def test_a_step_the_host_paces_is_host_bound_however_busy_the_device_looks() -> None:
    """9 of 10 ms busy, but each launch comes when the host gets to it: a faster kernel would change
    nothing."""
    diagnosis = judged(*stepping(work_ms=9))
    assert diagnosis.verdict.bound == "host"
    assert diagnosis.verdict.shares["compute"] == 0.0


def test_nothing_to_judge_is_unknown() -> None:
    assert judged().verdict.bound == "unknown"


def test_shares_are_what_removing_each_resource_gives() -> None:
    shares = judged(*stepping()).verdict.shares
    assert set(shares) <= set(BOUNDS)
    assert all(0 <= share <= 1 for share in shares.values())
    assert shares["host"] == pytest.approx(0.9, abs=0.01)


def one_step(kernel_name: str, begin_ms: float, *also: Event) -> Diagnosis:
    begin = int(begin_ms * MS)
    launch = call("cudaLaunchKernel", begin - 10_000, begin - 5000, 1)
    return judged(
        mark("ProfilerStep#0", 0, 10 * MS), launch, kernel(kernel_name, begin, 9 * MS, 1), *also
    )


@pytest.mark.parametrize(
    ("name", "bound"), [("gemm", "compute"), ("vectorized_elementwise_kernel", "memory")]
)
def test_one_step_alone_is_judged_by_its_kernels_when_the_device_hardly_idles(
    name: str, bound: str
) -> None:
    diagnosis = one_step(name, 0.5)
    assert diagnosis.replay is None
    assert diagnosis.verdict.bound == bound
    assert sum(diagnosis.verdict.shares.values()) == pytest.approx(1.0)


def test_one_step_alone_with_work_and_idle_time_alike_is_not_judged() -> None:
    """Whether the next step's host runs ahead of this one's kernels is not in the trace."""
    diagnosis = one_step("gemm", 4.0)
    assert diagnosis.verdict.bound == "unknown"
    assert mentions(diagnosis.verdict.summary, "two steps")


def test_one_step_alone_that_idles_most_of_its_time_is_bound_by_what_it_waits_for() -> None:
    loader = mark("enumerate(DataLoader)#x.__next__", 0, 7 * MS)
    assert one_step("gemm", 7.5, loader).verdict.bound == "data"


def test_a_device_that_is_named_and_shows_no_work_leaves_the_bound_open() -> None:
    ops = [op("aten::add", i * 100_000, i * 100_000 + 90_000) for i in range(100)]
    trace = trace_of(mark("ProfilerStep#0", 0, 10 * MS), *ops)
    device = DeviceProperties(
        index=0,
        name="NVIDIA H200",
        memory_bytes=None,
        num_sms=None,
        compute_capability=None,
        warp_size=None,
    )
    case = case_of(
        build_context(replace(trace, meta=replace(trace.meta, devices=(device,))), None), 0, None
    )
    diagnosis = diagnosed(case)
    assert diagnosis.verdict.bound == "unknown"
    assert any("ProfilerActivity.CUDA" in note for note in diagnosis.notes)
    assert judged(mark("ProfilerStep#0", 0, 10 * MS), *ops).verdict.bound == "compute"


def test_a_loader_without_its_mark_is_not_taken_for_the_program() -> None:
    """Long stretches without a call, and no mark in the trace that would tell the loader."""
    launches: list[Event] = []
    for i in range(40):
        at = i // 10 * 10 * MS + 8 * MS + i % 10 * 100_000
        names = "abcdefghij"
        launches += [
            call("cudaLaunchKernel", at, at + 5000, i + 1),
            kernel(f"{names[i % 10]}_gemm", at + 10_000, at + 90_000, i + 1),
        ]
    diagnosis = judged(*launches)
    assert diagnosis.facts.ranks[0].steps.source == "launch pattern"
    assert diagnosis.verdict.bound == "unknown"
    assert diagnosis.findings == ()
    assert "no marks" in diagnosis.verdict.summary


def test_lost_events_leave_bounds_that_are_close_open() -> None:
    """Launches without a kernel: the time it would have taken is not in the replay."""
    lost = [
        call("cudaLaunchKernel", (17 + i) * MS, (17 + i) * MS + 2000, 100 + i) for i in range(3)
    ]
    whole, lossy = judged(*stepping(work_ms=4)), judged(*stepping(work_ms=4), *lost)
    assert whole.verdict.bound == "host"
    assert lossy.facts.ranks[0].launches is not None
    assert lossy.facts.ranks[0].launches.num_lost > 0
    assert lossy.verdict.bound == "unknown"
    assert any("lost" in note for note in lossy.notes)


def test_a_bare_trace_says_that_its_step_time_is_the_profiled_one() -> None:
    bare, given = judged(*stepping()), judged(*stepping(), step_ns=8 * MS)
    assert any("--step-ms" in note for note in bare.notes)
    assert not any("--step-ms" in note for note in given.notes)
    assert given.step.ms == 8.0
    assert given.step.profiled_ms == pytest.approx(10.0)


def test_two_resources_that_hold_the_step_up_alike_are_both_named() -> None:
    shares = {"host": 0.3, "data": 0.28, "compute": 0.1}
    parts = {"idle_launch": 0.6, "compute": 0.4}
    assert second_of("host", shares, parts) == "data"
    assert second_of("host", shares | {"data": 0.2}, parts) is None


def test_a_weak_bound_is_told_with_the_largest_part() -> None:
    parts = {"idle_launch": 0.3, "compute": 0.7}
    assert second_of("host", {"host": 0.04, "compute": 0.01}, parts) == "compute"
    assert second_of("memory", {"memory": 0.04, "compute": 0.01}, parts) is None


def test_the_headline_says_where_the_recording_or_the_first_finding_is_of_something_else() -> None:
    rank = judged(*stepping()).facts.median_rank
    parts = {"idle_input": 0.6, "compute": 0.4}
    assert of_parts(rank, parts, ["data"], is_alone=True) == ""
    words = of_parts(rank, parts, ["imbalance"], is_alone=False)
    assert mentions(words, "60% of rank 0", "input")
    gain = Finding(
        code="unfused-pointwise",
        bound="memory",
        summary="",
        action="",
        evidence=(),
        ranks=(0,),
        predicted_speedup=1.2,
        predicted_low=1.1,
        predicted_high=1.3,
        predicted_step_ms=5.0,
    )
    assert of_findings([gain], ["memory"]) == ""
    assert mentions(of_findings([gain], ["host"]), "device memory", "unfused-pointwise", "1.20x")
    larger = structs.replace(gain, code="small-batch", samples_times=4.0)
    assert of_findings([gain, larger], ["memory"]) == ""
    words = of_findings([gain, structs.replace(larger, predicted_speedup=3.0)], ["memory"])
    assert mentions(words, "4 times as large", "3.00x", "another training", "small-batch")


def test_idle_time_without_a_cause_is_not_called_a_wait_for_the_host() -> None:
    parts = dict.fromkeys(PARTS, 0.0)
    assert is_unseen(parts | {"idle_other": 0.6, "idle_launch": 0.3}, "host")
    assert not is_unseen(parts | {"idle_other": 0.3, "idle_launch": 0.6}, "host")
    assert not is_unseen(parts | {"idle_other": 0.6, "compute": 0.3}, "compute")


def test_a_kernel_with_a_wrong_time_is_a_clock_that_is_wrong() -> None:
    *events, last = running_ahead("vectorized_elementwise_kernel")[:9]
    hour = 3_600_000 * MS
    diagnosis = judged(*events, replace(last, start=last.start + hour, end=last.end + hour))
    assert diagnosis.verdict.bound == "unknown"
    assert mentions(diagnosis.verdict.summary, "stood still", "clock jumped")
    assert diagnosis.step.ms is None
    assert diagnosis.findings == ()


def test_idle_time_before_kernels_without_a_cause_is_not_the_kernels() -> None:
    hour = 3_600_000 * MS
    late = [
        replace(each, start=each.start + hour * step, end=each.end + hour * step)
        if each.stream == 7
        else each
        for step, each in ((at // 3, event) for at, event in enumerate(running_ahead("work")[:9]))
    ]
    verdict = judged(*late).verdict
    assert verdict.bound == "unknown"
    assert mentions(verdict.summary, "idles for 100%", "no cause")


def test_a_replay_that_is_not_what_was_recorded_tells_no_gains() -> None:
    case = case_of(build_context(trace_of(*stepping()), None), 0, None)
    assert case.facts.replayed is not None
    off = structs.replace(case.facts.replayed, recorded_error=1.23)
    said = diagnosed(replace(case, facts=structs.replace(case.facts, replayed=off)))
    assert said.verdict.bound == "unknown"
    assert mentions(said.verdict.summary, "misses", "123%")
    assert said.findings == ()
    assert any("123% more than recorded" in each.reason for each in said.abstentions)


def test_idle_time_without_a_cause_is_not_counted_together_with_launching() -> None:
    diagnosis = judged(
        op("aten::mm", 0, 3 * MS),
        call("cudaLaunchKernel", 3 * MS - 9000, 3 * MS - 5000, 1),
        kernel("gemm", 3 * MS, 3 * MS + 20_000, 1),
        call("cudaLaunchKernel", 10 * MS - 9000, 10 * MS - 5000, 2),
        kernel("gemm", 10 * MS, 10 * MS + 20_000, 2),
        op("aten::mm", 10 * MS + 20_000, 13 * MS),
        call("cudaLaunchKernel", 13 * MS - 9000, 13 * MS - 5000, 3),
        kernel("gemm", 13 * MS, 13 * MS + 20_000, 3),
    )
    parts = diagnosis.facts.ranks[0].typical_parts_ns
    assert parts is not None
    assert parts["idle_launch"] > MS
    unseen = parts["idle_other"] / sum(parts.values())
    assert mentions(diagnosis.verdict.summary, f"{unseen:.0%}", "idle time")
