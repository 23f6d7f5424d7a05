"""A session of a trial: it ends the job after so many steps, and watches what was applied on top of
the job's settings.

None of this is imported by a plain `stepscope run`, and a step of one costs nothing more for it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from stepscope.capture import clocks
from stepscope.capture.describe.rank import rank_numbers
from stepscope.capture.guard import Guard
from stepscope.capture.session import Session
from stepscope.protocol.options import Options
from stepscope.protocol.run_folder import ENDED_FILE, RANK_FOLDER, stock_steps, write_json

LONGEST_WAIT_S = 10.0
"""Seconds for the other ranks to end their last step: one that leaves before takes its connections
with it."""
LOOK_S = 0.02
STOCK_KNOWN = 3
"""The step from which the loader that feeds the job is known."""
WORKER_S = 2.0
"""Seconds for a loader's worker to end when it is asked to."""


class Listener(Protocol):
    """A part of a trial that is called at its steps."""

    def began(self, folder: Path) -> None:
        """The first step is over, and this process has a folder."""

    def stepped(self, step: int) -> None:
        """A step is over that was looked at."""

    def ended(self) -> None:
        """Nothing follows."""


class TrialSession(Session):
    """Listeners are called at the first step and at the end.

    Those that must see every step say so.
    """

    def __init__(self, run: Path, options: Options, guard: Guard) -> None:
        super().__init__(run, options, guard)
        self.last_step = None if options.max_steps is None else int(options.max_steps)
        # A forked child keeps those of its parent: what they hold on to lives in it too.
        self.listeners: list[Listener] = getattr(self, "listeners", [])
        self.is_every_step = getattr(self, "is_every_step", False)
        self._has_ended = self._is_stretched = False

    def listen(self, listener: Listener, *, every_step: bool = False) -> None:
        self.listeners.append(listener)
        self.is_every_step = self.is_every_step or every_step

    def ended_step(self, now: int) -> None:
        super().ended_step(now)
        step = self.step - 1
        for listener in self.listeners:
            if step == 0 and self.writer is not None:
                listener.began(self.writer.folder)
            listener.stepped(step)
        if self.last_step is not None and not self._is_stretched and step >= STOCK_KNOWN:
            self._stretch()
        if self.last_step is not None and step >= self.last_step and not self.is_recording:
            self.leave()
        if self.is_every_step:
            # What the listeners did is in no step.
            self._last_ns = max(self._last_ns, clocks.perf_counter_ns())

    def _stretch(self) -> None:
        """The end is put off by the steps that a loader's stock feeds.

        They say nothing of its speed, and are left out.
        """
        assert self.last_step is not None
        self._is_stretched = True
        loader = self.loader.iterator()
        more = stock_steps(
            getattr(loader, "_num_workers", 0), getattr(loader, "_prefetch_factor", None)
        )
        self.last_step += more
        if self.schedule.wanted_step is not None:
            self.schedule.wanted_step += more

    def finish(self) -> None:
        if not self._has_ended and self.writer is not None:
            self._has_ended = True
            for listener in self.listeners:
                listener.ended()
        super().finish()

    def leave(self) -> None:
        """Ends this process, with everything written and nobody left waiting for it."""
        torch = sys.modules["torch"]
        self._settle(torch)
        self.guard.watch(self.finish)()
        assert self.writer is not None
        write_json(
            self.writer.folder / ENDED_FILE, {"step": self.step - 1, "wall_ns": clocks.time_ns()}
        )
        self._wait_for_others(torch)
        _end_children()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0)

    def _settle(self, torch: Any) -> None:
        """The device's work is done and its last marks are read."""
        clock = self.device_clock
        if clock is not None:
            torch.cuda.synchronize()
            for measured in clock.read():
                self._measured(*measured)

    def _wait_for_others(self, torch: Any) -> None:
        numbers = rank_numbers(torch)
        until = clocks.monotonic() + LONGEST_WAIT_S
        while (
            numbers["backend"] is not None
            and _num_ended(self.run) < numbers["world_size"]
            and clocks.monotonic() < until
        ):
            clocks.sleep(LOOK_S)

    def _next_due(self) -> int:
        if self.is_every_step:
            return 0
        due = super()._next_due()
        return due if self.last_step is None else min(due, self.last_step)


def _num_ended(run: Path) -> int:
    return sum(
        1
        for folder in run.glob("rank-*")
        if RANK_FOLDER.match(folder.name) and (folder / ENDED_FILE).exists()
    )


def _end_children() -> None:
    """The loaders' workers: a process that ends without ceremony leaves them behind."""
    children = multiprocessing.active_children()
    for child in children:
        with suppress(Exception):
            child.terminate()
    until = clocks.monotonic() + WORKER_S
    for child in children:
        with suppress(Exception):
            child.join(max(0.0, until - clocks.monotonic()))
            if child.is_alive():
                child.kill()
