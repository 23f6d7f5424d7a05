"""small-batch: folding micro-steps helps where kernels do not fill the device."""

from __future__ import annotations

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import DeviceProperties, Launch, TraceMeta
from stepscope.rules.case import Case, case_of
from stepscope.rules.host import small_batch
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import Recorder, gain
from tests.tracing import op, trace_of


def accumulating(
    *,
    rounds: int,
    kernel_us: float,
    blocks: int,
    host_us: float = 20,
    alike: bool = True,
    sync_us: float = 0,
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
                    "aten::mm",
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
        run.step(number, start)
    shape = Launch(
        grid=(blocks, 1, 1),
        block=(128, 1, 1),
        registers=None,
        shared_bytes=None,
        occupancy_pct=None,
    )
    events = [e if e.device < 0 else type(e)(**{**vars(e), "detail": shape}) for e in run.events]
    device = DeviceProperties(
        index=0,
        name="a GPU",
        memory_bytes=None,
        num_sms=100,
        compute_capability=None,
        warp_size=None,
    )
    return case_of(
        build_context(trace_of(*events, meta=TraceMeta(path="built", devices=(device,))), None),
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
    assert small_batch.propose(accumulating(rounds=1, kernel_us=3, blocks=10)) is None


def test_two_different_models_are_not_accumulation() -> None:
    assert small_batch.propose(accumulating(rounds=2, kernel_us=3, blocks=10, alike=False)) is None
