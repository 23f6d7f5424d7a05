"""gc-pause: the collector's frames in the step; a stretch nobody explains is not blamed on it."""

from __future__ import annotations

import pytest

from stepscope.core.diagnosis import Abstention
from stepscope.rules.host import gc_pause
from stepscope.rules.proposal import Proposal, Remark
from tests.rules.recorder import Recorder, gain
from tests.tracing import python


def collecting(
    frame: str | None,
    *,
    pause_us: float = 3000,
    kernel_us: float = 20,
    steps: tuple[int, ...] = (0, 1, 2, 3),
) -> Recorder:
    run = Recorder()
    for number in range(4):
        start = run.now
        for _ in range(50):
            run.launch("aten::mm", kernel_us=kernel_us)
        if number in steps:
            began = run.now
            run.work(pause_us)
            if frame is not None:
                run.span(frame, began, kind=python)
        run.step(number, start)
    return run


@pytest.mark.parametrize("frame", ["<built-in function collect>", "Python GC"])
def test_collections_in_every_step_are_named(frame: str) -> None:
    case = collecting(frame).case()
    said = gc_pause.propose(case)
    assert isinstance(said, Proposal)
    assert gain(case, said) > 2


def test_an_unexplained_stretch_asks_for_stacks() -> None:
    said = gc_pause.propose(collecting(None).case())
    assert isinstance(said, Abstention)
    assert "with_stack" in said.needs


def test_another_frame_is_not_the_collector() -> None:
    assert gc_pause.propose(collecting("train.py(10): collect_metrics").case()) is None


def test_collecting_while_the_device_is_busy_promises_nothing() -> None:
    """Fifty kernels of 200 us are queued: the device never notices."""
    assert isinstance(gc_pause.propose(collecting("Python GC", kernel_us=200).case()), Remark)


def test_a_collection_in_one_step_of_four_is_only_remarked_on() -> None:
    assert isinstance(gc_pause.propose(collecting("Python GC", steps=(1,)).case()), Remark)
