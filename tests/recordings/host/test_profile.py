"""Host profiles: the shapes that py-spy 0.4.3, pyinstrument 5.1 and viztracer 1.1 wrote for a small
job, counted by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.recordings.system import HostStacks, SystemReport
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.host import profile as host_profile
from stepscope.recordings.host import profile_stacks as host_profile_stacks
from tests.wording import any_mentions

MAIN = "thread (20180): MainThread;<module> (job.py:11);outer (job.py:8);inner (job.py:4)"
WORKER = "thread (20183): worker-0;thread_run (libpython3.11.so.1.0);Thread.run (threading.py:982)"
RAW = f"""\
{MAIN} 20
{MAIN};pthread_cond_timedwait (libc.so.6);0x7fa35 (libc.so.6) 30
{WORKER};inner (job.py:4) 25
{WORKER};inner (job.py:4);math_sqrt (mathmodule.c:13) 15
{WORKER};wait (threading.py:2);lock_acquire (libpython3.11.so.1.0);sem_wait (libc.so.6) 10
"""
SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def of_text(folder: Path, text: str | bytes) -> SystemReport:
    path = folder / "host.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return SystemReport(recordings=(host_profile.read_file(Source(path=path, label=str(path))),))


def stacks_of(folder: Path, content: Any) -> HostStacks:
    text = content if isinstance(content, str) else json.dumps(content)
    assert host_profile.is_mine(text.encode()[: 64 << 10], "x")
    return of_text(folder, text).stacks[0]


def speedscope(*profiles: dict[str, Any], exporter: str = "py-spy@0.4.3") -> dict[str, Any]:
    frames = [
        {"name": "main", "file": "/w/train.py", "line": 3},
        {"name": "forward", "file": "/x/site-packages/torch/nn.py", "line": 9},
        {"name": "log", "file": "/w/log.py", "line": 7},
    ]
    return {
        "$schema": SCHEMA,
        "profiles": list(profiles),
        "shared": {"frames": frames},
        "exporter": exporter,
        "name": "x",
    }


def shares(stacks: HostStacks) -> dict[str, tuple[float, float]]:
    return {
        spot.name: (round(spot.self_share, 6), round(spot.total_share, 6))
        for spot in stacks.functions
    }


def test_raw_stacks_with_threads_and_native_frames(tmp_path: Path) -> None:
    one = stacks_of(tmp_path, RAW)

    assert (one.tool, one.unit, one.amount, one.num_threads, one.has_native) == (
        "py-spy",
        "samples",
        100,
        2,
        True,
    )
    assert shares(one)["inner"] == (0.45, 0.9)
    assert shares(one)["0x7fa35"] == (0.3, 0.3)
    assert one.interpreter_share == 0.45
    assert one.gil_wait_share == 0.3  # not the semaphore of a lock of Python's
    assert {thread.name: thread.gil_wait_share for thread in one.threads} == {
        "thread (20180): MainThread": 0.6,
        "thread (20183): worker-0": 0.0,
    }
    assert [(spot.label, spot.total_share) for spot in one.training] == [("inner (job.py:4)", 0.9)]


def test_without_native_frames_nothing_is_said_of_the_lock(tmp_path: Path) -> None:
    report = of_text(tmp_path, "main (train.py:3);forward (torch/nn.py:9) 7\nmain (train.py:4) 3\n")

    (one,) = report.stacks
    assert (one.interpreter_share, one.gil_wait_share, one.num_threads) == (None, None, None)
    assert shares(one) == {"forward": (0.7, 0.7), "main": (0.3, 1.0)}
    assert [(spot.name, spot.total_share) for spot in one.training] == [("main", 1.0)]
    assert any_mentions(report.recordings[0].notes, "compiled code", "not recorded")


def test_recursion_is_counted_once(tmp_path: Path) -> None:
    one = stacks_of(tmp_path, "f (a.py:1);f (a.py:1);f (a.py:2) 4\nf (a.py:1);g (a.py:9) 4\n")

    assert shares(one) == {"f": (0.5, 1.0), "g": (0.5, 0.5)}


def test_speedscope_sampled(tmp_path: Path) -> None:
    threads = [
        {
            "type": "sampled",
            "name": 'Thread 1 ""',
            "unit": "seconds",
            "samples": [[0, 1], [0]],
            "weights": [0.03, 0.01],
        },
        {
            "type": "sampled",
            "name": 'Thread 2 "w"',
            "unit": "seconds",
            "samples": [[2], [9]],
            "weights": [0.04, 0.5],
        },
    ]

    report = of_text(tmp_path, json.dumps(speedscope(*threads)))

    (one,) = report.stacks
    assert (one.tool, one.unit, round(one.amount, 9)) == ("py-spy", "seconds", 0.08)
    assert shares(one) == {"forward": (0.375, 0.375), "main": (0.125, 0.5), "log": (0.5, 0.5)}
    assert {thread.name: thread.share for thread in one.threads} == {
        'Thread 1 ""': pytest.approx(0.5),
        'Thread 2 "w"': pytest.approx(0.5),
    }
    assert any_mentions(report.recordings[0].notes, "1 sample", "calls")


def test_speedscope_evented(tmp_path: Path) -> None:
    order = [("O", 0, 0), ("O", 10, 1), ("C", 40, 1), ("O", 40, 2), ("C", 50, 2), ("C", 60, 0)]
    events = [{"type": kind, "at": at, "frame": frame} for kind, at, frame in order]

    one = stacks_of(
        tmp_path,
        speedscope(
            {"type": "evented", "name": "m", "unit": "milliseconds", "events": events}, exporter="x"
        ),
    )

    assert (one.tool, round(one.amount, 9)) == ("speedscope", 0.06)
    assert shares(one) == {
        "main": (round(20 / 60, 6), 1.0),
        "forward": (0.5, 0.5),
        "log": (round(10 / 60, 6), round(10 / 60, 6)),
    }


def test_pyinstrument_report_and_session(tmp_path: Path) -> None:
    def node(function: str, time: float, *children: Any, file: str = "job.py") -> dict[str, Any]:
        return {
            "function": function,
            "file_path": file,
            "line_no": 2,
            "time": time,
            "children": list(children),
        }

    tree = node(
        "main",
        2.0,
        node("inner", 1.5, node("[self]", 1.0, file=""), node("sqrt", 0.5, file="<built-in>")),
    )
    start: dict[str, Any] = {"start_time": 1.5, "duration": 2.0, "sample_count": 5}

    report = stacks_of(tmp_path, {**start, "cpu_time": 1.0, "root_frame": tree})
    records = [
        [["MainThread\0<thread>\x00140", "main\0job.py\0001\1l8", "inner\0job.py\0002\1l4"], 1.5],
        [["main\0job.py\0001"], 0.5],
    ]
    session = stacks_of(tmp_path, {**start, "start_call_stack": ["main"], "frame_records": records})

    assert shares(report) == {"inner": (0.5, 0.75), "sqrt": (0.25, 0.25), "main": (0.25, 1.0)}
    assert report.interpreter_share is None  # what a C function calls is not known
    assert shares(session) == {"inner": (0.75, 0.75), "main": (0.25, 1.0)}
    assert [thread.name for thread in session.threads] == ["MainThread"]


def test_viztracer_calls_lie_in_one_another(tmp_path: Path) -> None:
    def call(name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
        return {"pid": 7, "tid": tid, "ts": ts, "ph": "X", "cat": "fee", "dur": dur, "name": name}

    events = [
        {"ph": "M", "pid": 7, "tid": 1, "name": "thread_name", "args": {"name": "MainThread"}},
        call("inner (/w/job.py:2)", 110, 30),
        call("time.time", 120, 10),
        call("outer (/w/job.py:6)", 100, 100),
        call("inner (/w/job.py:2)", 150, 50),
        call("other (/w/job.py:9)", 100, 100, tid=2),
    ]

    one = stacks_of(tmp_path, {"traceEvents": events, "viztracer_metadata": {"version": "1.1.1"}})

    assert (one.tool, round(one.amount, 12)) == ("viztracer", 200e-6)
    assert shares(one) == {
        "outer": (0.1, 0.5),
        "inner": (0.35, 0.4),
        "time.time": (0.05, 0.05),
        "other": (0.5, 0.5),
    }
    assert {thread.name for thread in one.threads} == {"MainThread (1)", "thread (2)"}


def test_functions_and_depth_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_profile_stacks, "MAX_FUNCTIONS", 50)
    monkeypatch.setattr(host_profile_stacks, "MAX_STACKS", 100)
    deep = ";".join(f"f (a.py:{i})" for i in range(1, 700)) + " 1\n"
    many = "".join(f"f\x1b[2J{i} (a.py:1);g (b.py:2) 1\n" for i in range(1000))

    report = of_text(tmp_path, deep + many)

    (one,) = report.stacks
    assert one.amount == 1001
    assert shares(one)["g"][0] == round(1000 / 1001, 6)
    notes = " ".join(report.recordings[0].notes)
    assert "deeper than 512" in notes
    assert "after the first 50" in notes


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\x00" * 4000,
        b"{",
        b"[" * 100_000,
        b'{"start_time": 1, "sample_count": 1, "root_frame": '
        + b'{"function": "f", "time": 1, "children": [' * 20_000,
        b'{"traceEvents": [{"ph": "X", "cat": "fee", "ts": "x"}]}',
        b'{"$schema": "' + SCHEMA.encode() + b'", "profiles": {}, "shared": 3}',
        b'{"$schema": "' + SCHEMA.encode() + b'", "profiles": [], "shared": {"frames": []}}',
        b'{"start_time": 1, "sample_count": 1, "root_frame": {"function": "f", "time": 1e400}}',
        b"f (a.py:1) 99999999999999999999\n",
    ],
)
def test_hostile_files_are_refused_in_words(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(FormatError, match=r"host\.json: "):
        of_text(tmp_path, text)


def test_any_cut_is_read_or_refused(tmp_path: Path) -> None:
    whole = json.dumps(
        speedscope(
            {"type": "sampled", "name": "t", "unit": "seconds", "samples": [[0]], "weights": [1.0]}
        )
    )
    for text in (whole, RAW):
        for end in range(0, len(text), 13):
            with suppress(FormatError):
                assert of_text(tmp_path, text[:end]).stacks


@pytest.mark.parametrize(
    "head",
    [
        b"epoch 1 loss 5\nepoch 2 loss 4\n",
        b'{"traceEvents": [{"ph": "X", "cat": "kernel"}]}',
        b"a,b\n1,2\n",
        b"node0:1:2 [0] NCCL INFO x 3\n",
    ],
)
def test_other_files_are_not_claimed(head: bytes) -> None:
    assert not host_profile.is_mine(head, "x")


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "host-profile", "stacks.txt", RAW.encode()
    dump = 'Process 7: python t.py\n\nThread 7 (active): "MainThread"\n    forward (model.py:41)\n'
    yield "host-profile", "dump.txt", dump.encode()
    sampled = {
        "type": "sampled",
        "name": "main",
        "unit": "seconds",
        "samples": [[0, 1], [0, 2]],
        "weights": [0.5, 0.25],
    }
    events = [{"type": kind, "frame": 0, "at": ms} for kind, ms in (("O", 0), ("C", 5))]
    evented = {"type": "evented", "name": "main", "unit": "milliseconds", "events": events}
    yield (
        "host-profile",
        "speedscope.json",
        json.dumps(speedscope(sampled, evented)).encode(),
    )
    leaf = {"function": "forward", "file_path": "nn.py", "line_no": 9, "time": 1.5, "children": []}
    root = {
        "function": "main",
        "file_path": "train.py",
        "line_no": 3,
        "time": 2.0,
        "children": [leaf, leaf],
    }
    session = {
        "start_time": 1.5,
        "duration": 2.0,
        "sample_count": 5,
        "cpu_time": 1.0,
        "root_frame": root,
    }
    yield "host-profile", "pyinstrument.json", json.dumps(session).encode()
    call = {
        "ph": "X",
        "cat": "fee",
        "name": "step (/w/train.py:3)",
        "pid": 1,
        "tid": 1,
        "ts": 0.5,
        "dur": 9.5,
    }
    name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "MainThread"}}
    trace = {
        "traceEvents": [name, call, call | {"ts": 2, "dur": 3}],
        "viztracer_metadata": {"version": "1.1"},
    }
    yield "host-profile", "viztracer.json", json.dumps(trace).encode()


EXPORTED = (
    "st.py(6):_<module> 2\n"
    "st.py(6):_<module>;torch/nn/modules/linear.py(130):_forward;<built-in_function_linear> 2998\n"
    "st.py(6):_<module>;st.py(4):_step 1000\n"
)
"""As `export_stacks` of torch 2.13 wrote it, shortened."""


def test_stacks_that_torch_exported_are_seconds_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    path.write_text(EXPORTED)
    assert host_profile.is_mine(EXPORTED.encode(), "stacks.txt")
    recording = host_profile.read_file(Source(path=path, label="stacks.txt"))
    (stacks,) = recording.stacks
    assert (stacks.tool, stacks.unit) == ("export_stacks", "seconds")
    assert stacks.amount == pytest.approx(4000e-6)
    by_name = {spot.name: spot for spot in stacks.functions}
    assert by_name["step"].file == "st.py"
    assert by_name["step"].self_share == pytest.approx(0.25)
    assert by_name["<built-in_function_linear>"].self_share == pytest.approx(0.7495)
    assert any_mentions(recording.notes, "which time")
