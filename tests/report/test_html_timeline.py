"""The timeline's values for the page: they decode to the same slices, stay small, and keep
strangers' text harmless."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.analyses.timeline.step import Shared, draw
from stepscope.core.facts import PARTS
from stepscope.core.timeline import Gaps, Lane, Slices, Timeline, What
from stepscope.core.trace import NONE
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.report.html import SCRIPTS, _file
from stepscope.report.html.timeline import timeline_values
from tests.shared_data import DEMO

MAX_BYTES = 1_500_000


@pytest.fixture(scope="module")
def demo() -> Timeline:
    trace = read_trace(Source(path=DEMO, label="demo"), use_cache=False)
    context = build_context(trace, None)
    return draw(Shared(context, measure_rank(context, 0), None), most=3000)


def decoded(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Row, start, length, count, time, launch, size and the texts of every slice, read from the
    JSON as the page does."""
    starts: list[int] = []
    rows: list[int] = []
    for row, num in enumerate(values["rows"]):
        starts += accumulate(values["start"][len(starts) : len(starts) + num])
        rows += [row] * num
    launch = dict(zip(accumulate(values["launched"]), accumulate(values["launch"]), strict=True))
    flat = iter(values["blocks"])
    blocks = {at: (count, busy) for at, count, busy in zip(flat, flat, flat, strict=True)}
    flat = iter(values["sizes"])
    sizes = dict(zip(flat, flat, strict=True))
    width = len(values["fields"])
    whats = [values["whats"][k : k + width] for k in range(0, len(values["whats"]), width)]
    return [
        (
            rows[i],
            start,
            values["dur"][i],
            *blocks.get(i, (1, values["dur"][i])),
            launch.get(i, NONE),
            sizes.get(i, NONE),
            *(values["strings"][code] for code in whats[values["what"][i]]),
        )
        for i, start in enumerate(starts)
    ]


def test_values_decode_to_the_slices_they_were_made_of(demo: Timeline) -> None:
    values = json.loads(json.dumps(timeline_values(demo)))
    slices = decoded(values)
    s = demo.slices
    columns = (
        s.row,
        s.start_ns - demo.low_ns,
        s.dur_ns,
        s.count,
        s.busy_ns,
        s.launch,
        s.size_bytes,
    )
    assert [row[:7] for row in slices] == list(
        zip(*(column.tolist() for column in columns), strict=True)
    )
    fields = dict(zip(values["fields"], range(7, 15), strict=True))
    for row, what in zip(slices, s.what.tolist(), strict=True):
        name = demo.whats[what].name or ""
        assert row[fields["name"]] == name or (
            len(name) > 400 and name.startswith(row[fields["name"]][:200])
        )
        assert row[fields["op"]] == (demo.whats[what].op or "")
    assert any(count > 1 for count in s.count.tolist())
    assert any(launch != NONE for launch in s.launch.tolist())


def test_gaps_fill_the_window_and_name_their_parts(demo: Timeline) -> None:
    values = timeline_values(demo)
    low, high = values["window"]
    assert sum(values["gaps"]) == high - low == demo.window[1] - demo.window[0]
    assert [name for name, _ in values["parts"]] == list(PARTS)
    sums = dict.fromkeys(PARTS, 0)
    for ns, part in zip(values["gaps"], values["gap_parts"], strict=True):
        sums[PARTS[part]] += ns
    assert sums == {part: demo.part_ns(part) for part in PARTS}
    assert dict(values["parts"])["comms_transfer"] == "communication, not hidden"


def test_without_a_device_the_parts_are_called_what_the_other_views_call_them() -> None:
    timeline = crowded(1, "thread 1")
    words = dict(timeline_values(replace(timeline, where="host"))["parts"])
    assert words["compute"] == "operators"
    assert words["idle_other"] == "outside operators"
    assert dict(timeline_values(timeline)["parts"])["compute"] == "compute"


def test_what_was_left_out_is_said(demo: Timeline) -> None:
    values = timeline_values(demo)
    assert values["num_left_out"] == demo.num_left_out > 0
    assert values["num_events"] == demo.num_events


def crowded(num: int, name: str) -> Timeline:
    """So many slices, each of another name, with long times between them."""
    at = np.arange(num, dtype=np.int64)
    return Timeline(
        rank=0,
        step=0,
        num_steps=1,
        where="device",
        low_ns=0,
        window=(0, num * 10**8),
        lanes=(Lane(label=name, kind="host", first_row=0, num_rows=1),),
        slices=Slices(
            row=at * 0,
            start_ns=at * 10**8,
            dur_ns=at * 0 + 98_765_432,
            busy_ns=at * 0 + 98_765_432,
            count=at * 0 + 1,
            what=at,
            launch=np.where(at % 2, at - 1, NONE),
            size_bytes=at * 0 + NONE,
        ),
        whats=tuple(What(name=f"{name}{i}", kind="op") for i in range(num)),
        gaps=Gaps(
            start_ns=at[:1], dur_ns=at[:1] + num * 10**8, part=at[:1], moved_ns=0, waits_split=True
        ),
        num_events=num,
        num_left_out=0,
        num_lanes_left_out=0,
        num_frames=0,
    )


def test_the_most_slices_with_the_longest_names_stay_small() -> None:
    timeline = crowded(20_000, "kernel_" * 200)
    timeline.self_check()
    text = json.dumps(timeline_values(timeline), separators=(",", ":"))
    assert len(text.encode()) < MAX_BYTES
    names = {row[8] for row in decoded(json.loads(text))}
    assert len(names) > 10_000, "names that differ at their end are still distinguished"


def test_controls_and_direction_overrides_do_not_reach_the_page() -> None:
    values = timeline_values(crowded(2, "a\u202eb\x00\n</script>\u2028"))
    for text in (*values["strings"], values["lanes"][0][0]):
        assert text.isprintable(), repr(text)
    assert any("</script>" in text for text in values["strings"]), (
        "markup is text: whoever writes the page escapes it"
    )


def test_the_scripts_never_read_text_as_markup() -> None:
    script = "\n".join(_file(name) for name in SCRIPTS if name.startswith("timeline"))
    assert "window.stepscopeTimeline = function" in script
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "</script",
    ):
        assert forbidden not in script


def test_every_colour_that_is_asked_for_has_a_default_in_both_schemes() -> None:
    light, dark = _file("timeline.css").split("@media (prefers-color-scheme: dark)")
    kinds = (
        "op",
        "mark",
        "call",
        "compile",
        "copy",
        "set",
        "collective",
        "mixed",
        *(f"hue-{n}" for n in range(7)),
    )
    for name in (
        "ink",
        "paper",
        "muted",
        "line",
        "accent",
        *kinds,
        *(f"part-{part}" for part in PARTS),
    ):
        assert f"--t-{name}:" in light
        assert f"--t-{name}:" in dark
