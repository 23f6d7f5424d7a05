"""The profiler's window: a few steps recorded by torch.profiler, opened and closed between two
steps.

Kineto keeps a recording per thread: one that another thread ends takes the process with it
(SIGSEGV). So a window belongs to the thread that opened it; no other thread touches its profiler.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.guard import Guard, is_ours, suppressed
from stepscope.capture.hooks.changes import watched_function
from stepscope.capture.hooks.probes import Probe, watch
from stepscope.capture.recording.cupti import leave_cupti_after, stay_in_cupti
from stepscope.capture.recording.forked import (
    is_profiler_inherited,
    leave_directly,
    make_way_in_child,
    never_let_go,
    note_profiler,
)
from stepscope.capture.recording.modules import ModuleMarks
from stepscope.capture.recording.quiet import quiet_kineto, without_thread_line
from stepscope.protocol.json_text import json_text
from stepscope.protocol.options import WARM_STEPS, Options
from stepscope.protocol.run_folder import MARKS_FIELD, MODULES_FIELD, OWN_PROFILER

LONGEST_WAIT_S = 5.0
"""Seconds for the thread that records to let go, where another thread of the job starts a profiler
of its own."""
ENDING_S = 0.25
"""Seconds for a thread that ends with the process: one that ends with the profiler on takes the
process with it."""
PATIENCE_NS, PATIENT_TIMES = 60_000_000_000, 20
"""How long a recording may be open: so many times what its steps would take without a profiler,
and a minute."""
MAX_MARKS = 5_000
MAX_STRANGE = 200
"""Steps that other threads end while the one that records ends none,
until the recording is given up."""

_held = threading.local()
"""Window that each thread opened."""
DEVICE_LOST = "an error of the job lost the device"


class _Hold:
    """Dropped by the thread that opened a window when that thread ends.

    The last moment to take the profiler off.
    """

    def __init__(self, window: Window) -> None:
        self.window, self._owner = window, (os.getpid(), threading.get_ident())

    def __del__(self) -> None:
        with suppressed():
            # A Python that ends drops what its other threads hold from its main thread, which may
            # not touch it.
            is_own = self._owner == (os.getpid(), threading.get_ident()) and not sys.is_finalizing()
            if is_own and self.window.is_attached:
                self.window.problem = (
                    self.window.problem or "the thread that recorded ended before its last step"
                )
                self.window.close()


class Window:
    """One recording. `step` is called at each step's end until the profiler is off."""

    def __init__(
        self,
        torch: Any,
        options: Options,
        path: Path,
        first_step: int,
        step_ns: int = 0,
        modules: ModuleMarks | None = None,
        others: Others | None = None,
    ) -> None:
        self._torch = torch
        self._others = others or Others()
        self.path = path
        self.first_step = first_step
        self.is_over = False
        """Whether nothing more is recorded."""
        self.is_attached = False
        """Whether its thread has the profiler on: for a while after it is over,
        where another thread ended it."""
        self._is_closing = False
        """Whether its thread has begun to take the profiler off."""
        self._is_taken = False
        """Whether Kineto serves a profiler of the job's own meanwhile."""
        self.num_strange = 0
        """Steps ended by other threads since its own ended one."""
        self._gone = threading.Event()
        self.problem: str | None = None
        self.saved_ns = 0
        """How long the file took to write: the job waited for it."""
        self._modules = modules
        self._marks: list[tuple[str, int, int]] = []
        """What the hooks saw in its thread: name, beginning and end."""
        profiler = torch.profiler
        cycle = profiler.schedule(wait=0, warmup=WARM_STEPS, active=options.num_steps, repeat=1)
        activities = [profiler.ProfilerActivity.CPU]
        self._has_device = bool(torch.cuda.is_initialized() and torch.cuda.is_available())
        if self._has_device:
            activities.append(profiler.ProfilerActivity.CUDA)
        self.profile = profiler.profile(
            activities=activities,
            schedule=lambda number: cycle(max(number - first_step, 0)),
            on_trace_ready=self._save,
            record_shapes=True,
            with_stack=options.stacks,
            profile_memory=options.memory,
        )
        self._num_recorded = options.num_steps
        self._left = WARM_STEPS + options.num_steps
        self._longest_ns = PATIENCE_NS + PATIENT_TIMES * self._left * step_ns
        self._latest_ns = 0
        # Marks in the trace have the run's own numbers: ranks that begin at different steps are not
        # taken for one another.
        self.profile.step_num = first_step

    @property
    def is_mine(self) -> bool:
        """Whether this thread opened it.

        Asked of what the thread holds: numbers of threads are used again.
        """
        hold = getattr(_held, "hold", None)
        return hold is not None and hold.window is self

    def to_event(self) -> dict[str, Any]:
        """What RUN/rank-N/events.jsonl has of it."""
        return {
            "first_step": self.first_step,
            "name": self.path.name,
            "saved_ns": self.saved_ns,
            "problem": self.problem,
        }

    def open(self) -> None:
        """Attaches the profiler, to this thread."""
        if self._has_device:
            leave_cupti_after(self._torch)
        note_profiler()
        _held.hold = _Hold(self)
        self.is_attached = True
        self._latest_ns = clocks.perf_counter_ns() + self._longest_ns
        with quiet_kineto(self._torch), without_thread_line():
            self.profile.start()
        if self._modules is not None and self._modules.begin():
            self.profile.add_metadata_json(MODULES_FIELD, "true")

    def step(self) -> None:
        """Step the window at the end of a step of any thread."""
        if not self.is_mine:
            self.num_strange += 1
            if self.num_strange > MAX_STRANGE:
                self.give_up("the thread that recorded ends no steps any more")
        elif self.is_over:
            self.discard()
        elif self._is_device_lost():
            self.leave_behind(DEVICE_LOST)
        elif self.is_attached:
            self.num_strange = 0
            self._left -= 1
            if self._left >= self._num_recorded:
                self._marks.clear()
            elif self._left <= 0:
                self._hand_marks_over()
            with quiet_kineto(self._torch):
                self.profile.step()
            if self._left <= 0:
                self.close()

    def mark(self, name: str, begun: int, ended: int, line: str | None) -> None:
        """Something that the profiler does not record was seen, in any thread."""
        if self.is_mine and len(self._marks) < MAX_MARKS:
            self._marks.append((name if line is None else f"{name} at {line}", begun, ended))

    def mark_read(self, name: str, begun: int, ended: int, line: str | None) -> None:
        """Mark as `mark` does, what was noted in its thread and is read in any."""
        if self.is_attached and len(self._marks) < MAX_MARKS:
            self._marks.append((name if line is None else f"{name} at {line}", begun, ended))

    def _hand_marks_over(self) -> None:
        """Gives the marks to the profiler, which writes them beside its events; its clock is the
        wall's."""
        if not self._marks:
            return
        ahead, thread = clocks.time_ns() - clocks.perf_counter_ns(), threading.get_native_id()
        marks = [[name, begun + ahead, ended + ahead, thread] for name, begun, ended in self._marks]
        self._marks = []
        self.profile.add_metadata_json(MARKS_FIELD, json_text(marks))

    def between(self, now: int) -> None:
        """Inside a step, where its thread takes a batch: a recording that takes far too long
        ends here. A step may hold an evaluation of hours, and every event of it would be kept."""
        if self.is_mine and self.is_over:
            self.discard()
        elif self.is_mine and now > self._latest_ns:
            self.problem = (
                "a step of the recording took far longer than those before it; it ends inside "
                "that step"
            )
            self.close()

    def close(self, *, is_at_end: bool = False) -> None:
        """Ends the recording where it is; what was recorded is kept. Its own thread calls this.

        While Kineto serves a profiler of the job's own, nothing happens: it would be ended.
        """
        self.is_over = True
        if self._is_device_lost():
            self.leave_behind(DEVICE_LOST)
        elif self.is_attached and not (self._is_taken and self._others.is_there()):
            if is_at_end:
                stay_in_cupti()
            self._is_closing, self.is_attached = True, False
            try:
                if self._modules is not None:
                    self._modules.end()
                self._hand_marks_over()
                with quiet_kineto(self._torch):
                    if self._is_taken:
                        self._take_kineto_back()
                    self.profile.stop()
            finally:
                self._gone.set()
                if self.is_mine:
                    del _held.hold

    def end_with_process(self) -> bool:
        """The process ends, in any thread; whether that ends the recording."""
        was_attached = self.is_attached
        if self.is_mine:
            self.close(is_at_end=True)
        elif was_attached:
            # Its thread may be about to end, and takes the profiler off then.
            self._gone.wait(ENDING_S)
        if self._is_closing and not self._gone.wait(LONGEST_WAIT_S):
            # The libraries' destructors would meet it there.
            leave_directly()
        if self.is_attached:
            self.leave_behind(
                "the process ended before the thread that recorded had ended its last step"
            )
        return was_attached

    def _take_kineto_back(self) -> None:
        """Take Kineto's profiler back: to end a recording that Kineto does not know any more ends
        the process (torch 2.13)."""
        profiler = self.profile.profiler
        self._torch.autograd._prepare_profiler(profiler.config(), profiler.kineto_activities)  # noqa: SLF001

    def discard(self) -> None:
        """Ends it and keeps nothing: somebody else wants to record, or the capture is over.

        Its own thread calls this.
        """
        self.profile.on_trace_ready = None
        self.problem = self.problem or OWN_PROFILER[1]
        self.close()

    def give_up(self, problem: str) -> None:
        """Give up in another thread.

        Nothing more is recorded, and the window's thread takes the profiler off when it comes by.
        """
        self.problem = self.problem or problem
        self.is_over = True

    def make_way(self) -> None:
        """Make way before a profiler of the job's own is attached, in any thread."""
        if self.is_mine:
            self.discard()
        elif self.is_attached and not self._is_taken:
            self.give_up("the job started a profiler of its own, in another thread")
            if not self._gone.wait(LONGEST_WAIT_S):
                # Its thread may wait for this one. It takes ours off when the job's is over.
                self._is_taken = True
                self.profile.on_trace_ready = None

    @property
    def is_in_the_way(self) -> bool:
        """Whether a profiler of the job's own is prepared by another thread than its own."""
        return self._is_taken and self._has_device and self.is_attached and not self.is_mine

    def _is_device_lost(self) -> bool:
        """Whether a kernel's error lost the device: CUDA refuses every call then, and to end a
        recording ends the process with SIGSEGV (torch 2.11)."""
        if not (self.is_attached and self._has_device):
            return False
        cuda = self._torch.cuda
        try:
            # A stream that is being captured may not be asked.
            cuda.is_current_stream_capturing() or cuda.current_stream().query()
        except Exception as error:
            if not is_ours(error):
                raise
            return True
        return False

    def leave_behind(self, problem: str) -> None:
        """Where the window's own thread will not come by any more, or cannot end it: the profiler
        stays attached. With CUDA's part of it active, destructors of the libraries end such a
        process with SIGSEGV (torch 2.11; so they do where a profiler of the job's own is left
        open)."""
        self.give_up(problem)
        self.is_attached = False
        never_let_go(self)
        if self._has_device:
            leave_directly()

    def _save(self, profile: Any) -> None:
        begun = clocks.perf_counter_ns()
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            # Where it cannot be, Kineto would say so on the job's stderr.
            part.touch()
            profile.export_chrome_trace(str(part))
            part.replace(self.path)
        except (OSError, RuntimeError) as problem:
            self.problem = f"the recording could not be written to {self.path}: {problem}"
        self.saved_ns = clocks.perf_counter_ns() - begun


