"""Where the capture listens: all hooks of a process, put in when a session begins."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.guard import Guard, suppressed
from stepscope.capture.hooks.changes import WATCHED, watched_function
from stepscope.capture.hooks.garbage import hook_collections
from stepscope.capture.hooks.libraries import Libraries
from stepscope.capture.hooks.loggers import hook_loggers
from stepscope.capture.hooks.optimizers import hook_optimizers
from stepscope.capture.hooks.probes import Probe, timed, watch
from stepscope.capture.hooks.stalls import hook_stalls
from stepscope.capture.hooks.step import backward_probe, next_probe
from stepscope.capture.hooks.uncompiled import keep_from_compiler
from stepscope.capture.losses import remember_unscaled
from stepscope.capture.out_of_memory import note_failure
from stepscope.capture.recording.forked import never_let_go, settle_child
from stepscope.capture.recording.window import give_way
from stepscope.capture.session import Session
from stepscope.capture.tape import EXCHANGED
from stepscope.protocol.options import Options


def hook_collectives(guard: Guard, session: Session) -> None:
    """What the host spends in torch.distributed, most of all waiting for other ranks. Collectives
    that DDP starts from C++ do not come by here: they are inside the backward pass."""

    def exchanged(_: Any, begun: int, ended: int) -> None:
        session.tape.append((EXCHANGED, begun, ended, 0))

    probe = timed(guard, exchanged)
    for name in WATCHED:
        if name.startswith("torch.distributed."):
            watch(guard, watched_function(name), probe)


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
    with suppressed():
        # The first optimizer's step imports it, and drops what a signal's handler raises meanwhile.
        importlib.import_module("torch.profiler._cupti_monitor")
    keep_from_compiler(torch)
    hook_optimizers(guard, torch, session)
    for name, probe in (
        ("torch.autograd.backward", backward_probe(session, guard)),
        ("torch.utils.data.dataloader._BaseDataLoaderIter.__next__", next_probe(session, guard)),
        ("torch.utils.data.DataLoader.__iter__", timed(guard, session.began_epoch)),
        ("torch.cuda.CUDAGraph.replay", timed(guard, session.replayed)),
    ):
        watch(guard, watched_function(name), probe)
    if not session.options.is_trial:
        made = Probe(enter=guard.watch(session.made_at.note))
        for kind in ("utils.data.DataLoader", "optim.Optimizer"):
            watch(guard, watched_function(f"torch.{kind}.__init__"), made)
    libraries = Libraries(guard)
    hook_stalls(guard, session, libraries)
    hook_collections(guard, session.tape)
    hook_loggers(guard, session, libraries)
    session.notice = guard.watch(libraries.look)
    session.notice()
    hook_collectives(guard, session)
    _hook_losses(guard, session)
    give_way(guard, session)


def _hook_losses(guard: Guard, session: Session) -> None:
    """A trial has every loss already."""
    losses, clock = session.losses, clocks.perf_counter_ns
    guard.at_end(losses.off)
    if session.options.is_trial:
        losses.off()
    else:
        remember_unscaled(guard, lambda: clock() >= losses.due_ns)


def forget_session(session: Session) -> None:
    """A session that is over is not kept."""
    if session in _current:
        _current.remove(session)


def _at_exit() -> None:
    session = current()
    if session is not None:
        session.guard.watch(note_failure)(session)
        session.guard.watch(session.finish)()
        session.abandon()
        session.guard.off()


def _in_child() -> None:
    """Begin anew in a forked child: another process, which may train by itself or load batches.

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
