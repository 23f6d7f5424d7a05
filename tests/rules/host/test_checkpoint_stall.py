"""checkpoint-stall: saving inside the step."""

from __future__ import annotations

from stepscope.rules.host import checkpoint_stall
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import Recorder, gain


def saving(name: str, *, us: float, kernel_us: float = 50) -> Recorder:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(10):
            run.launch("aten::mm", kernel_us=kernel_us)
        began = run.now
        run.work(us)
        run.span(name, began)
        run.step(number, start)
    return run


def test_saving_in_each_step_costs() -> None:
    case = saving("save_checkpoint", us=3000).case()
    assert gain(case, checkpoint_stall.propose(case)) > 3


def test_what_saving_is_said_to_take_is_what_its_fix_gives() -> None:
    case = saving("save_checkpoint", us=3000).case()
    said = checkpoint_stall.propose(case)
    assert isinstance(said, Proposal)
    saved_ms = case.step_interval_ns * (1 - 1 / gain(case, said)) / 1e6
    assert f": {saved_ms:.1f} ms a step." in said.summary


def test_a_mark_of_another_kind_is_not_saving() -> None:
    assert checkpoint_stall.propose(saving("validate", us=3000).case()) is None


def test_saving_while_the_device_is_busy_costs_nothing() -> None:
    case = saving("save_checkpoint", us=100, kernel_us=500).case()
    assert gain(case, checkpoint_stall.propose(case)) < 1.02


def test_the_mark_of_the_capture_names_the_line() -> None:
    case = saving("torch.save at job/train.py(41): main", us=3000).case()
    said = checkpoint_stall.propose(case)
    assert gain(case, said) > 3
    assert isinstance(said, Proposal)
    assert [place.line for place in said.locations] == ["job/train.py:41 in main"]
