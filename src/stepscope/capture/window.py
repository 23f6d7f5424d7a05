"""The profiler's window: a few steps recorded by torch.profiler, opened and closed between two steps."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.options import Options
from stepscope.capture.patches import replace
from stepscope.capture.quiet import quiet_kineto

WARM_STEPS = 1
"""Steps with the profiler attached that are not kept: the first one pays for its buffers."""


class Window:
    """One recording. `step` is called at each step's end until it returns False."""

    def __init__(self, torch: Any, options: Options, path: Path, first_step: int) -> None:
        self._torch = torch
        self.path = path
        self.first_step = first_step
        self.is_over = False
        self.problem: str | None = None
        self.saved_ns = 0
        """How long the file took to write: the job waited for it."""
        profiler = torch.profiler
        cycle = profiler.schedule(wait=0, warmup=WARM_STEPS, active=options.num_steps, repeat=1)
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized() and torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self.profile = profiler.profile(
            activities=activities,
            schedule=lambda number: cycle(max(number - first_step, 0)),
            on_trace_ready=self._save,
            record_shapes=True,
            with_stack=options.stacks,
            profile_memory=options.memory,
        )
        self._left = WARM_STEPS + options.num_steps
        # Marks in the trace have the run's own numbers: ranks that begin at different steps are not taken for one another.
        self.profile.step_num = first_step

    def open(self) -> None:
        """Attaches the profiler."""
        _let_go_after(self._torch)
        with quiet_kineto(self._torch):
            self.profile.start()

    def step(self) -> bool:
        """At a step's end; whether the window is still open."""
        self._left -= 1
        with quiet_kineto(self._torch):
            self.profile.step()
        if self._left <= 0:
            self.close()
        return not self.is_over

    def close(self) -> None:
        """Ends the recording where it is; what was recorded is kept."""
        if not self.is_over:
            self.is_over = True
            with quiet_kineto(self._torch):
                self.profile.stop()

    def discard(self) -> None:
        """Ends it and keeps nothing: somebody else wants to record."""
        if not self.is_over:
            self.is_over = True
            self.problem = "the job started a profiler of its own"
            self.profile.on_trace_ready = None
            with quiet_kineto(self._torch):
                self.profile.stop()

    def _save(self, profile: Any) -> None:
        begun = time.perf_counter_ns()
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            profile.export_chrome_trace(str(part))
            part.replace(self.path)
        except (OSError, RuntimeError) as problem:
            self.problem = f"the recording could not be written to {self.path}: {problem}"
        self.saved_ns = time.perf_counter_ns() - begun


def _let_go_after(torch: Any) -> None:
    """Has the profiler's library leave CUDA when it is done: else each launch goes on paying for it, a fifth of a step that the
    host sets the pace of (H200, torch 2.11: 16.1 ms a step before, 20.3 after; 9.8 and 10.8 with this).

    From CUDA 12.6 on: before that, leaving and CUDA graphs do not go together. What the user has set stays.
    """
    version = str(getattr(getattr(torch, "version", None), "cuda", None) or "").split(".")
    numbers = [int(part) for part in version[:2] if part.isdecimal()]
    if len(numbers) == 2 and numbers >= [12, 6]:
        os.environ.setdefault("TEARDOWN_CUPTI", "1")


def is_profiling(torch: Any) -> bool:
    """Whether a profiler is attached to this thread, ours or the job's."""
    asked = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(asked()) if callable(asked) else False


def backward_asker(torch: Any) -> Callable[[], bool]:
    """Says whether this thread is inside a backward pass."""
    asked = getattr(getattr(torch, "_C", None), "_current_graph_task_id", None)
    return (lambda: asked() != -1) if callable(asked) else lambda: False


class Others:
    """A profiler of the job's own, from where it is prepared: in its schedule's warm-up it is not attached yet but in our way."""

    def __init__(self) -> None:
        self._last: weakref.ref[Any] | None = None

    def came(self, profiler: Any) -> None:
        self._last = weakref.ref(profiler)

    def went(self) -> None:
        self._last = None

    def is_there(self) -> bool:
        return self._last is not None and self._last() is not None


def give_way(guard: Guard, holder: Any) -> None:
    """A profiler that the job starts finds none of ours attached: two at a time would be an error in the job."""
    profilers = sys.modules["torch"].autograd.profiler.profile

    def is_ours(profiler: Any) -> bool:
        window = holder.window
        return window is not None and profiler is getattr(window.profile, "profiler", None)

    def come(profiler: Any) -> None:
        if not is_ours(profiler):
            if holder.window is not None:
                holder.window.discard()
            holder.others.came(profiler)

    def go(profiler: Any) -> None:
        if not is_ours(profiler):
            holder.others.went()

    def before(told: Callable[[Any], None]) -> Callable[[Any], Any]:
        watched = guard.watch(told)

        def make(was: Any) -> Any:
            def now(self: Any, *args: Any, **kwargs: Any) -> Any:
                watched(self)
                return was(self, *args, **kwargs)

            return now

        return make

    for name, told in (("_prepare_trace", come), ("_start_trace", come), ("__enter__", come), ("__exit__", go)):
        if name in profilers.__dict__:
            replace(guard, profilers, name, before(told))
