"""The capture in the code: `with stepscope.profile() as scope: ... scope.step()`."""

from __future__ import annotations

import os
from pathlib import Path
from time import strftime
from typing import TYPE_CHECKING, Any

from stepscope.capture import clocks
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.install import begin, current, forget_session
from stepscope.protocol.options import options_of
from stepscope.protocol.run_folder import RUN_FILE, SCHEMA, write_json

if TYPE_CHECKING:
    from typing_extensions import Self

    from stepscope.capture.session import Session


class Scope:
    """A stretch of training that is recorded.

    Whatever goes wrong in it, the training code never sees it.
    """

    def __init__(self, out: str | os.PathLike[str] | None, options: dict[str, Any]) -> None:
        self.out = None if out is None else Path(out)
        self._options = options
        self.is_by_hand = True
        """Whether `step()` ends a step; else optimizers do, as under `stepscope run`."""
        self._session: Session | None = None
        self._is_ours = False

    def __enter__(self) -> Self:
        Guard().watch(self._begin)()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self) -> None:
        """A step is over."""
        session = self._session
        if session is not None:
            session.guard.watch(session.ended_by_hand)(clocks.perf_counter_ns())

    def close(self) -> None:
        """Writes down what is there and takes the hooks out.

        Under `stepscope run` the recording goes on.
        """
        session, self._session = self._session, None
        if session is not None and self._is_ours:
            session.guard.watch(session.finish)()
            session.guard.off()
            session.abandon()
            forget_session(session)
        elif session is not None:
            session.is_by_hand = False

    def _begin(self) -> None:
        running = current()
        if running is not None and running.guard.is_on:
            self._session, self.out = running, running.run
        else:
            self.out = self._folder()
            self._session = begin(self.out, options_of(self._options))
            self._is_ours = True
        if self.is_by_hand:
            self._session.take_by_hand()

    def _folder(self) -> Path:
        out = self.out
        if out is None:
            # Ranks that start within the same second agree on it; a job that cannot rely on that
            # names its folder.
            out = Path("stepscope-runs") / strftime("%Y-%m-%d-%H%M%S")
        out.mkdir(parents=True, exist_ok=True)
        if not (out / RUN_FILE).exists():
            # What started the job is not known in here: a worker of Ray has Ray's own script.
            info = {"schema": SCHEMA, "command": [], "options": self._options}
            write_json(out / RUN_FILE, {**info, "started_wall_ns": clocks.time_ns()})
        return out


def profile(out: str | os.PathLike[str] | None = None, **options: Any) -> Scope:
    """Records the steps that `scope.step()` ends.

    `out` is the run folder, the same on every rank. Options are those of a run: start_step,
    num_steps, num_windows, every_steps, modules, stacks, memory, warm_up_steps. torch must be
    imported already.
    """
    return Scope(out, options)
