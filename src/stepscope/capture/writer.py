"""Writes a rank's folder from a thread of its own, a little every second.

What a killed process leaves is at most that old.
"""

from __future__ import annotations

import os
import threading
from _thread import start_new_thread
from collections import deque
from pathlib import Path
from typing import Any, Protocol

from stepscope.capture import clocks
from stepscope.capture.counters.samples import Sampler
from stepscope.capture.counters.torch_devices import DynamoCounters
from stepscope.capture.describe.rank import live_notes, process_notes
from stepscope.capture.guard import Guard
from stepscope.capture.live import LiveFile
from stepscope.capture.losses import LossSampler
from stepscope.capture.made_at import MadeAt
from stepscope.capture.recording.schedule import Marks
from stepscope.capture.slow_step import SlowStep
from stepscope.capture.thinning import Thinning
from stepscope.protocol.json_text import json_text
from stepscope.protocol.options import Options
from stepscope.protocol.run_folder import (
    CONTROL_FILE,
    EVENTS_FILE,
    LIVE_FILE,
    PROBLEM_FILE,
    RANK_FILE,
    SAMPLES_FILE,
    STEP_COLUMNS,
    STEP_SUMMARY_COLUMNS,
    STEP_SUMMARY_FILE,
    STEPS_FILE,
    write_json,
)
from stepscope.protocol.slow_steps import slow_ns
from stepscope.protocol.untrusted import read_json_object

MAX_ROWS = 20_000
"""Steps written one by one; a longer run is written in stretches,
but for the steps around a recording."""
PIECE_NS = 10_000_000_000
"""Stretches are of one such piece, later of two, four, ..."""
AROUND = 64
"""Steps before a recording that are written one by one, however long the run is."""
MAX_EVENTS = 20_000
SAMPLES_A_DOUBLING = 2_400
STRETCHES_A_DOUBLING = 2_048
"""As many again each time that a run is twice as long: samples are left out, stretches longer."""


Row = list[Any]
"""One step, in the order of runfolder.STEP_COLUMNS."""


class Steps(Protocol):
    """The session whose steps are written, as far as the writer asks it."""

    run: Path
    options: Options
    guard: Guard
    loader: Any
    losses: LossSampler
    made_at: MadeAt
    marks: Marks
    rows: deque[Row]
    step: int
    window: Any

    def ready_rows(self, *, every: bool = False) -> list[Row]: ...

    def notice_device(self) -> None: ...

    def ask(self, first_step: int) -> None: ...


