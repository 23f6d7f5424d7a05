"""What a job can see of being recorded: none of our operators, threads, attributes or frames."""

from __future__ import annotations

import _thread
import functools
import io
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed import need

need("torch")

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.capture.describe.batch import batch_notes
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.install import begin, forget_session
from stepscope.capture.hooks.probes import Probe, watch
from stepscope.capture.losses import LossSampler, _unscaled, remember_unscaled
from stepscope.protocol.options import Options
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


def test_a_call_needs_no_more_room_on_the_stack_than_without_us() -> None:
    # What runs for the first time needs more.
    guard = Guard()
    _, before = ([fits(room) for room in range(20)] for _ in range(2))
    assert set(before) == {True, False}
    try:
        assert watch(guard, shallow, Probe(lambda *_: deep(9), lambda *_: deep(9)))
        assert [fits(room) for room in range(20)] == before
    finally:
        guard.off()


def shallow() -> int:
    return deep(2)


def deep(num: int) -> int:
    return num if num == 0 else deep(num - 1)


def fits(room: int) -> bool:
    """Whether it can be called where so many frames are left."""
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 60)
    try:
        return lowered(60 - room)
    except RecursionError:
        return False
    finally:
        sys.setrecursionlimit(limit)


def lowered(num: int) -> bool:
    return lowered(num - 1) if num > 0 else shallow() == 0


def test_clocks_that_the_job_replaces_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    session = begin(tmp_path, Options(sample_s=1e6))
    try:
        for name in ("perf_counter_ns", "thread_time_ns", "time_ns", "monotonic"):
            monkeypatch.setattr(time, name, functools.partial(asked.append, name))
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(20):
            for batch in (*Numbers(), *torch.utils.data.DataLoader(Numbers())):
                torch.autograd.backward((weight * batch).sum())
            optimizer.step()
        torch.nn.ReLU().eval()
        torch.save({}, io.BytesIO())
        logging.getLogger("job").handle(logging.makeLogRecord({"levelno": 10}))
        session.catch_up()
        assert session.step == 20
        assert session.guard.is_on
    finally:
        session.finish()
        session.guard.off()
        forget_session(session)
    assert asked == []


def test_methods_that_the_job_replaces_are_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def replace(holder: Any, name: str) -> None:
        real = getattr(holder, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            called.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(holder, name, counted)

    class Own(torch.Tensor):
        def numel(self) -> int:
            called.append("its numel")
            return super().numel()

    for name in ("item", "numel", "detach", "reshape", "element_size", "__float__"):
        replace(torch.Tensor, name)
    replace(_thread, "start_new_thread")
    sampler, loss = LossSampler(), torch.full((), 2.5, requires_grad=True)
    sampler.take(loss, 10)
    assert batch_notes([torch.ones(3), torch.ones(2).as_subclass(Own)])["size_bytes"] == 20
    session = begin(tmp_path, Options())
    try:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
        optimizer.step()
        assert session.writer is not None
    finally:
        session.finish()
        session.guard.off()
        forget_session(session)
    assert (called, sampler.taken()) == ([], [[10, 2.5]])


class Numbers(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(2)
        yield 2


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
