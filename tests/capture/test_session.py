"""The session, told by hand what hooks would tell, on a clock that is made up."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.installed import need

need("torch")

import torch as torch  # noqa: PLC0414 - the capture begins with it

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.probes import Probe
from stepscope.capture.hooks.stalls import evaluated, saved
from stepscope.capture.hooks.step import backward_probe, next_probe, step_probe
from stepscope.capture.hooks.without_optimizer import MIN_INSTEAD, PATIENCE_NS
from stepscope.capture.passes import MAX_PASSES, outermost
from stepscope.capture.recording.device_clock import DeviceClock
from stepscope.capture.recording.schedule import ALL_MARKED, MARKED, SELDOM
from stepscope.capture.recording.window import Window
from stepscope.capture.session import Session
from stepscope.capture.tape import COLLECTED
from stepscope.protocol.options import Options
from stepscope.protocol.run_folder import (
    CONTROL_FILE,
    STEP_SUMMARY_COLUMNS,
    STEP_SUMMARY_FILE,
    STEPS_FILE,
    write_json,
)
from tests.capture.fakes import MarksOnly

MS = 1_000_000
NEVER = 10**9


def within(probe: Probe, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as the capture compiles it anew."""

    def wrapper(*args: Any) -> Any:
        token = result = None
        try:
            token = probe.enter(*args)
            result = function(*args)
            return result
        finally:
            probe.leave(token, result)

    return wrapper


