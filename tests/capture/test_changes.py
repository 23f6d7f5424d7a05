"""Everything that the capture changes in a process is in its table, and what it watches stays what
it is."""

from __future__ import annotations

import builtins
import copy
import gc
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capture.jobs import LIGHT
from tests.installed import need, package

need("torch")
cloudpickle = package("cloudpickle")

import torch
from torch.utils.data import IterableDataset

from stepscope.capture.hooks.changes import EVALUATIONS, LOGGERS, WATCHED, watched_function
from stepscope.capture.hooks.install import begin, forget_session
from stepscope.capture.session import Session
from stepscope.protocol.options import Options

CODES = {f"{function.__module__}.{function.__qualname__}"
         for name in WATCHED if (function := watched_function(name)) is not None}  # fmt: skip
CODES |= {
    f"{module}.{kind}.{method}"
    for module, (kind, methods) in (LOGGERS | EVALUATIONS).items()
    for method in methods
}


def attributes() -> dict[str, Any]:
    """Each attribute of each module and class that is loaded, and each function's code."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(("torch", "logging", "builtins", "gc", "sys", "threading", "signal")):
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                path = f"{name}.{attribute}"
                found[path] = value
                if issubclass(type(value), type):
                    found |= {f"{path}.{key}": part for key, part in list(vars(value).items())}
    codes = {}
    for value in list(found.values()):
        # What an object says of its class is code of somebody's.
        is_method = type(value) in (staticmethod, classmethod)
        function = value.__func__ if is_method else value
        if type(function) is types.FunctionType:
            codes[f"{function.__module__}.{function.__qualname__} code"] = function.__code__
    return found | codes


def state() -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "threads": [thread.name for thread in threading.enumerate()],
        "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "finders": list(sys.meta_path),
        "path hooks": list(sys.path_hooks),
        "path": list(sys.path),
        "excepthook": sys.excepthook,
        "display": sys.displayhook,
        "streams": [sys.stdin, sys.stdout, sys.stderr],
        "print": builtins.print,
        "trace": (sys.gettrace(), sys.getprofile()),
        "optimizer hooks": dict(
            vars(sys.modules["torch.optim.optimizer"])["_global_optimizer_post_hooks"]
        ),
        "module hooks": dict(vars(torch.nn.modules.module)["_global_forward_hooks"]),
        "filters": list(warnings.filters),
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name, value in before.items() if after.get(name) is not value}


def wrapped_steps(kind: type) -> set[str]:
    """By the names of the functions that torch wrapped: a class that inherits its step has another
    one's."""
    step: Any = vars(kind).get("step")
    own = {f"{step.__module__}.{step.__qualname__}"} if hasattr(step, "hooked") else set[str]()
    return own.union(*map(wrapped_steps, type.__subclasses__(kind)))


def train() -> torch.optim.Optimizer:
    class Own(torch.optim.SGD):
        """Its own class: torch wraps the step of each."""

        def step(self, closure: Any = None) -> Any:
            warnings.warn("of the job", stacklevel=2)
            return super().step(closure)

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Own([weight], lr=0.1)
    for _ in range(3):
        torch.autograd.backward(weight.sum())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
    return optimizer


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = begin(tmp_path, Options(sample_s=1e6))
    yield made
    made.finish()
    made.guard.off()
    forget_session(made)


def test_nothing_is_changed_that_is_not_in_the_table(tmp_path: Path) -> None:
    train()
    wrapped = wrapped_steps(torch.optim.Optimizer)
    before, around, callbacks = attributes(), state(), list(gc.callbacks)
    made = begin(tmp_path, Options(sample_s=1e6))
    try:
        train()
        after = attributes()
        codes = {name.removesuffix(" code") for name in changed(before, after)}
        assert codes, "the table's functions"
        # torch wraps the step of each class of optimizers once: those of train's are before the
        # session, and of whatever this process trained earlier.
        assert wrapped
        assert codes <= CODES | wrapped
        assert state() == around
        assert gc.callbacks[: len(callbacks)] == callbacks
        assert len(gc.callbacks) == len(callbacks) + 2
        assert not any(isinstance(each, types.FunctionType) for each in gc.callbacks[-2:])
    finally:
        made.finish()
        made.guard.off()
        forget_session(made)
    assert changed(before, attributes()) == set()
    assert gc.callbacks == callbacks
    assert state() == around


NAMES = [name for name in WATCHED if watched_function(name) is not None]


