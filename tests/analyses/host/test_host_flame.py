"""Stacks with their own time: they add up to what the thread's frames cover."""

from __future__ import annotations

from pathlib import Path

from stepscope.analyses.host.host_flame import host_flame
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.report.flame import flame_of
from stepscope.report.html.flame import flame_section
from tests.builders import trace_text, write


def frame(name: str, start: float, dur: float, thread: int = 1) -> dict[str, object]:
    return {
        "ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": thread,
        "ts": start, "dur": dur, "args": {},
    }  # fmt: skip


def stacks(tmp_path: Path, window: tuple[int, int]) -> dict[tuple[str, ...], int]:
    events = [
        frame("train.py(1): main", 0, 100),
        frame("train.py(9): step", 10, 40),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 12, "dur": 30},
        frame("model.py(3): forward", 15, 20),
        frame("train.py(9): step", 60, 30),
        frame("log.py(2): write", 0, 50, thread=2),
    ]
    path = write(tmp_path / "t.json", trace_text(events))
    trace = read_trace(Source(path=path, label="t"), use_cache=False)
    base = int(trace.start_ns.min())
    found = host_flame(trace, (base + window[0], base + window[1]))
    return dict(found)


def test_the_own_times_sum_to_the_thread_with_most(tmp_path: Path) -> None:
    own = stacks(tmp_path, (0, 100_000))
    main, step = "train.py:1 in main", "train.py:9 in step"
    assert own == {
        (main,): 30_000,
        (main, step): 50_000,
        (main, step, "model.py:3 in forward"): 20_000,
    }


def test_a_mark_that_outlives_its_frame_holds_no_others(tmp_path: Path) -> None:
    events = [
        frame("t.py(1): main", 0, 100),
        frame("profiler.py(5): __enter__", 0, 10),
        {
            "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
            "ts": 5, "dur": 90,
        },
        frame("t.py(7): work", 20, 50),
    ]  # fmt: skip
    path = write(tmp_path / "t.json", trace_text(events))
    trace = read_trace(Source(path=path, label="t"), use_cache=False)
    base = int(trace.start_ns.min())
    own = dict(host_flame(trace, (base, base + 100_000)))
    assert own["t.py:1 in main", "t.py:7 in work"] == 50_000
    assert sum(own.values()) == 100_000


def test_what_lies_outside_the_steps_is_cut_off(tmp_path: Path) -> None:
    own = stacks(tmp_path, (20_000, 70_000))
    assert sum(own.values()) == 50_000
    assert stacks(tmp_path, (200_000, 300_000)) == {}


def test_a_name_in_the_picture_is_text() -> None:
    svg = flame_of([(("<script>x</script>", 'a"b'), 3)], 'say "x"')
    assert "<script>" not in svg
    assert 'aria-label="say &quot;x&quot;"' in svg
    assert flame_section(()) is None
    section = flame_section(((("a", "b"), 3), (("b",), 1)))
    assert section is not None
    assert [(row["line"], row["share"]) for row in section["rows"]] == [("b", "100.0%")]
