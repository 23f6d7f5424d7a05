"""looped-optimizer: a loop over parameters costs a host that is the limit, and nothing behind a
busy device."""

from __future__ import annotations

from stepscope.rules.host import looped_optimizer
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import Recorder, gain
from tests.wording import mentions

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{lambda(float)#1}>"
"""As most of ATen's kernels are named."""


def training(*, parameters: int, model_us: float, fused: bool = False) -> Recorder:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            run.launch("aten::mm", kernel_us=model_us)
        began = run.now
        run.work(20)
        if fused:
            run.launch("aten::_fused_adamw_", kernel_us=50, kernel_name="multi_tensor_apply_kernel")
        else:
            for _ in range(parameters):
                for name in ("aten::mul_", "aten::lerp_", "aten::sqrt", "aten::addcdiv_"):
                    run.launch(name, kernel_us=2, host_us=20, kernel_name=ELEMENTWISE)
        run.span("Optimizer.step#AdamW.step", began)
        run.step(number, start)
    return run


def test_a_loop_the_host_is_held_up_by_gains() -> None:
    case = training(parameters=40, model_us=20).case()
    said = looped_optimizer.propose(case)
    assert isinstance(said, Proposal)
    assert gain(case, said) > 1.4
    assert mentions(said.summary, "160 kernels", "40 parameters")


def test_a_loop_behind_a_busy_device_gains_nothing() -> None:
    """The host launches the whole loop while the device still works on the model: its own short
    kernels are all it costs."""
    case = training(parameters=10, model_us=2000).case()
    assert gain(case, looped_optimizer.propose(case)) < 1.02


def test_a_fused_optimizer_is_left_alone() -> None:
    assert looped_optimizer.propose(training(parameters=0, model_us=20, fused=True).case()) is None
