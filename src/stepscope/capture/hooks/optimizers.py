"""Around every optimizer's step, outside the range that the profiler has for it: a recording must
not open inside one.

torch wraps a class's `step` once, when the first optimizer of that class is made, and keeps the
wrapper for as long as the process lives. Classes that are wrapped while we are on get our calls
with the wrapper; those that were wrapped before get them now, and all are as torch made them when
the capture ends: where it ends in a recording, once the thread that records has taken the profiler
off, which it does in such a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.changes import watched_function
from stepscope.capture.hooks.datasets import Datasets
from stepscope.capture.hooks.probes import Probe, watch
from stepscope.capture.hooks.step import step_probe
from stepscope.capture.session import Session

_WRAPPER = "wrapper"
"""The function that `profile_hook_step` makes and returns."""


def hook_optimizers(guard: Guard, torch: Any, session: Session) -> None:
    """Has every optimizer's step report to the session, until the capture ends."""
    function = watched_function("torch.optim.Optimizer.profile_hook_step")
    assert function is not None
    hook_datasets = guard.watch(Datasets(guard, torch, session).hook)

    def made(_: Any) -> None:
        hook_datasets()

    def let_go() -> None:
        if session.window is None:
            _change(torch, ours, plain)

    def abandon() -> None:
        session.abandon()
        let_go()

    plain = _inner(function)
    probe = step_probe(session, guard, abandon)
    is_watched = watch(guard, function, Probe(enter=made), inner=(_WRAPPER, probe))
    assert is_watched, "torch's source is not there"
    ours = _inner(function)
    if _change(torch, plain, ours):
        hook_datasets()
    guard.at_end(let_go)


def _change(torch: Any, now: CodeType, then: CodeType) -> int:
    """How many of the steps of all classes of optimizers got the other code."""
    changed = [step for step in _wrapped_steps(torch) if step.__code__ == now]
    for step in changed:
        step.__code__ = then
    return len(changed)


def _inner(function: FunctionType) -> CodeType:
    consts = [const for const in function.__code__.co_consts if isinstance(const, CodeType)]
    return next(const for const in consts if const.co_name == _WRAPPER)


def _wrapped_steps(torch: Any) -> Iterator[FunctionType]:
    kinds = [torch.optim.Optimizer]
    while kinds:
        kind = kinds.pop()
        kinds += type.__subclasses__(kind)
        step = kind.__dict__.get("step")
        if isinstance(step, FunctionType):
            yield step
