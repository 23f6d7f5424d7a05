"""thread-oversubscription: a word where many threads compute on the host; a promise where they
leave its cores unused."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.diagnosis import Abstention
from stepscope.core.run import RankMetadata
from stepscope.rules.case import Case, case_of
from stepscope.rules.host import thread_oversubscription
from stepscope.rules.proposal import Proposal, Remark
from tests.rules.recorder import US, Recorder, gain
from tests.tracing import Event, mark, op, trace_of

MS = 1000 * US


def computing(*, threads: int, own_us: float = 0) -> Recorder:
    """Steps in which other threads compute, and the driving one for `own_us`."""
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            run.launch("aten::mm", kernel_us=100)
        began = run.now
        run.work(own_us)
        if own_us:
            run.span("aten::addmm", began, kind=op)
        for thread in range(threads):
            run.events.append(
                op("aten::stack", start, start + 2000 * US, thread=f"worker {thread}")
            )
        run.work(3000 - own_us)
        run.launch("aten::mm", kernel_us=100)
        run.step(number, start)
    return run


def test_many_threads_at_once_are_remarked_on() -> None:
    said = thread_oversubscription.propose(computing(threads=8).case())
    assert isinstance(said, Remark)
    assert "8 threads" in said.text


def test_a_host_that_computes_is_not_judged_without_its_cores() -> None:
    said = thread_oversubscription.propose(computing(threads=0, own_us=2500).case())
    assert isinstance(said, Abstention)
    assert "OMP_NUM_THREADS" in said.needs


def test_a_few_threads_and_a_host_that_only_launches_are_left_alone() -> None:
    assert thread_oversubscription.propose(computing(threads=2).case()) is None


def test_loader_work_is_the_loaders() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        run.work(3000)
        run.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start)
        run.events.append(op("aten::stack", start + US, run.now - US))
        run.launch("aten::mm", kernel_us=100)
        run.step(number, start)
    assert thread_oversubscription.propose(run.case()) is None


def on_host(*, threads: int, cores_used: float) -> Case:
    """Steps of 18 ms in operators and 2 ms of Python, on two cores."""
    events: list[Event] = []
    for step in range(4):
        began = step * 20 * MS
        events += [
            op("aten::mm", began + at * 6 * MS, began + (at + 1) * 6 * MS - 1_000)
            for at in range(3)
        ]
        events.append(mark(f"ProfilerStep#{step}", began, began + 20 * MS - 1_000))
    metadata = RankMetadata(rank=0, threads=threads, cores=2, cores_used=cores_used)
    return case_of(build_context(trace_of(*events), None), 0, None, metadata)


def test_threads_that_wait_for_a_core_hold_an_operator_up() -> None:
    case = on_host(threads=16, cores_used=0.55)
    said = thread_oversubscription.propose(case)
    assert isinstance(said, Proposal)
    # Half a core busy for 18 ms is a quarter of them on both.
    assert gain(case, said) == pytest.approx(20 / (2 + 18 / 4), rel=0.03)
    assert said.cautious is not None
    assert case.speedup(said.cautious(case.graph)) == pytest.approx(20 / (2 + 9), rel=0.03)


def test_threads_that_keep_their_cores_busy_may_spin_or_work() -> None:
    assert isinstance(thread_oversubscription.propose(on_host(threads=16, cores_used=2.0)), Remark)
    assert thread_oversubscription.propose(on_host(threads=2, cores_used=0.55)) is None
