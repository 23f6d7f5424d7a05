"""gc-pause: the collector's frames in the step; of other stretches only long ones may be it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.diagnosis import Abstention
from stepscope.core.run import RankMetadata, Stalls
from stepscope.rules.case import case_of
from stepscope.rules.host import gc_pause, python_overhead
from stepscope.rules.proposal import Proposal, Remark
from tests.rules.judging import judge
from tests.rules.recorder import Recorder, gain
from tests.rules.timed import timed_steps
from tests.tracing import python
from tests.wording import mentions


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


COLLECT = "gc.collect() at job/train.py(12): main"


@pytest.mark.parametrize("frame", ["<built-in function collect>", "Python GC", COLLECT])
def test_collections_in_every_step_are_named(frame: str) -> None:
    case = collecting(frame).case()
    said = gc_pause.propose(case)
    assert isinstance(said, Proposal)
    assert gain(case, said) > 2


def test_collections_before_a_steps_first_launch_are_told_of_whole_steps() -> None:
    run = Recorder()
    for number in range(3):
        began = run.now
        run.work(3000)
        run.span("Python GC", began, kind=python)
        for _ in range(50):
            run.launch("aten::mm", kernel_us=20)
        run.step(number, began)
    said = gc_pause.propose(run.case())
    assert isinstance(said, Proposal)
    assert mentions(said.summary, "3.0 ms")


def test_an_unexplained_stretch_asks_for_stacks() -> None:
    said = gc_pause.propose(collecting(None).case())
    assert isinstance(said, Abstention)
    assert "with_stack" in said.needs


def test_a_stretch_in_every_step_as_long_as_a_full_collection_may_be_one() -> None:
    case = collecting(None, pause_us=80_000).case()
    said = gc_pause.propose(case)
    assert isinstance(said, Proposal)
    assert gain(case, said) > 10
    assert said.cautious is not None
    assert case.graph is not None
    assert case.speedup(said.cautious(case.graph)) == pytest.approx(1.0)


def test_a_long_stretch_in_some_steps_is_no_collection_in_each() -> None:
    run = collecting(None, pause_us=80_000, steps=(0, 2, 3))
    assert isinstance(gc_pause.propose(run.case()), Abstention)


def test_another_frame_is_not_the_collector() -> None:
    assert gc_pause.propose(collecting("train.py(10): collect_metrics").case()) is None


def test_collecting_while_the_device_is_busy_promises_nothing() -> None:
    """Fifty kernels of 200 us are queued: the device never notices."""
    assert isinstance(gc_pause.propose(collecting("Python GC", kernel_us=200).case()), Remark)


def test_a_collection_in_one_step_of_four_is_only_remarked_on() -> None:
    assert isinstance(gc_pause.propose(collecting("Python GC", steps=(1,)).case()), Remark)


def test_the_line_that_collects_is_named_without_stacks() -> None:
    run = collecting(None)
    for number in range(4):
        began = 1000 * number
        run.span(COLLECT, began)
    said = gc_pause.propose(run.case())
    assert isinstance(said, Proposal)
    assert [place.line for place in said.locations] == ["job/train.py:12 in main"]


def test_a_run_that_timed_its_collections_needs_no_stacks() -> None:
    """What is not recorded as a collection was none."""
    case = collecting(None).case()
    steps = timed_steps(10, num=9, on_device=True, gc_ns=0)
    timed = replace(case, metadata=RankMetadata(rank=0, steps=steps))
    assert gc_pause.propose(timed) is None


def test_collections_that_few_steps_hold_count_by_the_run() -> None:
    case = collecting("Python GC", steps=(1,)).case()
    stalls = Stalls(num=9, every=30.0, once_ns=1, step_ns=round(case.step_interval_ns / 4))
    timed = replace(case, metadata=RankMetadata(rank=0, stalls={"gc": stalls}))
    (found,) = [each for each in judge(timed).findings if each.code == gc_pause.CODE]
    assert found.predicted_speedup == pytest.approx(1.25, rel=0.02)


def test_a_stretch_taken_for_a_collection_is_no_python_overhead_too() -> None:
    found = judge(collecting(None, pause_us=80_000).case()).findings
    codes = [each.code for each in found if each.predicted_speedup > 1.02]
    assert gc_pause.CODE in codes
    assert python_overhead.CODE not in codes


def test_python_beside_such_a_stretch_is_still_named() -> None:
    run = Recorder()
    for number in range(4):
        start = run.now
        for _ in range(50):
            run.launch("aten::mm", kernel_us=20)
            run.work(900)
        run.work(80_000)
        run.step(number, start)
    said = python_overhead.propose(run.case())
    assert isinstance(said, Proposal)
    assert gain(run.case(), said) == pytest.approx(1.5, rel=0.1)


def test_of_one_rank_of_several_a_stretch_is_no_collection() -> None:
    run = collecting(None, pause_us=80_000)
    trace = replace(run.trace, meta=replace(run.trace.meta, world_size=2))
    case = case_of(build_context(trace, None), 0, None)
    assert isinstance(gc_pause.propose(case), Abstention)
    assert isinstance(python_overhead.propose(case), Proposal)
