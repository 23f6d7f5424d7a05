"""graph-breaks: a compiled region that goes on in another."""

from __future__ import annotations

from stepscope.rules.host import graph_breaks
from stepscope.rules.proposal import Proposal, Remark
from tests.rules.recorder import Recorder, gain
from tests.tracing import op


def compiled_piece(run: Recorder, kernel_us: float) -> None:
    run.work(50)
    began = run.now
    for _ in range(5):
        run.launch("triton_poi_fused", kernel_us=kernel_us, host_us=8)
    run.span("CompiledFunction", began, kind=op)


def training(
    *, pieces: int, eager: int = 10, nested: bool = True, kernel_us: float = 5
) -> Recorder:
    """A forward in pieces with eager operators after each but the last; resumed pieces stand inside
    the one before."""
    run = Recorder()
    for number in range(4):
        start, opened = run.now, []
        for piece in range(pieces):
            opened.append(run.now)
            compiled_piece(run, kernel_us)
            if not nested:
                run.span("Torch-Compiled Region: 0/0", opened.pop(), kind=op)
            for _ in range(eager if piece < pieces - 1 else 0):
                run.launch("aten::mul", kernel_us=kernel_us, host_us=20)
        for depth in reversed(range(len(opened))):
            run.span(f"Torch-Compiled Region: {depth}/0", opened[depth], kind=op)
            run.work(1)
        began = run.now
        for _ in range(10):
            run.launch("aten::mul_", kernel_us=kernel_us)
        run.span("CompiledFunctionBackward", began, kind=op)
        run.step(number, start)
    return run


def test_a_forward_in_pieces_is_named_with_what_runs_between() -> None:
    case = training(pieces=4).case()
    said = graph_breaks.propose(case)
    assert isinstance(said, Proposal)
    assert said.summary.startswith("3 times a step")
    assert gain(case, said) > 1.3
    assert any("aten::mul" in line for line in said.evidence)


def test_one_region_for_the_whole_forward_is_left_alone() -> None:
    assert graph_breaks.propose(training(pieces=1).case()) is None


def test_blocks_compiled_one_by_one_are_only_remarked_on() -> None:
    assert isinstance(graph_breaks.propose(training(pieces=4, nested=False).case()), Remark)


def test_breaks_the_device_does_not_feel_promise_nothing() -> None:
    case = training(pieces=4, kernel_us=200).case()
    assert gain(case, graph_breaks.propose(case)) < 1.02


def test_an_eager_run_is_left_alone() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            run.launch("aten::mm", kernel_us=5)
        run.step(number, start)
    assert graph_breaks.propose(run.case()) is None
