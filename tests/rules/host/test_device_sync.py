"""device-sync: waits that starve the device cost, waits of a busy host do not."""

from __future__ import annotations

import pytest

from stepscope.rules.host import device_sync
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import Recorder, gain
from tests.tracing import inputs


def reading(*, kernel_us: float, host_us: float, items: int = 10, probe: bool = False) -> Recorder:
    """Three steps of ten blocks; each block ends with a read."""
    run, sequence = Recorder(), 1
    for number in range(3):
        start = run.now
        for _ in range(items):
            for _ in range(4):
                run.launch("aten::mm", kernel_us=kernel_us, host_us=host_us)
            if probe:
                run.launch(
                    "aten::abs",
                    kernel_us=kernel_us,
                    host_us=host_us,
                    sequence=sequence,
                    fwd_thread=0,
                )
                run.launch(
                    "aten::max",
                    kernel_us=kernel_us,
                    host_us=host_us,
                    sequence=sequence + 1,
                    fwd_thread=0,
                )
                sequence += 2
            run.item(sequence=sequence, fwd_thread=0, detail=inputs("[[]]", '["float"]'))
        run.launch("aten::relu_backward", kernel_us=5, sequence=10_000, fwd_thread=1)
        run.step(number, start)
    return run


def test_reads_that_run_the_device_dry_cost() -> None:
    case = reading(kernel_us=8, host_us=8).case()
    said = device_sync.propose(case)
    assert isinstance(said, Proposal)
    assert gain(case, said) > 1.15
    assert any("aten::item" in line for line in said.evidence)


def test_what_was_computed_for_a_read_goes_with_it() -> None:
    case = reading(kernel_us=20, host_us=19, probe=True).case()
    said = device_sync.propose(case)
    assert isinstance(said, Proposal)
    assert said.cautious is not None
    assert gain(case, said) > 1.3 * case.speedup(said.cautious(case.graph))


def test_a_wait_behind_a_long_queue_costs_little_when_the_device_stays_busy() -> None:
    """One read at the end of a step the device needs 40 times as long for as the host."""
    case = reading(kernel_us=4000, host_us=10, items=1).case()
    assert gain(case, device_sync.propose(case)) < 1.02


def test_no_waits_nothing_said() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(5):
            run.launch("aten::mm", kernel_us=50)
        run.step(number, start)
    assert device_sync.propose(run.case()) is None


@pytest.mark.parametrize("name", ["aten::abs_", "custom::abs"])
def test_operators_with_effects_are_kept(name: str) -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            run.launch("aten::mm", kernel_us=20)
            run.launch(name, kernel_us=20)
            run.item(detail=inputs("[[]]", '["float"]'))
        run.step(number, start)
    case = run.case()
    said = device_sync.propose(case)
    assert isinstance(said, Proposal)
    assert said.change(case.graph).task_ns.sum() >= 0.9 * case.graph.task_ns.sum()
