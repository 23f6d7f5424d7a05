"""The tables against what a plain json.load of the same file says, and against their
documentation."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.facts import PARTS
from stepscope.tables.rows.columns import BOOL, FLOAT, INT, TABLES, TEXT
from stepscope.tables.run import Run, load
from tests.builders import event, kernel, step_events, trace_text, write
from tests.shared_data import DEMO, ROOT, lab_traces, unpacked

Row = dict[str, Any]
STRAGGLER = lab_traces("ranks2/ddp_straggler.slow.*")


@lru_cache(maxsize=1)
def demo() -> Run:
    return load(DEMO, cache=False)


def rows(run: Run, name: str) -> list[Row]:
    found: list[Row] = run.tables[name].to_arrow().to_pylist()
    return found


@lru_cache(maxsize=4)
def raw(path: Path) -> tuple[Row, ...]:
    """The file's complete events, with times that are exact."""
    events = json.loads(unpacked(path), parse_float=Decimal)["traceEvents"]
    return tuple(one for one in events if one.get("ph") == "X")


def ns(value: Any) -> int:
    return int(Decimal(value) * 1000)


def of(path: Path, *categories: str) -> list[Row]:
    return [one for one in raw(path) if one.get("cat") in categories]


def arg(one: Row, name: str) -> Any:
    return one.get("args", {}).get(name)


def test_every_event_is_there_once() -> None:
    events, wanted = rows(demo(), "events"), raw(DEMO)
    assert len(events) == len(wanted)
    assert Counter((one["name"], one["start_ns"], one["dur_ns"]) for one in events) == Counter(
        (one["name"], ns(one["ts"]), ns(one["dur"])) for one in wanted
    )
    kinds = Counter(one["kind"] for one in events)
    cats = Counter(one["cat"] for one in wanted)
    assert (kinds["op"], kinds["kernel"], kinds["memcpy"]) == (
        cats["cpu_op"],
        cats["kernel"],
        cats["gpu_memcpy"],
    )
    assert all(one["event"] == number for number, one in enumerate(events))


def test_kernels_are_those_of_the_file() -> None:
    kernels, wanted = rows(demo(), "kernels"), of(DEMO, "kernel")
    assert len(kernels) == len(wanted) > 0
    assert sum(one["dur_ns"] for one in kernels) == sum(ns(one["dur"]) for one in wanted)
    assert Counter(
        (
            one["name"],
            one["correlation"],
            one["stream"],
            one["grid_x"],
            one["grid_z"],
            one["block_y"],
            one["registers"],
        )
        for one in kernels
    ) == Counter(
        (
            one["name"],
            arg(one, "correlation"),
            arg(one, "stream"),
            arg(one, "grid")[0],
            arg(one, "grid")[2],
            arg(one, "block")[1],
            arg(one, "registers per thread"),
        )
        for one in wanted
    )


def test_a_kernels_operator_is_the_innermost_around_its_launch() -> None:
    calls = {arg(one, "correlation"): one for one in of(DEMO, "cuda_runtime", "cuda_driver")}
    ops = of(DEMO, "cpu_op")
    checked = Counter[bool]()
    for one in rows(demo(), "kernels")[::40]:
        call = calls.get(one["correlation"])
        around = [
            op
            for op in ops
            if call
            and op["tid"] == call["tid"]
            and op["ts"] <= call["ts"] < Decimal(op["ts"]) + Decimal(op["dur"])
        ]
        innermost = max(around, key=lambda op: (op["ts"], -op["dur"]), default=None)
        assert one["op"] == (None if innermost is None else innermost["name"])
        assert one["launch_ns"] == (None if call is None else ns(call["ts"]))
        checked[innermost is not None] += 1
    assert checked[True] > 20
    assert checked[False] > 0


def test_launches_are_the_runtimes_calls() -> None:
    launches, wanted = rows(demo(), "launches"), of(DEMO, "cuda_runtime", "cuda_driver")
    assert Counter(one["name"] for one in launches) == Counter(one["name"] for one in wanted)
    assert sum(one["dur_ns"] for one in launches) == sum(ns(one["dur"]) for one in wanted)
    work = {arg(one, "correlation"): one for one in of(DEMO, "kernel", "gpu_memcpy", "gpu_memset")}
    launching = [one for one in launches if one["num_work"]]
    assert len(launching) == sum(arg(one, "correlation") in work for one in wanted)
    for one in launching[::100]:
        assert one["delay_ns"] == ns(work[one["correlation"]]["ts"]) - one["start_ns"]
    assert all(one["delay_ns"] is None for one in launches if not one["num_work"])


