"""One process of a job: its steps are counted and timed, and now and then a few are recorded."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.describe.batch import Feeder
from stepscope.capture.describe.rank import rank_numbers
from stepscope.capture.epochs import Epochs
from stepscope.capture.garbage import Collections
from stepscope.capture.guard import Guard, at_process_end, is_ours, suppressed
from stepscope.capture.hooks.step_boundary import Anchor
from stepscope.capture.hooks.without_optimizer import MIN_INSTEAD, WithoutOptimizer
from stepscope.capture.losses import LossSampler
from stepscope.capture.made_at import MadeAt
from stepscope.capture.recording.cupti import let_cupti_leave
from stepscope.capture.recording.device_clock import MAX_PENDING, DeviceClock, device_clock
from stepscope.capture.recording.modules import ModuleMarks
from stepscope.capture.recording.schedule import Marks, Schedule
from stepscope.capture.recording.window import Others, Window, backward_asker, obstacle
from stepscope.capture.running_step import RunningStep
from stepscope.capture.tape import (
    COLLECTED,
    EXCHANGED,
    LOGGED,
    MAX_TAPED,
    NOTED_NS,
    PASSED,
    SAVED,
    STEPPED,
    WAITED,
    Tape,
)
from stepscope.capture.writer import Row, Writer, write_problem
from stepscope.protocol.options import AFTER_STEPS, FIRST_STEPS, Options
from stepscope.protocol.run_folder import STATES, claim_rank

TIMED, FIRST, PROFILED, AFTER = range(len(STATES))
NOTHING_DUE = 1_000
"""Steps until the training thread looks again where nothing is due,
whatever the writer's thread does meanwhile."""
MAX_WAITING = 100_000
"""Steps kept until the writer takes them; beyond that the oldest are lost."""


