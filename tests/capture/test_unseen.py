"""What a job can see of being recorded: none of our operators, threads, attributes or frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.installed import need

need("torch")

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.capture.guard import Guard
from stepscope.capture.losses import LossSampler, _unscaled, remember_unscaled
from tests.capture.jobs import record

WATCHFUL = """
import threading
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    num = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.num += 1
        return function(*args, **(kwargs or {}))
counts, before = [], 0
with Count() as mode:
    def count(step):
        global before
        counts.append(mode.num - before)
        before = mode.num
    train(24, count, pause_s=0.03)
print("operators a step", len(set(counts[2:])))
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
def fail(gradient):
    raise RuntimeError("in the job")
model[0].weight.register_hook(fail)
train(1)
"""


def test_a_job_sees_no_operator_no_thread_and_no_frame_of_ours(tmp_path: Path) -> None:
    ended = record(tmp_path, WATCHFUL, "--start-step", "6", "--steps", "4")
    assert (ended.code, ended.out) == (1, b"operators a step 1\n"), ended.err
    printed = ended.err[ended.err.index("Traceback") : ended.err.index("RuntimeError: in the job")]
    assert "stepscope/capture" not in printed
    assert list(ended.folder.glob("rank-0/window-*.json")), "the recording was made"


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Refuses(TorchFunctionMode):
    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.Tensor.detach, "a mode of the job's"
        return func(*args, **(kwargs or {}))


def test_modes_of_the_job_do_not_see_how_a_loss_is_read() -> None:
    sampler = LossSampler()
    with Seen() as seen, Refuses():
        loss = torch.full((), 2.5, requires_grad=True)
        before = list(seen.names)
        sampler.take(loss, 10)
        assert seen.names == before
        torch.ones(1)
        assert seen.names != before, "the mode goes on"
    assert sampler.taken() == [[10, 2.5]]


def test_a_scaled_loss_carries_nothing_of_ours_and_is_forgotten_with_it() -> None:
    guard = Guard()
    remember_unscaled(guard)
    try:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaled = scaler.scale(torch.tensor(2.0, requires_grad=True))
        assert scaled.__dict__ == {}
        assert len(_unscaled) == 1
        del scaled
        assert not _unscaled
    finally:
        guard.off()
