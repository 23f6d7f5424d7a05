"""thread-oversubscription: a word where many threads compute on the host, no promise anywhere."""

from __future__ import annotations

from stepscope.core.diagnosis import Abstention
from stepscope.rules.host import thread_oversubscription
from stepscope.rules.proposal import Remark
from tests.rules.recorder import US, Recorder
from tests.tracing import op


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