def looks(name: str) -> list[Any]:
    """What a job can see of a function."""
    function: Any = watched_function(name)
    code = function.__code__
    kept = ("co_name", "co_filename", "co_firstlineno", "co_argcount", "co_freevars", "co_flags")
    return [
        *(function, inspect.getsource(function), inspect.signature(function), function.__doc__),
        *(function.__name__, function.__qualname__, function.__module__, function.__closure__),
        *[getattr(code, each) for each in kept],
    ]


def test_watched_functions_are_what_they_were(tmp_path: Path) -> None:
    before = {name: looks(name) for name in NAMES}
    codes = {name: before[name][0].__code__ for name in NAMES}
    made = begin(tmp_path, Options(sample_s=1e6))
    try:
        for name in NAMES:
            function = before[name][0]
            assert function.__code__ is not codes[name], f"{name} is watched"
            assert looks(name) == before[name]
            assert copy.deepcopy(function) is function
            assert cloudpickle.loads(cloudpickle.dumps(function)) is function
    finally:
        made.guard.off()
        forget_session(made)
    assert {name: before[name][0].__code__ for name in NAMES} == codes


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from (1, 2)
        warnings.warn("of the job", stacklevel=2)
        yield 3


LOADED = f"""
{LIGHT}
import pickle, sys
sys.modules["stepscope"] = None
optimizer, stream = pickle.load(open(sys.argv[1], "rb"))
optimizer.step()
print(type(optimizer).__name__, list(stream))
"""


def test_classes_of_the_job_are_pickled_by_value_and_need_nothing_of_ours(
    session: Session, tmp_path: Path
) -> None:
    optimizer, stream = train(), Stream()
    with pytest.warns(UserWarning, match="of the job"):
        assert list(stream) == [1, 2, 3]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        (tmp_path / "both").write_bytes(cloudpickle.dumps((optimizer, stream)))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    words = [sys.executable, "-W", "ignore", "-c", LOADED, str(tmp_path / "both")]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.stdout == b"Own [1, 2, 3]\n", done.stderr
    assert session.guard.is_on


def test_what_was_pickled_by_value_can_be_hashed_and_pickled_again(session: Session) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        optimizer = cloudpickle.loads(cloudpickle.dumps(train()))
        again = cloudpickle.loads(cloudpickle.dumps(optimizer))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for each in (optimizer, again):
        with pytest.warns(UserWarning, match="of the job"):
            each.step()
        wrapper: Any = type(each).step
        assert hash(wrapper.__code__)
    assert session.guard.is_on


def seen() -> list[Any]:
    """Where warnings of the job point, and the frames of what it raises."""
    places: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = train_own()
        optimizer.step()
        list(Stream())
    places += [(each.filename, each.lineno) for each in caught]
    logger, told = logging.getLogger("job"), Told()
    logger.addHandler(told)
    logger.error("where")
    logger.removeHandler(told)
    places += told.callers
    try:
        with pytest.warns(UserWarning, match="of the job"):
            optimizer.step(lambda: 1 // 0)
    except ZeroDivisionError as error:
        places += [(each.filename, each.name) for each in traceback.extract_tb(error.__traceback__)]
    return places


class Told(logging.Handler):
    """Names who is above it, as some handlers do."""

    callers: tuple[Any, ...] = ()

    def emit(self, record: logging.LogRecord) -> None:
        stack = traceback.extract_stack()[-5:]
        self.callers = (record.pathname, *[(each.filename, each.name) for each in stack])


def train_own() -> Any:
    class Warns(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            warnings.warn("of the job", stacklevel=3)
            return super().step(closure)

    return Warns([torch.nn.Parameter(torch.ones(2))], lr=0.1)


def test_objects_of_the_job_are_known_by_weak_references_alone(session: Session) -> None:
    optimizer = train()
    assert session.made_at.line_of(optimizer)
    (known,) = weakref.getweakrefs(optimizer)
    del optimizer
    assert known() is None


def test_warnings_tracebacks_and_callers_have_no_frame_of_ours(tmp_path: Path) -> None:
    before = seen()
    made = begin(tmp_path, Options(sample_s=1e6))
    try:
        assert seen() == before
    finally:
        made.finish()
        made.guard.off()
        forget_session(made)


def test_what_the_job_puts_in_its_place_stays(session: Session, monkeypatch: Any) -> None:
    calls = []

    def save(*_: Any) -> None:
        calls.append("the job's")

    monkeypatch.setattr(torch, "save", save)
    torch.save(1, "nowhere")
    session.guard.off()
    torch.save(1, "nowhere")
    assert len(calls) == 2
