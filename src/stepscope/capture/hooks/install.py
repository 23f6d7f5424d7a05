"""Where the capture listens.

Optimizer steps, backward passes and loaders; what stops a step is in stalls.py.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.datasets import Datasets
from stepscope.capture.hooks.loggers import hook_loggers
from stepscope.capture.hooks.patches import compiling_asker, replace, replace_function, timed
from stepscope.capture.hooks.stalls import hook_stalls
from stepscope.capture.hooks.step import hooked_backward, hooked_next, hooked_step
from stepscope.capture.losses import remember_unscaled
from stepscope.capture.out_of_memory import hook_failures
from stepscope.capture.recording.forked import never_let_go, settle_child
from stepscope.capture.recording.window import give_way
from stepscope.capture.session import Session
from stepscope.capture.tape import EXCHANGED
from stepscope.protocol.options import Options

NAMES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
)


def hook_collectives(guard: Guard, torch: Any, session: Session) -> None:
    """What the host spends in torch.distributed, most of all waiting for other ranks. Collectives
    that DDP starts from C++ do not come by here: they are inside the backward pass."""
    distributed = getattr(torch, "distributed", None)

    def exchanged(_: Any, begun: int, ended: int) -> None:
        session.tape.append((EXCHANGED, begun, ended, 0))

    for name in NAMES:
        if callable(getattr(distributed, name, None)):
            replace_function(guard, distributed, name, timed(guard, exchanged))


_current: list[Session] = []
_registered: list[bool] = []
"""Whether this process calls us at its end and after a fork: once, however many sessions it has."""


def current() -> Session | None:
    """The session of this process, where there is one."""
    return _current[-1] if _current else None


def begin(run: Path, options: Options) -> Session:
    """Hooks this process up. torch is imported already."""
    guard = Guard()
    session = _session_kind(options)(run, options, guard)
    _current[:] = [session]
    try:
        _hook_all(guard, sys.modules["torch"], session)
    except Exception:
        guard.off()
        _current.clear()
        raise
    if not _registered:
        _registered.append(True)
        atexit.register(_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_in_child)
    return session


def _session_kind(options: Options) -> type[Session]:
    if not options.is_trial:
        return Session
    from stepscope.capture.trial.session import TrialSession

    return TrialSession


def _hook_all(guard: Guard, torch: Any, session: Session) -> None:
    guard.at_end(session.hurry)
    _hook_optimizers(guard, torch, session)
    replace(guard, torch.autograd, "backward", hooked_backward(session, guard))
    loader_iter = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001
    replace(guard, loader_iter, "__next__", hooked_next(session, guard))
    replace(guard, torch.utils.data.DataLoader, "__iter__", timed(guard, session.began_epoch))
    if hasattr(torch.cuda, "CUDAGraph") and "replay" in torch.cuda.CUDAGraph.__dict__:
        replace(guard, torch.cuda.CUDAGraph, "replay", timed(guard, session.replayed))
    hook_stalls(guard, torch, session)
    hook_loggers(guard, session)
    hook_collectives(guard, torch, session)
    _hook_losses(guard, torch, session)
    give_way(guard, session)
    hook_failures(guard, session)


def _hook_losses(guard: Guard, torch: Any, session: Session) -> None:
    """A trial has every loss already."""
    losses, is_compiling, clock = session.losses, compiling_asker(), time.perf_counter_ns
    guard.at_end(losses.off)
    if session.options.is_trial:
        losses.off()
    else:
        remember_unscaled(guard, torch, lambda: not is_compiling() and clock() >= losses.due_ns)


def _hook_optimizers(guard: Guard, torch: Any, session: Session) -> None:
    """Around every optimizer's step, outside the range that the profiler has for it.

    A window must not open inside one.
    """

    around, hook_datasets = hooked_step(session, guard), Datasets(guard, torch, session).hook
    hook_datasets = guard.watch(hook_datasets)

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def hook_step(function: Any) -> Any:
            hook_datasets()
            return around(original(function))

        return hook_step

    replace(guard, torch.optim.Optimizer, "profile_hook_step", make)


def forget_session(session: Session) -> None:
    """A session that is over is not kept."""
    if session in _current:
        _current.remove(session)


def _at_exit() -> None:
    session = current()
    if session is not None:
        session.guard.watch(session.finish)()
        session.abandon()


def _in_child() -> None:
    """In a forked child: another process, which may train by itself or load batches.

    It starts anew, with no thread of ours.
    """
    session = current()
    if session is None:
        return
    window = session.window
    never_let_go(window, session.writer)
    settle_child(was_recording=window is not None and window.is_attached and window.is_mine)
    if session.guard.is_on:
        session.__init__(session.run, session.options, session.guard)  # type: ignore[misc]