class Job:
    """A loop on a clock of its own: a batch takes 1 ms, backward 2, the optimizer 3; each step has
    two of the first two."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10 * MS
        monkeypatch.setattr("stepscope.capture.clocks.perf_counter_ns", lambda: self.now)
        self.guard = Guard()
        self.session = Session(folder, Options(start_step=NEVER, sample_s=1e6), self.guard)
        self.next = within(next_probe(self.session, self.guard), self._takes(1))
        self.backward = within(backward_probe(self.session, self.guard), self._takes(2))
        self.step_probe = step_probe(self.session, self.guard, self.session.abandon)
        self.optimizer_step = within(self.step_probe, self._takes(3))
        self.optimizer = object()

    def _takes(self, ms: int) -> Callable[[Any], None]:
        def function(_: Any) -> None:
            self.now += ms * MS

        return function

    def step(self) -> None:
        for _ in range(2):
            self.next(self)
            self.backward(self)
        self.optimizer_step(self.optimizer)

    def rows(self) -> list[list[Any]]:
        return self.session.ready_rows(every=True)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    made = Job(tmp_path, monkeypatch)
    yield made
    made.session.finish()
    made.guard.off()


def test_every_step_is_a_row_whether_it_is_looked_at_or_not(job: Job) -> None:
    looked_at = []
    stepped = job.session.stepped

    def stepped_and_told(*args: Any) -> None:
        looked_at.append(job.session.step)
        stepped(*args)

    job.session.stepped = stepped_and_told  # type: ignore[method-assign,assignment]
    for _ in range(300):
        job.step()
    rows = job.rows()
    assert [row[0] for row in rows] == list(range(1, 300))
    assert {tuple(row[2:11]) for row in rows} == {
        (9 * MS, None, 2 * MS, 2, 4 * MS, 2, 3 * MS, 0, 0)
    }
    assert len(looked_at) < 15, "most steps go by with a word to the tape"


def test_an_optimizer_that_steps_in_a_thread_of_autograd_ends_a_step(job: Job) -> None:
    """As one does on a GPU where it steps as gradients come."""
    main = threading.get_ident()
    job.session.is_in_backward = lambda: threading.get_ident() != main

    def backward(_: Any) -> None:
        job.now += 2 * MS
        thread = threading.Thread(target=job.optimizer_step, args=(job.optimizer,))
        thread.start()
        thread.join()

    hooked = within(backward_probe(job.session, job.guard), backward)
    for _ in range(8):
        hooked(job)
    assert [row[2] for row in job.rows()] == [5 * MS] * 7


def test_a_second_optimizer_is_no_step_of_its_own_and_is_heeded(job: Job) -> None:
    for _ in range(60):
        job.step()
    other = object()
    for _ in range(60):
        job.backward(job)
        job.optimizer_step(other)
        job.step()
    rows = job.rows()
    assert len(rows) == 119
    assert {row[8] for row in rows[60:]} == {6 * MS}, "both optimizers' time is in the step"


@pytest.mark.parametrize("first_steps", [0, 60])
def test_a_step_inside_its_own_step_is_one_step(job: Job, first_steps: int) -> None:
    for _ in range(first_steps):
        job.step()
    outer = within(job.step_probe, job.optimizer_step)
    for _ in range(60):
        job.backward(job)
        outer(job.optimizer)
    assert len(job.rows()) == first_steps + 59


@pytest.mark.parametrize("first_steps", [0, 60])
def test_what_a_step_raises_has_no_cause_of_ours(job: Job, first_steps: int) -> None:
    for _ in range(first_steps):
        job.step()

    def fail(_: Any) -> None:
        raise IndexError("the job's own")

    failing = within(job.step_probe, fail)
    with pytest.raises(IndexError, match="the job's own") as raised:
        failing(job.optimizer)
    assert raised.value.__context__ is None


def test_a_job_that_drops_its_optimizer_is_noticed(job: Job) -> None:
    for _ in range(60):
        job.step()
    assert job.session.free_steps
    for _ in range(MIN_INSTEAD):
        job.backward(job)
    job.session.ready_rows()
    assert not job.session.free_steps, "from now on passes are looked at"


def test_what_is_saved_or_collected_counts_to_the_step_it_came_in(job: Job) -> None:
    for _ in range(100):
        job.step()
    saved(job.session, job.now, job.now + 5 * MS)
    for phase in (({"generation": 2}, None), (None, {"generation": 2})):
        job.session.tape.append((COLLECTED, job.now, phase[0], (phase[1], (5, 0, 0), (None, None))))
        job.now += 7 * MS
    job.now -= 14 * MS
    evaluated(job.session, job.now, job.now, is_noted=True)
    for _ in range(5):
        job.step()
    rows = job.rows()
    assert [(row[0], row[9], row[10], row[12]) for row in rows if row[9] or row[10]] == [
        (100, 5 * MS, 7 * MS, 1)
    ]


def test_a_pass_inside_another_is_counted_once() -> None:
    assert outermost([(10, 20), (30, 40), (5, 50), (60, 70)]) == (55, 2)
    assert outermost([]) == (0, 0)


def test_a_gpu_that_comes_later_is_noticed_by_the_writer(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        job.step()
    monkeypatch.setattr("stepscope.capture.session.device_clock", lambda _: MarksOnly())
    job.step()
    assert job.session.device_clock is None, "nothing is due, so nothing is looked at"
    job.session.notice_device()
    job.step()
    assert isinstance(job.session.device_clock, MarksOnly)


def test_after_the_first_steps_the_device_is_asked_for_some(job: Job) -> None:
    job.step()
    clock = job.session.device_clock = MarksOnly()
    for _ in range(ALL_MARKED + 4 * SELDOM):
        job.step()
    assert clock.marked[: ALL_MARKED - 1] == list(range(1, ALL_MARKED))
    later = [step for step in clock.marked if ALL_MARKED + SELDOM <= step < ALL_MARKED + 2 * SELDOM]
    assert MARKED <= len(later) <= MARKED + 2


def test_hundreds_of_passes_are_one_step_for_as_long_as_one_has_patience(job: Job) -> None:
    num = 3 * MIN_INSTEAD
    assert num * 2 * MS < PATIENCE_NS
    for _ in range(4):
        for _ in range(num):
            job.backward(job)
        job.optimizer_step(job.optimizer)
    assert [row[7] for row in job.rows()] == [num] * 3


def test_replayed_graphs_are_steps_where_no_optimizer_steps(job: Job) -> None:
    job.step()
    graph, replay_ns = object(), 100 * MS
    for _ in range(MIN_INSTEAD + 2 * PATIENCE_NS // replay_ns):
        job.now += replay_ns
        job.session.replayed(graph, job.now - replay_ns, job.now)
    rows = job.rows()
    assert len(rows) >= PATIENCE_NS // replay_ns
    assert {row[2] for row in rows[1:]} == {replay_ns}


def test_a_long_run_is_written_in_stretches(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.capture.writer.MAX_ROWS", 10)
    for _ in range(40):
        job.step()
    saved(job.session, job.now, job.now + 5 * MS)
    for _ in range(20):
        job.step()
    writer = job.session.writer
    assert writer is not None
    writer.last_lines()
    steps = (writer.folder / STEPS_FILE).read_text().splitlines()
    _, stretch = map(json.loads, (writer.folder / STEP_SUMMARY_FILE).read_text().splitlines())
    assert len(steps) == 1 + 10
    told = dict(zip(STEP_SUMMARY_COLUMNS, stretch, strict=True))
    assert (told["first_step"], told["num_steps"]) == (11, 49)
    assert told["save_ns"] == 5 * MS


def test_what_is_asked_for_inside_a_recording_is_recorded_after_it(job: Job) -> None:
    for _ in range(2):
        job.step()
    writer, session = job.session.writer, job.session
    assert writer is not None
    write_json(session.run / CONTROL_FILE, {"record_from": 40})
    session.window, opened = cast("Window", object()), session.window
    writer._obey()
    session.window = opened
    assert session.schedule.wanted_step == NEVER
    writer._obey()
    assert session.schedule.wanted_step == 40


def test_a_handler_that_comes_in_between_does_not_hang(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        job.step()
    handled: list[int] = []
    read = job.session._read_tape

    def read_and_interrupted() -> None:
        if not handled:
            handled.append(1)
            job.step()
        read()

    monkeypatch.setattr(Session, "_read_tape", lambda _: read_and_interrupted())
    job.session.catch_up()
    job.step()
    assert handled
    assert job.guard.is_on


def test_steps_that_the_device_is_not_asked_for_do_not_wait_for_it(job: Job) -> None:
    """As a device that is always three marks behind."""

    class Event:
        num_recorded = 0

        def record(self) -> None:
            Event.num_recorded += 1
            self.number = Event.num_recorded

        def query(self) -> bool:
            self.asked = getattr(self, "asked", 0) + 1
            return self.asked > 3

        def elapsed_time(self, _: Any) -> float:
            return 9.0

    class Cuda:
        def Event(self, **_: Any) -> Event:  # noqa: N802 - torch's name
            return Event()

        def current_device(self) -> int:
            return 0

        def is_current_stream_capturing(self) -> bool:
            return False

    job.step()
    job.session.device_clock = DeviceClock(Cuda())
    most = 0
    for _ in range(ALL_MARKED + 3 * SELDOM):
        job.step()
        job.session.ready_rows()
        if job.session.step > ALL_MARKED + SELDOM:
            most = max(most, len(job.session.rows))
    assert most <= 2 * MARKED, "rows are held for the marked steps alone"


def test_passes_without_any_step_do_not_pile_up(job: Job) -> None:
    job.session.take_by_hand()
    for _ in range(5000):
        job.backward(job)
    job.session.catch_up()
    assert len(job.session._running.passes._passes) <= MAX_PASSES
    job.session.ended_by_hand(job.now)
    job.backward(job)
    job.session.ended_by_hand(job.now)
    assert [row[6:8] for row in job.rows()] == [[2 * MS, 1]], "the first step's end begins the run"