def is_profiling(torch: Any) -> bool:
    """Whether a profiler is attached to this thread, ours or the job's."""
    is_enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(is_enabled()) if callable(is_enabled) else False


def backward_asker(torch: Any) -> Callable[[], bool]:
    """Says whether this thread is inside a backward pass."""
    current_task = getattr(getattr(torch, "_C", None), "_current_graph_task_id", None)
    return (lambda: current_task() != -1) if callable(current_task) else lambda: False


class Others:
    """A profiler of the job's own, from where it is prepared.

    In its schedule's warm-up it is not attached yet but in our way.
    """

    def __init__(self) -> None:
        self._last: weakref.ref[Any] | None = None

    def came(self, profiler: Any) -> None:
        self._last = weakref.ref(profiler)

    def went(self) -> None:
        self._last = None

    def is_there(self) -> bool:
        return self._last is not None and self._last() is not None


def obstacle(torch: Any, others: Others) -> str | None:
    """Why no recording can begin now; None where one can."""
    if is_profiling(torch) or others.is_there():
        return OWN_PROFILER[0]
    if is_profiler_inherited():
        return "the process was forked after a recording, and the profiler cannot be used in it"
    return None


def give_way(guard: Guard, holder: Any) -> None:
    """A profiler that the job starts finds none of ours attached.

    Two at a time would be an error in the job.
    """

    def is_ours(profiler: Any) -> bool:
        window = holder.window
        return window is not None and profiler is getattr(window.profile, "profiler", None)

    def come(profiler: Any) -> None:
        if not is_ours(profiler):
            make_way_in_child()
            window = holder.window
            if window is not None:
                window.make_way()
            holder.others.came(profiler)

    def go(profiler: Any) -> None:
        if not is_ours(profiler):
            holder.others.went()

    def stand_in(_: Any) -> Any:
        window = holder.window
        if window is None or not window.is_in_the_way:
            return None
        context = _stand_in(sys.modules["torch"])
        context.__enter__()
        return context

    def leave(context: Any, _: Any) -> None:
        if context is not None:
            context.__exit__(None, None, None)

    came, went = guard.watch(come), guard.watch(go)

    def prepare(profiler: Any) -> Any:
        came(profiler)
        return stand_in(profiler)

    for name, probe in (
        ("_prepare_trace", Probe(prepare, leave)),
        ("_start_trace", Probe(came)),
        ("__enter__", Probe(came)),
        ("__exit__", Probe(lambda profiler, *_: went(profiler))),
    ):
        watch(guard, watched_function(f"torch.autograd.profiler.profile.{name}"), probe)


@contextmanager
def _stand_in(torch: Any) -> Iterator[None]:
    """While a profiler of the job's own is prepared and another thread has ours attached.

    Kineto then ends the recording of the thread that asks. Up to torch 2.12, with CUDA's part,
    that fails where the thread has none: here it has.
    """
    with suppressed():
        profiler = torch._C._profiler  # noqa: SLF001
        options = (*[False] * 5, profiler._ExperimentalConfig())  # noqa: SLF001
        config = profiler.ProfilerConfig(profiler.ProfilerState.NVTX, *options)
        torch.autograd._enable_profiler(config, set())  # noqa: SLF001
    try:
        yield
    finally:
        if is_profiling(torch):
            with suppressed():
                torch.autograd._disable_profiler()  # noqa: SLF001
