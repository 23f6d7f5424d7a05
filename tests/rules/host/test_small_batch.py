"""small-batch: folding micro-steps helps where kernels do not fill the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from stepscope.analyses.rank_context import build_context
from stepscope.core.diagnosis import MemoryChange
from stepscope.core.memory import BatchLine, BatchSize, MemoryUse
from stepscope.core.trace import DeviceProperties, Kind, Launch, TraceMeta
from stepscope.hardware.lookup import find_spec_by_key
from stepscope.rules.case import Case, case_of
from stepscope.rules.host import small_batch
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.batch_size import SIZES, larger_batch
from tests.ranges import left_open
from tests.rules.judging import finding_of
from tests.rules.recorder import Recorder, gain
from tests.tracing import call, copy, op, trace_of
from tests.wording import mentions


def accumulating(
    *,
    rounds: int,
    kernel_us: float,
    blocks: int,
    host_us: float = 20,
    alike: bool = True,
    sync_us: float = 0,
    operator: str = "aten::mm",
    memory_bytes: int | None = None,
    pause: str | None = None,
) -> Case:
    run = Recorder()
    for number in range(3):
        start = run.now
        for part in range(rounds):
            suffix = "" if alike else f"_{part}"
            if sync_us:
                run.item()
                run.work(sync_us)
            for i in range(10):
                run.launch(
                    operator,
                    kernel_us=kernel_us,
                    host_us=host_us,
                    kernel_name=f"forward_{i}{suffix}",
                )
            began = run.now
            for i in range(10):
                run.launch(
                    "aten::mm",
                    kernel_us=kernel_us,
                    host_us=host_us,
                    kernel_name=f"backward_{i}{suffix}",
                )
            run.span("autograd::engine::evaluate_function: MmBackward0", began, kind=op)
        began = run.now
        run.launch("aten::_fused_adamw_", kernel_us=10)
        run.span("Optimizer.step#AdamW.step", began)
        if pause is not None:
            began = run.now
            run.work(5_000)
            run.item()
            run.span(pause, began)
        run.step(number, start)
    shape = Launch(
        grid=(blocks, 1, 1),
        block=(128, 1, 1),
        registers=None,
        shared_bytes=None,
        occupancy_pct=None,
    )
    events = [e if e.device < 0 else type(e)(**{**vars(e), "detail": shape}) for e in run.events]
    spec = None if memory_bytes is None else find_spec_by_key("h200-sxm")
    device = DeviceProperties(
        index=0,
        name="a GPU",
        memory_bytes=memory_bytes,
        num_sms=100,
        compute_capability=None,
        warp_size=None,
    )
    return case_of(
        build_context(trace_of(*events, meta=TraceMeta(path="built", devices=(device,))), spec),
        0,
        None,
    )


def test_kernels_that_leave_the_device_empty_gain() -> None:
    case = accumulating(rounds=8, kernel_us=3, blocks=10)
    said = small_batch.propose(case)
    assert isinstance(said, Proposal)
    assert "8 micro-batches" in said.summary
    assert gain(case, said) > 5
    assert said.changes_numerics


def test_waits_of_each_micro_batch_are_folded_with_it() -> None:
    case = accumulating(rounds=8, kernel_us=3, blocks=10, sync_us=400)
    # What the host does after a wait, before it launches again, is a quarter of each round.
    assert gain(case, small_batch.propose(case)) > 7


def test_kernels_that_fill_the_device_gain_nothing() -> None:
    case = accumulating(rounds=8, kernel_us=300, blocks=100_000)
    assert gain(case, small_batch.propose(case)) < 1.02


def test_one_round_a_step_is_not_accumulation() -> None:
    said = small_batch.propose(accumulating(rounds=1, kernel_us=3, blocks=10))
    assert isinstance(said, Proposal)
    assert "micro-batch" not in said.summary + said.action


def test_two_different_models_are_not_accumulation() -> None:
    assert small_batch.propose(accumulating(rounds=2, kernel_us=3, blocks=10, alike=False)) is None


GB = 10**9


def roomy(case: Case, *, most: int = 16) -> Case:
    """With a peak of 10 GB, 8 of which grow with the batch, and room for so many times it."""
    memory = MemoryUse(
        source="trace",
        label="built",
        peak_bytes=10 * GB,
        capacity_bytes=140 * GB,
        batch=(BatchLine(fixed_bytes=2 * GB, growing_bytes=8 * GB),),
        batches=tuple(
            BatchSize(
                times=times,
                peak_bytes=(2 + 8 * times) * GB,
                reserved_bytes=(3 + 8 * times) * GB if times <= most else None,
            )
            for times in (2, 4, 8, 16)
        ),
    )
    return replace(case, facts=structs.replace(case.facts, memory=memory))


def test_a_batch_that_leaves_the_device_empty_is_priced() -> None:
    case = roomy(accumulating(rounds=1, kernel_us=3, blocks=10, host_us=40))
    said = small_batch.propose(case)
    assert isinstance(said, Proposal)
    assert not said.alternative_to
    assert said.memory == MemoryChange(before_bytes=10 * GB, after_bytes=(2 + 16 * 8) * GB)
    assert [line.split(":")[0] for line in said.evidence[:4]] == [
        "batch x 2",
        "batch x 4",
        "batch x 8",
        "batch x 16",
    ]
    assert mentions(said.evidence[0], "peak of 18.0 GB")
    assert 8 < gain(case, said) <= 16


def test_no_more_is_proposed_than_fits() -> None:
    case = roomy(accumulating(rounds=1, kernel_us=3, blocks=10, host_us=40), most=4)
    said = small_batch.propose(case)
    assert isinstance(said, Proposal)
    assert said.memory is not None
    assert said.memory.after_bytes == (2 + 4 * 8) * GB


def test_a_batch_that_fills_the_device_is_not_blamed() -> None:
    case = roomy(accumulating(rounds=1, kernel_us=300, blocks=10_000))
    assert small_batch.propose(case) is None


def test_without_memory_a_larger_batch_is_an_alternative_to_what_helps_the_host() -> None:
    said = small_batch.propose(accumulating(rounds=1, kernel_us=3, blocks=10, host_us=40))
    assert isinstance(said, Proposal)
    assert "launch-overhead" in said.alternative_to
    assert "4 times as large" in said.action
    assert "not known" in said.action
    assert said.memory is None


def test_what_a_step_moves_says_that_a_larger_batch_fits() -> None:
    """70 us of kernels at 4.8 TB/s move 0.3 GB and hold half of it: four times as much is a
    hundredth of the memory, and more than half a memory of 1 GB; twice as much is more than half of
    0.5 GB."""
    small, middle, large = (
        small_batch.propose(
            accumulating(rounds=1, kernel_us=3, blocks=10, host_us=40, memory_bytes=size)
        )
        for size in (GB // 2, GB, 140 * GB)
    )
    assert isinstance(small, Proposal)
    assert small.alternative_to
    assert "4 times as large" in small.action
    assert isinstance(middle, Proposal)
    assert not middle.alternative_to
    assert "2 times as large" in middle.action
    assert isinstance(large, Proposal)
    assert not large.alternative_to
    assert large.changes_training
    assert "not known" not in large.action
    assert mentions(large.evidence[2], "624 MB of 140 GB")


@pytest.mark.parametrize("pause", ["torch.save at job/train.py(41): main", "Python GC"])
def test_a_pause_in_each_step_is_shared_by_the_samples_after_its_own_fix(pause: str) -> None:
    case = roomy(accumulating(rounds=1, kernel_us=20, blocks=10_000, pause=pause))
    said = small_batch.propose(case)
    assert isinstance(said, Proposal)
    assert said.changes_training
    assert gain(case, said) > 4


def test_what_is_saved_is_copied_once_however_large_the_batch() -> None:
    for pause, times in (("torch.save at job/train.py(41): main", 1), ("Python GC", 4)):
        case = accumulating(rounds=1, kernel_us=20, blocks=10, pause=pause)
        copied = case.context.trace.is_kind(Kind.MEMCPY)[case.graph.task_event]
        larger = larger_batch(case, case.graph, 4, SIZES.roof_share)
        assert np.allclose(4 * larger.task_ns[copied], times * case.graph.task_ns[copied])


def test_without_memory_a_device_that_limits_the_step_is_left_alone() -> None:
    """Its kernels fill a tenth of the device: with room for it, a larger batch would be worth."""
    case = accumulating(rounds=1, kernel_us=300, blocks=10)
    assert small_batch.propose(case) is None
    assert isinstance(small_batch.propose(roomy(case)), Proposal)


def test_steps_as_large_as_the_data_say_are_not_judged() -> None:
    case = accumulating(rounds=1, kernel_us=3, blocks=10, host_us=40, operator="aten::nonzero")
    assert small_batch.propose(roomy(case)) is None


def sending(copies: int) -> Case:
    """A step that sends so many tensors to the device, then launches 20 kernels."""
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(copies):
            run.number += 1
            run.free = max(run.now + 6_000, run.free) + 1_000
            run.events += [
                op("aten::copy_", run.now, run.now + 20_000),
                call("cudaMemcpyAsync", run.now + 2_000, run.now + 4_000, run.number),
                copy("Memcpy HtoD (Pageable -> Device)", run.free - 1_000, run.free, run.number),
            ]
            run.work(20)
        for _ in range(20):
            run.launch("aten::mm", kernel_us=3, host_us=20)
        run.step(number, start)
    return run.case()


def test_samples_that_are_sent_one_by_one_take_the_host_as_long_each() -> None:
    few, many = sending(4), sending(40)
    larger = larger_batch(few, few.graph, 4, SIZES.roof_share)
    assert few.speedup(larger) == pytest.approx(4, rel=0.05)
    # Of 60 turns of the host 40 are of samples.
    larger = larger_batch(many, many.graph, 4, SIZES.roof_share)
    assert many.speedup(larger) == pytest.approx(60 / 45, rel=0.05)


def test_the_range_of_a_larger_batch_is_of_how_long_its_step_takes() -> None:
    case = roomy(accumulating(rounds=1, kernel_us=4, blocks=1))
    said = small_batch.propose(case)
    assert isinstance(said, Proposal)
    finding = finding_of(case, said)
    low, high = left_open(finding)
    assert finding.predicted_speedup > 2
    assert low <= finding.predicted_speedup <= high
    assert finding.predicted_high / high == pytest.approx(1.13, abs=0.02)


def with_derivatives(*, accumulates: bool) -> Case:
    """One batch a step whose loss has a derivative in it: a round of backward before the last, of
    which no weight gets a gradient, or does."""
    run = Recorder()
    for number in range(3):
        start = run.now
        for last in (False, True):
            for i in range(10):
                run.launch("aten::mm", kernel_us=3, host_us=40, kernel_name=f"forward_{last}_{i}")
            began = run.now
            for i in range(10):
                run.launch("aten::mm", kernel_us=3, host_us=40, kernel_name=f"backward_{last}_{i}")
            if last or accumulates:
                name = "torch::autograd::AccumulateGrad"
                run.events.append(op(name, run.now - 2000, run.now - 1000))
            run.span("autograd::engine::evaluate_function: MmBackward0", began, kind=op)
        began = run.now
        run.launch("aten::_fused_adamw_", kernel_us=10)
        run.span("Optimizer.step#AdamW.step", began)
        run.step(number, start)
    return roomy(run.case())


def test_a_derivative_in_the_loss_is_no_micro_batch() -> None:
    case = with_derivatives(accumulates=False)
    assert gain(case, small_batch.propose(case)) > 4
    assert small_batch.propose(with_derivatives(accumulates=True)) is None