class Writer:
    """The files of one rank, and the thread that fills them."""

    def __init__(self, session: Steps, folder: Path) -> None:
        self.folder = folder
        self._session = session
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._num_events = 0
        self._num_rows = 0
        self._thin_samples = Thinning(SAMPLES_A_DOUBLING)
        self._recent: deque[Row] = deque(maxlen=AROUND)
        self._stretch: list[int] | None = None
        self._num_stretches = self._num_pieces = self._piece_ns = self._slow_ns = 0
        self._lengths: list[int] = []
        """Lengths of the steps of a stretch's last piece, without their saves."""
        self._notes: dict[str, Any] = {}
        self._sampler: Sampler | None = None
        self._live = LiveFile(folder / LIVE_FILE)
        self._last_turn = 0, 0
        """When the last turn was, and at which step."""
        self._control_ns = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[int] = []
        self._pid = os.getpid()
        self._has_looked = False
        self._slow = SlowStep()
        self._last_end_ns = 0

    def start(self, first_step: dict[str, Any], imported_ns: int) -> None:
        self._notes = process_notes() | {"imported_ns": imported_ns, "first_step": first_step}
        write_json(self.folder / RANK_FILE, self._notes)
        # Anew, where a signal's handler cut an earlier start short.
        for name, columns in (
            (STEPS_FILE, STEP_COLUMNS),
            (STEP_SUMMARY_FILE, STEP_SUMMARY_COLUMNS),
        ):
            line = json_text({"columns": columns})
            (self.folder / name).write_text(line + "\n", encoding="utf-8")
        # Not one of `threading`: a job that waits for every other thread would wait for ever.
        start_new_thread(self._run, ())

    @property
    def is_in_training_thread(self) -> bool:
        return self._slow.is_in_its_thread

    def event(self, kind: str, at_ns: int, **fields: Any) -> None:
        """Something worth a line; any thread may add it."""
        self._num_events += 1
        self._events.append({"kind": kind, "at_ns": at_ns, **fields})

    def before_window(self) -> None:
        """Prepare, before a recording, in the training thread.

        The job's objects are looked at, and the last steps written one by one.
        """
        self.look()
        with self._lock:
            self._drain(every=False)
            for row in self._recent:
                self._append(STEPS_FILE, json_text(row))
            self._recent.clear()

    def look(self) -> None:
        """The knobs of the live objects, once."""
        if not self._has_looked:
            self._has_looked = True
            loader = self._session.loader
            self._notes |= {
                **live_notes(loader.iterator(), self._session.made_at.line_of),
                "batch": loader.batch,
            }
            write_json(self.folder / RANK_FILE, self._notes)

    def finish(self) -> None:
        """The last lines.

        After a fork the child has our files but not our thread: it must not write.
        """
        if os.getpid() != self._pid:
            return
        self._notes["ended_ns"] = clocks.perf_counter_ns()
        self._session.guard.watch(self.look)()
        self._session.guard.watch(self._note_end)()
        self.last_lines()

    def _note_end(self) -> None:
        compiled = DynamoCounters().take().get("dynamo_compile_s")
        self._notes["dynamo_compile_s"] = compiled
        write_json(self.folder / RANK_FILE, self._notes)

    def last_lines(self) -> None:
        """What has not been written yet; nothing follows."""
        self._stop.set()
        with self._lock:
            self._drain(every=True)
            self._end_stretch()

    def _run(self) -> None:
        if self._threads:
            return
        self._threads.append(threading.get_ident())
        guard, options = self._session.guard, self._session.options
        turn = guard.watch(self._turn)
        self._sampler = guard.watch(Sampler)()
        while guard.is_on and not self._stop.wait(options.sample_s):
            turn()

    def _turn(self) -> None:
        with self._lock:
            self._drain(every=False)
            self._look_at_slow()
        self._session.notice_device()
        self._adapt()
        self._sample()
        self._live.write()
        self._obey()

    def _adapt(self) -> None:
        """How many steps a second."""
        now, step = clocks.perf_counter_ns(), self._session.step
        (before, from_step), self._last_turn = self._last_turn, (now, step)
        if before and now > before:
            steps_per_s = (step - from_step) * 1e9 / (now - before)
            self._live.steps_per_s = steps_per_s
            if step > from_step:
                self._session.marks.adapt(steps_per_s)

    def _sample(self) -> None:
        if self._sampler is None:
            return
        sample = self._sampler.take()
        if losses := self._session.losses.taken():
            sample["losses"] = losses
        line = json_text({"at_ns": clocks.perf_counter_ns(), "step": self._session.step, **sample})
        if self._thin_samples.keeps():
            self._append(SAMPLES_FILE, line)
        else:
            self._live.add(line)

    def _look_at_slow(self) -> None:
        rows, step = self._session.rows, self._session.step
        since_ns = rows[-1][1] if rows else self._last_end_ns
        line = self._slow.line(step, since_ns) if since_ns else None
        if line is not None:
            self.event("slow", clocks.perf_counter_ns(), step=step, line=line)

    def _obey(self) -> None:
        """What RUN/control.json asks for since we last looked."""
        path = self._session.run / CONTROL_FILE
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return
        # While one is recorded no other can be asked for: we look again.
        if changed == self._control_ns or self._session.window is not None:
            return
        self._control_ns = changed
        asked = read_json_object(path)
        wanted, ranks = asked.get("record_from"), asked.get("ranks")
        is_meant = not isinstance(ranks, list) or self._notes.get("rank") in ranks
        if isinstance(wanted, int) and is_meant:
            self._session.ask(wanted)

    def _drain(self, *, every: bool) -> None:
        rows = self._session.ready_rows(every=every)
        for row in rows:
            self._slow.add(row[2])
            self._last_end_ns = row[1]
        keep = max(0, min(len(rows), MAX_ROWS - self._num_rows))
        for row in rows[keep:]:
            self._recent.append(row)
            self._add(row)
            if self._live.wants(row[0]):
                self._live.add(json_text(row))
        self._num_rows += keep
        if keep:
            self._append(STEPS_FILE, row_lines(rows[:keep]))
        lines = [json_text(self._events.popleft()) for _ in range(len(self._events))]
        if lines and self._num_events <= MAX_EVENTS:
            self._append(EVENTS_FILE, "\n".join(lines))

    def _add(self, row: Row) -> None:
        """A step into the stretch it belongs to."""
        step, end_ns, dur_ns, wait_ns = row[0], row[1], row[2], row[4]
        if self._lengths and end_ns - self._piece_ns > PIECE_NS:
            self._end_piece()
            if self._num_pieces >= 1 << self._num_stretches // STRETCHES_A_DOUBLING:
                self._end_stretch()
        if not self._lengths:
            self._piece_ns = end_ns - dur_ns
        if self._stretch is None:
            self._stretch = [step, 0, end_ns - dur_ns, end_ns, dur_ns, dur_ns, 0, 0, 0, 0]
        stretch = self._stretch
        stretch[1] += 1
        stretch[3] = end_ns
        stretch[4], stretch[5] = min(stretch[4], dur_ns), max(stretch[5], dur_ns)
        stretch[6] += wait_ns
        stretch[7] += row[9]
        stretch[8] += row[12]
        stretch[9] += row[16]
        self._lengths.append(max(dur_ns - row[9], 0))

    def _end_piece(self) -> None:
        """Which steps are slow is judged among those of a few seconds, however long a stretch."""
        self._slow_ns += slow_ns(self._lengths)
        self._num_pieces, self._lengths = self._num_pieces + 1, []

    def _end_stretch(self) -> None:
        if self._lengths:
            self._end_piece()
        if self._stretch is not None:
            self._append(STEP_SUMMARY_FILE, json_text([*self._stretch, self._slow_ns]))
            self._stretch, self._slow_ns, self._num_pieces = None, 0, 0
            self._num_stretches += 1

    def _append(self, name: str, lines: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(lines + "\n")


def write_problem(run: Path, writer: Writer | None, problem: str) -> None:
    """Why the capture ended, once; in the rank's folder where there is one."""
    if writer is None:
        (run / f"problem-{os.getpid()}.txt").write_text(problem, encoding="utf-8")
        return
    (writer.folder / PROBLEM_FILE).write_text(problem, encoding="utf-8")
    writer.last_lines()


def row_lines(rows: list[Row]) -> str:
    """A line for each row.

    All are encoded at once, which takes a fifth of the time; rows are numbers, so brackets are
    theirs.
    """
    return json_text(rows, separators=(",", ":"))[1:-1].replace("],[", "]\n[")