def test_copies_have_direction_size_and_bandwidth() -> None:
    copies, wanted = rows(demo(), "copies"), of(DEMO, "gpu_memcpy", "gpu_memset")
    assert len(copies) == len(wanted)
    assert sum(one["size_bytes"] for one in copies) == sum(arg(one, "bytes") for one in wanted)
    assert Counter(one["direction"] for one in copies if one["direction"]) == Counter(
        one["name"].split()[1] for one in wanted if one["cat"] == "gpu_memcpy"
    )
    for one in copies:
        assert one["bytes_per_s"] == pytest.approx(one["size_bytes"] / (one["dur_ns"] / 1e9))
        assert (one["direction"] is None) == (one["kind"] == "memset")


def test_a_step_is_the_distance_between_the_ends_of_two_steps_work() -> None:
    marks = sorted(
        (one for one in of(DEMO, "user_annotation") if one["name"].startswith("ProfilerStep#")),
        key=lambda one: one["ts"],
    )
    calls = {arg(one, "correlation"): one for one in of(DEMO, "cuda_runtime", "cuda_driver")}
    last: dict[int, int] = {}
    for one in of(DEMO, "kernel", "gpu_memcpy", "gpu_memset"):
        call = calls.get(arg(one, "correlation"))
        if call is not None:
            step = sum(mark["ts"] <= call["ts"] for mark in marks) - 1
            last[step] = max(last.get(step, 0), ns(one["ts"]) + ns(one["dur"]))
    steps = rows(demo(), "steps")
    assert [(one["step"], one["start_ns"], one["end_ns"]) for one in steps] == [
        (step, last[step - 1], last[step]) for step in sorted(last) if step - 1 in last
    ]
    assert [one["number"] for one in steps] == [
        int(marks[one["step"]]["name"].split("#")[1]) for one in steps
    ]
    assert [one["host_ns"] for one in steps] == [ns(marks[one["step"]]["dur"]) for one in steps]
    for one in steps:
        assert (
            sum(one[f"{part}_ns"] for part in PARTS)
            == one["step_interval_ns"]
            == one["end_ns"] - one["start_ns"]
        )


def test_findings_are_the_diagnosis() -> None:
    run = load(DEMO, 65.48, cache=False)
    found = rows(run, "findings")
    assert (
        [one["code"] for one in found]
        == [one.code for one in run.diagnosis.findings]
        == ["serial-loader", "launch-overhead", "unfused-pointwise"]
    )
    assert found[0]["predicted_step_ns"] == round(run.diagnosis.findings[0].predicted_step_ms * 1e6)
    assert found[0]["line"] is None, "no stacks were recorded"


def test_two_ranks_share_their_collectives() -> None:
    run = load(STRAGGLER, cache=False)
    assert [one["rank"] for one in rows(run, "ranks")] == [0, 1]
    found = rows(run, "collectives")
    for rank, path in enumerate(STRAGGLER):
        mine = [one for one in found if one["rank"] == rank]
        wanted = [one for one in of(path, "kernel") if "nccl" in one["name"].lower()]
        assert len(mine) == len(wanted) > 0
        assert sum(one["dur_ns"] for one in mine) == sum(ns(one["dur"]) for one in wanted)
        assert Counter(one["sequence"] for one in mine) == Counter(
            arg(one, "Seq") for one in wanted
        )
        assert Counter(one["group_size"] for one in mine) == Counter(
            arg(one, "Group size") for one in wanted
        )
        assert all(0 <= one["wait_ns"] <= one["dur_ns"] for one in mine)
    pairs = Counter((one["meeting"], one["op"], one["size_bytes"]) for one in found)
    assert set(pairs.values()) == {2}, (
        "the two ranks of one exchange have its number, operation and size in common"
    )
    assert all(
        min(one["wait_ns"] for one in found if one["meeting"] == meeting) == 0
        for meeting, _, _ in pairs
    )


def test_one_rank_alone_tells_no_waits() -> None:
    run = load(STRAGGLER[0], cache=False)
    assert (
        {one["meeting"] for one in rows(run, "collectives")}
        == {one["wait_ns"] for one in rows(run, "collectives")}
        == {None}
    )
    steps = rows(run, "steps")
    assert steps
    assert all(one["comms_wait_ns"] is None and one["comms_transfer_ns"] > 0 for one in steps)
    assert rows(run, "ranks")[0]["offset_ns"] is None


