"""recompilation: compiling inside steady steps."""

from __future__ import annotations

from stepscope.rules.host import recompilation
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import Recorder, gain
from tests.tracing import op
from tests.wording import mentions


def compiling(*steps: int, compile_us: float = 5000) -> Recorder:
    run = Recorder()
    for number in range(4):
        start = run.now
        if number in steps:
            began = run.now
            run.work(compile_us)
            run.span("entire_frame_compile", began, kind=op)
        for _ in range(10):
            run.launch("aten::mm", kernel_us=100)
        run.step(number, start)
    return run


def test_compiling_in_every_step_is_named() -> None:
    case = compiling(0, 1, 2, 3).case()
    said = recompilation.propose(case)
    assert isinstance(said, Proposal)
    assert gain(case, said) > 3
    assert mentions(said.summary, "5.0 ms"), "the first one lies before the first launch"


def test_a_run_that_compiles_nothing_is_left_alone() -> None:
    assert recompilation.propose(compiling().case()) is None


def test_compiling_while_the_device_is_busy_gives_nothing() -> None:
    """A millisecond of device work is queued: a short compile is over before the device has run
    dry."""
    case = compiling(1, 2, 3, compile_us=100).case()
    assert gain(case, recompilation.propose(case)) < 1.02