class Session:
    """What the hooks record ends here.

    Made when torch is imported; nothing is written before the first optimizer step.
    """

    # What every step touches lies side by side: after the model has run, the caches are the
    # model's, and each line costs.
    __slots__ = (
        *("__dict__", "_after", "_anchor", "_ends_after_backward", "_instead", "_last_dur_ns"),
        *("_last_ns", "_lock", "_passes_left", "_running", "_turn"),
        *("device_clock", "free_steps", "is_by_hand", "is_in_backward", "loader", "losses"),
        *("marks", "nests", "rows", "schedule", "step", "tape", "window", "writer"),
    )

    def __init__(self, run: Path, options: Options, guard: Guard) -> None:
        self.run, self.options, self.guard = run, options, guard
        # The hooks know these four: a forked child, which begins anew, goes on with them.
        self.tape: Tape = getattr(self, "tape", deque(maxlen=MAX_TAPED))
        self.free_steps: list[None] = getattr(self, "free_steps", [])
        """One for each optimizer step to come that needs no look: it is only recorded on the
        tape."""
        self.losses: LossSampler = getattr(self, "losses", LossSampler())
        self.made_at: MadeAt = getattr(self, "made_at", MadeAt())
        self.tape.clear()
        self.free_steps.clear()
        self.losses.begin_anew()
        self.marks = Marks()
        self._lock = threading.Lock()
        self._reader = 0
        """The thread that reads the tape."""
        self._turn = threading.Lock()
        """Held by the thread that looks at a step: several may train."""
        guard.report = lambda problem: write_problem(self.run, self.writer, problem)
        self.window: Window | None = None
        self.others = Others()
        self.writer: Writer | None = None
        self._first_writer: Writer | None = None
        self.rows: deque[Row] = deque(maxlen=MAX_WAITING)
        self.loader = Feeder()
        self.step = 0
        self.is_by_hand = False
        """Whether the training code says when a step is over; optimizers then do not."""
        self.schedule = Schedule(options)
        self._anchor = Anchor()
        self.device_clock: DeviceClock | None = None
        self._begun_ns = 0
        self._last_ns = 0
        self._last_dur_ns: int | None = None
        self._instead = WithoutOptimizer()
        self._passes_left = MIN_INSTEAD
        """Backward passes that need no look, where every step is looked at."""
        self._is_hurried = False
        self.nests = False
        """Whether an optimizer's step was seen inside its own step: of a class on top of another.
        Only a look can say so."""
        self._after = 0
        self.is_in_backward = backward_asker(sys.modules.get("torch"))
        self._ends_after_backward = False
        """Whether the pass that runs ends a step: an optimizer stepped in it, in any thread."""
        self._running = RunningStep()
        self.notice: Callable[[], object] = getattr(self, "notice", lambda: None)
        """Hooks up what was imported meanwhile."""
        self._epochs, self._collections = Epochs(), Collections()
        self.passed_bytes: int | None = None
        """The most that the first forward and backward pass held on the device."""
        self._made_ns = clocks.perf_counter_ns()
        self._last_stepped = (0, 0)
        """Optimizer whose step was read last, and when that step began."""

    def took_batch(self, batches: Any, batch: Any) -> None:
        self.loader.took(batches, batch)
        window = self.window
        if window is not None and not self.is_in_backward():
            window.between(clocks.perf_counter_ns())

    def before_backward(self) -> None:
        """Mark where the last backward pass begins, on the device too, in a step that is looked
        at."""
        clock = self.device_clock
        if clock is not None and self.marks.holds(self.step) and not self.is_in_backward():
            clock.begin_backward()

    def after_backward(self, ended: int) -> None:
        """A backward pass is over: optimizers stepped inside it, or none has stepped for long."""
        if self._passes_left > 0:
            self._passes_left -= 1
        elif not self.is_in_backward():
            # Else a recomputed part's own, inside another.
            self._alone(self._passed, ended)

    def _passed(self, ended: int) -> None:
        self.catch_up()
        if self._ends_after_backward:
            self._ends_after_backward = False
            self.ended_step(ended)
        else:
            self._ended_instead(0, ended)
        is_settled = not self._instead.is_so and self._num_instead < MIN_INSTEAD
        self._passes_left = MIN_INSTEAD if is_settled else 0

    def replayed(self, graph: Any, _begun: int, ended: int) -> None:
        """A CUDA graph was replayed: a whole step may be inside."""
        self._alone(self._replayed, id(graph), ended)

    def _replayed(self, graph: int, ended: int) -> None:
        self.catch_up()
        self._instead.num += 1
        self._ended_instead(graph, ended)

    def began_epoch(self, loader: Any, begun: int, ended: int) -> None:
        self.catch_up()
        self._epochs.begin(loader, begun, ended, self.step)

    def stepped(self, optimizer: Any, begun: int, ended: int) -> None:
        """An optimizer stepped; where it ends a turn of the loop, a step is over."""
        if not self._alone(self._stepped, optimizer, begun, ended):
            # Counted all the same.
            self.tape.append((STEPPED, begun, ended, id(optimizer)))

    def _alone(self, look: Callable[..., None], *args: Any) -> bool:
        """Calls it unless a thread is at a step's end, this one too; whether it was called."""
        # Not acquire() and try: what a signal's handler raises in between would leave it locked.
        # Another thread that comes in between is waited for.
        if self._turn.locked():
            return False
        with self._turn:
            look(*args)
        return True

    def _stepped(self, optimizer: Any, begun: int, ended: int) -> None:
        self.catch_up()
        self._is_hurried = False
        if self.device_clock is not None and self.device_clock.is_capturing():
            return
        self._running.optimizer_ns += ended - begun
        if self._instead.is_over(self._num_instead, self._last_dur_ns):
            self._anchor = Anchor()
        if not self.is_by_hand and self._anchor.ends_step(id(optimizer)):
            if self.is_in_backward():
                # Optimizers that step as gradients come: a profiler that is attached or taken off
                # inside a pass ends the process.
                self._ends_after_backward, self._passes_left = True, 0
            else:
                self.ended_step(ended)

    @property
    def _num_instead(self) -> int:
        """Passes and replays since the last optimizer step."""
        return self._instead.num + len(self._running.passes)

    def _ended_instead(self, source: int, now: int) -> None:
        """Backward passes or replayed graphs end steps where no optimizer of torch does."""
        instead, num = self._instead, self._num_instead
        if self.is_by_hand:
            return
        if not instead.is_so:
            if not instead.begins(num, now, self._last_ns):
                return
            self._anchor = Anchor()
        if self._anchor.ends_step(source):
            instead.num = num
            self.ended_step(now)

    def ended_step(self, now: int) -> None:
        """A step is over at `now`."""
        is_first, window = self.writer is None, self.window
        if is_first:
            self._begin(now)
        else:
            self._keep(now)
        if window is not None:
            self._go_on(window)
        elif self.schedule.is_waiting(self.step):
            if self.schedule.is_due(self.step, now - self._begun_ns):
                self._record(now)
        else:
            self._free(self._next_due() - self.step)
        # Whatever we did since the step's end is in no step.
        has_worked = is_first or self.window is not window
        self._last_ns = clocks.perf_counter_ns() if has_worked else now
        self._running.clear()

    def catch_up(self) -> None:
        """Reads the tape: steps that needed no look become rows, the rest is of the running
        step."""
        # A call from inside this one (a signal's handler may train) must not wait for itself.
        thread = threading.get_ident()
        if self._reader == thread:
            return
        with self._lock:
            self._reader = thread
            try:
                self._read_tape()
            finally:
                self._reader = 0

    def _read_tape(self) -> None:
        # In one function, the usual kinds first: of what a step costs, this is the part that grows
        # with what is recorded.
        take, running = self.tape.popleft, self._running
        for _ in range(len(self.tape)):
            kind, begun, ended, who = take()
            if kind == PASSED:
                running.passed(begun, ended)
            elif kind == WAITED:
                running.waited(begun, ended, who)
                if self._epochs.is_pending:
                    self._epochs.took_first(ended - begun)
            elif kind == STEPPED:
                if who == self._last_stepped[0] and begun <= self._last_stepped[1]:
                    self.nests = True
                    self.hurry()
                    continue
                self._last_stepped = who, begun
                running.optimizer_ns += ended - begun
                self._instead.forget()
                if self._anchor.ends_step(who):
                    self._add_row(ended, self._state())
                    self._last_ns = ended
                    self._running.clear()
                else:
                    self.hurry()
            elif kind == SAVED:
                running.save_ns += ended - begun
                self._add_event("save", begun, ended, **who)
            elif kind == COLLECTED:
                self._collected(begun, ended, who)
            elif kind == EXCHANGED:
                running.comms.add(begun, ended)
            elif kind == LOGGED:
                running.log_ns += ended - begun
                if ended - begun >= NOTED_NS:
                    self._add_event("log", begun, ended, line=who)
            else:
                running.num_evals += 1
                if who is not None:
                    self._add_event("evaluation", begun, ended, line=who)
        if len(running.passes) >= MIN_INSTEAD:
            self.hurry()

    def _collected(self, at_ns: int, begins: Any, about: Any) -> None:
        over = self._collections.read(at_ns, begins, about)
        if over is None:
            return
        begun, is_asked, line = over
        self._running.gc_ns += at_ns - begun
        if at_ns - begun >= NOTED_NS:
            self._add_event("gc", begun, at_ns, line=line)
            window = self.window
            if window is not None:
                window.mark_read("gc.collect()" if is_asked else "Python GC", begun, at_ns, line)

    def _add_event(self, kind: str, begun: int, ended: int, **more: Any) -> None:
        if self.writer is not None:
            self.writer.event(kind, ended, dur_ns=ended - begun, step=self.step, **more)

    def _free(self, num_steps: int) -> None:
        self.free_steps[:] = [None] * num_steps
        if self._is_hurried:
            # Another thread came in between.
            self.free_steps.clear()

    def hurry(self) -> None:
        """The next step must be looked at."""
        self._is_hurried = True
        self.free_steps.clear()

    def _next_due(self) -> int:
        """The step before which a step's end is nothing but a row; 0 when it may be more."""
        clock = self.device_clock
        is_asked = clock is not None and (self.marks.holds(self.step) or clock.is_behind)
        usual = (
            not is_asked and not self._after and self.step > FIRST_STEPS and self._anchor.is_only
        )
        if self.is_by_hand or self._instead.is_so or self.nests or not usual:
            return 0
        look = self.step + NOTHING_DUE if clock is None else self.marks.next_look(self.step)
        wanted = self.schedule.wanted_step
        return look if wanted is None else min(look, wanted - 1)

    def ask(self, first_step: int) -> None:
        """A recording is wanted from this step on, or as soon as may be."""
        if self.window is None:
            self.catch_up()
            self.schedule.wanted_step = max(first_step, self.step + 1)
            self.hurry()

    def notice_device(self) -> None:
        """Notice in the writer's thread that a job has begun to use a GPU: the next step is looked
        at. Loggers that were imported since are hooked."""
        self.notice()
        if self.device_clock is None and device_clock(sys.modules["torch"]) is not None:
            self.hurry()

    def take_by_hand(self) -> None:
        """Count steps from now on when the training code says that one is over."""
        self.catch_up()
        self.is_by_hand = True
        self.hurry()

    def ended_by_hand(self, now: int) -> None:
        self._alone(self._ended_by_hand, now)

    def _ended_by_hand(self, now: int) -> None:
        self.catch_up()
        self.ended_step(now)

    @property
    def is_recording(self) -> bool:
        return self.window is not None and not self.window.is_over

    def abandon(self) -> None:
        """Takes a profiler off that was attached at the end; only the thread that did so can."""
        window = self.window
        if window is not None and window.is_mine and not self.is_in_backward():
            self.window = None
            with suppressed():
                window.discard()

    def finish(self) -> None:
        """The process ends: what is there is written down."""
        window, self.window = self.window, None
        if window is not None and window.end_with_process():
            self._recorded(window)
        let_cupti_leave()
        self.catch_up()
        self._epochs.end()
        if self.writer is not None:
            self.writer.finish()

    def _begin(self, now: int) -> None:
        """The first step's end: this process trains, so it gets a folder. Where a signal's handler
        cuts it short, the next step is taken for the first."""
        self._begun_ns, self.step = now, 0
        self.rows.clear()
        if self._first_writer is None:
            rank = rank_numbers(sys.modules["torch"])["rank"]
            self._first_writer = Writer(self, claim_rank(self.run, rank))
        self._epochs.tell = self._first_writer.event
        # Nobody saw it begin: it is no row, and has no length.
        self._add_row(now, FIRST)
        self._last_dur_ns = None
        self._first_writer.start(self._epochs.first_step(self.rows.pop()), self._made_ns)
        self.writer = self._first_writer
        self.notice()
        at_process_end(self.guard.watch(self.finish))

    def _keep(self, now: int) -> None:
        step = self.step
        if self.device_clock is None:
            self.device_clock = device_clock(sys.modules["torch"])
        clock, is_marked = self.device_clock, self.marks.holds(step)
        if clock is not None and is_marked:
            # Before its row is there: the writer takes rows beyond this one for such as will not be
            # measured.
            clock.last = step
        self._add_row(now, self._state())
        if clock is not None:
            for measured in clock.mark(step) if is_marked else clock.read():
                self._measured(*measured)

    def _add_row(self, now: int, state: int) -> None:
        # Threads that step the same optimizer may be read in another order than they stepped in.
        now = max(now, self._last_ns)
        self._last_dur_ns = now - self._last_ns
        step = self.step
        row = self._running.row(step, now, self._last_ns, state)
        # Before its row is there: one that a signal's handler keeps from coming is missing, and no
        # other has its number.
        self.step = step + 1
        self.rows.append(row)

    def _measured(self, step: int, device_ns: int, backward_ns: int | None) -> None:
        """Writes the device's time of an earlier step into its row, where that has not left yet."""
        # By index from the end, for the writer takes rows off the other end meanwhile.
        index = step - self.step
        with suppress(IndexError):
            row = self.rows[index]
            if row[0] == step:
                row[3], row[14] = device_ns, backward_ns

    def ready_rows(self, *, every: bool = False) -> list[Row]:
        """Rows that will not change any more; all of them at the end."""
        self.catch_up()
        ready = []
        while self.rows:
            step, clock = self.rows[0][0], self.device_clock
            is_waiting = (
                clock is not None
                and clock.settled < step <= clock.last
                and self.step - step <= MAX_PENDING
            )
            if is_waiting and not every:
                break
            ready.append(self.rows.popleft())
        return ready

    def _state(self) -> int:
        if self.is_recording:
            return PROFILED
        if self._after:
            self._after -= 1
            return AFTER
        return FIRST if self.step <= FIRST_STEPS else TIMED

    def _go_on(self, window: Window) -> None:
        self._with_window(window, window.step)
        if window.is_attached:
            return
        self.window = None
        self._after = AFTER_STEPS
        self._recorded(window)

    def _recorded(self, window: Window) -> None:
        assert self.writer is not None
        self.writer.event("window", clocks.perf_counter_ns(), **window.to_event())

    def _record(self, now: int) -> None:
        """Opens a window before the next step, where nothing is in its way."""
        assert self.writer is not None
        torch = sys.modules["torch"]
        problem = obstacle(torch, self.others)
        if problem is not None:
            self.writer.event("window", now, first_step=self.step, problem=problem)
            return
        self.writer.before_window()
        path = self.writer.folder / f"window-{self.step}.pt.trace.json"
        modules = ModuleMarks(torch, self.guard) if self.options.modules else None
        usual_ns = self._last_dur_ns or 0
        self.window = Window(torch, self.options, path, self.step, usual_ns, modules, self.others)
        self._with_window(self.window, self.window.open)

    def _with_window(self, window: Window, call: Callable[[], None]) -> None:
        """Where a signal's handler cuts it short, nobody knows how far it came: it ends there."""
        try:
            call()
        except BaseException as error:
            if not is_ours(error):
                window.problem = "a signal's handler cut the recording short"
                self.abandon()
                self._recorded(window)
            raise
