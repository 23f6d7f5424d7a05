"""What a handler of a signal raises while a line of ours runs reaches the job, once, and the
capture goes on."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.installed import need

need("torch")

import torch

import stepscope.capture
from stepscope.capture.guard import Guard, is_ours
from stepscope.capture.hooks.install import begin, forget_session
from stepscope.capture.session import Session
from stepscope.capture.tape import COLLECTED
from stepscope.protocol.options import Options

OURS = os.path.dirname(stepscope.capture.__file__) + os.sep
NUM_STEPS = 6


class Preempted(Exception):  # noqa: N818 - what a job calls it
    """The job's own."""


class Interrupter:
    """Raises at the n-th instruction of ours, in the way that a handler does: from a function that
    is given the frame."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.num_raised = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.num_raised += 1
                raise Preempted
        return self


def turn(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> None:
    torch.autograd.backward(weight.sum())
    optimizer.step()


def interrupted(at: int, steps: int, step: Callable[[], None]) -> tuple[int, int]:
    """How often it was raised, and how often the job saw it."""
    interrupter, num_caught = Interrupter(at), 0
    for _ in range(steps):
        before = sys.gettrace()
        if interrupter.left > 0:
            sys.settrace(interrupter)
        try:
            step()
        except Preempted:
            num_caught += 1
        finally:
            sys.settrace(before)
    return interrupter.num_raised, num_caught


class Thing:
    """What a job has many of."""


@pytest.fixture(autouse=True, scope="module")
def things() -> list[Thing]:
    """A recording looks through the objects that are there: workers of tests have few that the
    collector knows."""
    return [Thing() for _ in range(500)]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = begin(tmp_path, Options(sample_s=1e6, start_step=2, num_steps=1))
    yield made
    made.finish()
    made.guard.off()
    made.abandon()
    forget_session(made)


POSITIONS = [round(3 * 2.05**n) for n in range(14)]
"""From the first lines of the first step to the last of a recording."""


@pytest.mark.parametrize("at", POSITIONS)
def test_it_is_seen_once_and_the_capture_goes_on(session: Session, at: int) -> None:
    class Own(torch.optim.SGD):
        pass

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Own([weight], lr=0.1)
    num_raised, num_caught = interrupted(at, NUM_STEPS, lambda: turn(optimizer, weight))
    assert num_caught == num_raised
    before = session.step
    for _ in range(8):
        turn(optimizer, weight)
    session.catch_up()
    assert session.guard.is_on
    assert session.step >= before + 7
    numbers = [row[0] for row in session.rows]
    assert numbers == sorted(set(numbers)), "no number twice"
    assert not torch.autograd._profiler_enabled() or session.window is not None  # type: ignore[attr-defined]


def test_every_position_above_lies_in_our_code(tmp_path: Path) -> None:
    made = begin(tmp_path, Options(sample_s=1e6, start_step=2, num_steps=1))
    try:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = type("Own", (torch.optim.SGD,), {})([weight], lr=0.1)
        counter = Interrupter(10**9)
        sys.settrace(counter)
        try:
            for _ in range(NUM_STEPS):
                turn(optimizer, weight)
        finally:
            sys.settrace(None)
        assert 10**9 - counter.left > POSITIONS[-1]
    finally:
        made.finish()
        made.guard.off()
        forget_session(made)


@pytest.mark.planted
def test_faults_of_ours_and_of_strangers_objects_are_not_the_jobs() -> None:
    class Strange:
        @property
        def size(self) -> int:
            raise Preempted

    def raised(call: Callable[[], object]) -> Exception:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever it is
            return error
        raise AssertionError

    assert is_ours(raised(lambda: 1 // 0))
    assert is_ours(raised(lambda: Strange().size))
    guard = Guard()
    guard.watch(lambda: Strange().size)()
    assert not guard.is_on


@pytest.mark.planted
def test_a_fault_is_told_without_a_file_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have forbidden that, by an audit hook."""

    def forbidden(*_: object) -> None:
        raise RuntimeError("opened")

    monkeypatch.setattr("linecache.getlines", forbidden)
    monkeypatch.setattr("builtins.open", forbidden)
    guard, told = Guard(), list[str]()
    guard.report = told.append
    guard.watch(lambda: 1 // 0)()
    (text,) = told
    assert text.endswith("ZeroDivisionError: integer division or modulo by zero\n")
    assert f'File "{__file__}", line' in text


def test_an_interrupt_is_the_jobs() -> None:
    def handler(_: int, frame: FrameType | None) -> None:
        raise Preempted(frame)

    def work() -> None:
        handler(14, sys._getframe())

    guard = Guard()
    with pytest.raises(Preempted):
        guard.watch(work)()
    assert guard.is_on


def asynchronous(kind: type[Exception], file: str) -> Callable[[], None]:
    """Raises in a line of that file, as another thread can, and not through a handler."""
    thread = ctypes.c_ulong(threading.get_ident())
    arrive = partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, thread, ctypes.py_object(kind))
    space: dict[str, Any] = {"arrive": arrive}
    exec(compile("def work():\n arrive()\n for _ in range(9): pass\n", file, "exec"), space)  # noqa: S102 - a frame of that file
    made: Callable[[], None] = space["work"]
    return made


@pytest.mark.parametrize("kind", [Preempted, TimeoutError, RuntimeError, ConnectionError])
def test_what_another_thread_raises_in_this_one_is_the_jobs(kind: type[Exception]) -> None:
    guard = Guard()
    with pytest.raises(kind):
        guard.watch(asynchronous(kind, f"{OURS}any.py"))()
    assert guard.is_on


@pytest.mark.planted
@pytest.mark.parametrize("module", [torch.profiler, threading])
def test_so_it_is_where_what_we_call_runs(module: Any) -> None:
    guard = Guard()
    with pytest.raises(Preempted):
        guard.watch(asynchronous(Preempted, module.__file__))()
    assert guard.is_on
    for kind in (torch.OutOfMemoryError, TimeoutError):
        guard = Guard()
        guard.watch(asynchronous(kind, module.__file__))()
        assert not guard.is_on, "torch and the library raise these themselves"


def test_ctrl_c_that_comes_as_a_collection_is_noted_reaches_the_job(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    arrives = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)
    comes: Any = arrives(("PyErr_SetInterrupt", ctypes.pythonapi))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # In one of Python, as hypothesis and Dask have, the handler would run before it comes to ours.
    ours = [each for each in gc.callbacks if isinstance(each, partial)]
    # Nor may there be garbage of others, whose finalizers are of Python too.
    gc.collect()
    kept, gc.callbacks[:] = [*gc.callbacks], [comes, *ours]
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect()
    finally:
        gc.callbacks[:] = kept
        signal.signal(signal.SIGINT, before)
    assert ours
    assert session.guard.is_on
    assert not lost


def test_a_collection_names_its_line_and_a_thread_without_one_none(session: Session) -> None:
    def ask() -> None:
        gc.collect()

    session.tape.clear()
    ask()
    lines = [part[3][2] for part in session.tape if part[0] == COLLECTED]
    assert (ask.__code__, ask.__code__.co_firstlineno + 1) in lines
    session.tape.clear()
    is_over = threading.Event()
    gc.callbacks.append(lambda phase, _: is_over.set() if phase == "stop" else None)
    try:
        # A function of C has no frame.
        _thread.start_new_thread(gc.collect, ())
        assert is_over.wait(60)
    finally:
        gc.callbacks.pop()
    assert (None, None) in [part[3][2] for part in session.tape if part[0] == COLLECTED]