def test_waits_of_a_step_are_those_of_the_diagnosis() -> None:
    run = load(STRAGGLER, cache=False)
    told = {rank.rank: rank.typical_parts_ns for rank in run.diagnosis.facts.ranks}
    for rank, parts in told.items():
        median = [one for one in rows(run, "steps") if one["rank"] == rank and one["is_median"]]
        assert parts is not None
        for part in PARTS:
            assert sum(one[f"{part}_ns"] for one in median) / len(median) == parts[part]


def test_stacks_give_line_and_module(tmp_path: Path) -> None:
    events = [
        event(cat="python_function", name="train.py(3): step", ts=1, dur=90, args={"Python id": 1}),
        event(
            cat="python_function", name="nn.Module: Linear_0", ts=2, dur=80, args={"Python id": 2}
        ),
        event(name="aten::linear", ts=3, dur=50, args={"External id": 5}),
        event(
            cat="cuda_runtime",
            name="cudaLaunchKernel",
            ts=4,
            dur=4,
            args={"correlation": 77, "External id": 5},
        ),
        kernel(77, 100, 20),
    ]
    path = write(tmp_path / "a.json", trace_text(events))
    found = rows(load(path, cache=False), "kernels")
    assert [(one["line"], one["module"], one["op"]) for one in found] == [
        ("train.py:3 in step", "Linear_0", "aten::linear")
    ]


def test_what_was_not_recorded_is_missing_not_zero(tmp_path: Path) -> None:
    bare = event(cat="kernel", name="k", pid=0, tid=7, ts=1, dur=2, args={})
    found = rows(load(write(tmp_path / "a.json", trace_text([bare])), cache=False), "kernels")[0]
    for column in (
        "op",
        "module",
        "line",
        "phase",
        "launch_ns",
        "correlation",
        "grid_x",
        "block_z",
        "registers",
    ):
        assert found[column] is None, column
    for column in (
        "shared_bytes",
        "occupancy_pct",
        "precision",
        "tensor_core",
        "flops",
        "traffic_bytes",
        "floor_ns",
    ):
        assert found[column] is None, column


@pytest.mark.parametrize(
    "events", [[], [event(cat="kernel", name="k", ts=1, dur=0)], step_events()]
)
def test_every_table_is_built_from_little(tmp_path: Path, events: list[Row]) -> None:
    run = load(write(tmp_path / "a.json", trace_text(events)), cache=False)
    for name, spec in TABLES.items():
        table = run.tables[name].to_arrow()
        assert table.column_names == [column.name for column in spec.columns]
        table.validate(full=True)


def test_every_column_is_of_its_kind() -> None:
    kinds = {
        INT: "int64",
        FLOAT: "double",
        BOOL: "bool",
        TEXT: "dictionary<values=string, indices=int32, ordered=0>",
    }
    for name, spec in TABLES.items():
        types = [str(one) for one in demo().tables[name].to_arrow().schema.types]
        assert types == [kinds[column.kind] for column in spec.columns]


def test_times_are_whole_and_say_their_unit() -> None:
    for spec in TABLES.values():
        for column in spec.columns:
            assert not column.name.endswith("_ns") or column.kind == INT
            assert not re.search(r"(^|_)(ms|us|time|dur|start|end)$", column.name), column.name


def test_the_page_has_every_table_and_column() -> None:
    text = (ROOT / "docs" / "query.md").read_text(encoding="utf-8")
    told = {}
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        columns = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", section, re.MULTILINE)
        told[section.split("\n")[0]] = columns
    assert told == {
        name: [(c.name, c.kind, c.about) for c in spec.columns] for name, spec in TABLES.items()
    }


def test_steps_without_a_device_count_from_the_host(tmp_path: Path) -> None:
    marks = [
        event(cat="user_annotation", name=f"ProfilerStep#{n}", ts=100 * n, dur=100)
        for n in range(4, 7)
    ]
    ops = [event(name="aten::mm", ts=100 * n + 10, dur=30) for n in range(4, 7)]
    found = rows(
        load(write(tmp_path / "a.json", trace_text(marks + ops, header={})), cache=False), "steps"
    )
    assert [
        (one["step"], one["number"], one["step_interval_ns"], one["busy_ns"]) for one in found
    ] == [
        (0, 4, 100_000, None),
        (1, 5, 100_000, None),
        (2, 6, 100_000, None),
    ]
