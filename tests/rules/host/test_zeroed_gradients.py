"""zeroed-gradients: kernels inside zero_grad."""

from __future__ import annotations

from stepscope.rules.host import zeroed_gradients
from tests.rules.recorder import Recorder, gain


def training(*, zeroed: int) -> Recorder:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            run.launch("aten::mm", kernel_us=5)
        began = run.now
        run.work(20)
        for _ in range(zeroed):
            run.launch("aten::zero_", kernel_us=5)
        run.span("Optimizer.zero_grad#SGD.zero_grad", began)
        run.step(number, start)
    return run


def test_zeros_for_each_gradient_cost() -> None:
    case = training(zeroed=10).case()
    assert gain(case, zeroed_gradients.propose(case)) > 1.5


def test_dropped_gradients_are_left_alone() -> None:
    assert zeroed_gradients.propose(training(zeroed=0).case()) is None
