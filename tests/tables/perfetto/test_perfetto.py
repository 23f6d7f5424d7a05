"""The timeline against the trace it was made from, read back by a reader that shares nothing with
the writer."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.recordings.perfetto.args import INPUTS, LAUNCH
from tests.builders import event, kernel, trace_text, write
from tests.shared_data import DEMO, lab_trace, unpacked
from tests.wording import mentions

Slice = tuple[str, int, int, str]
"""Name, start, length, track."""
Texts = dict[tuple[int, int, int], str]
"""What was interned: of a sequence, of a kind, by number."""


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """A message's fields by the protobuf encoding: number and value."""
    found: list[tuple[int, int | bytes]] = []
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = varint(data, at - 1)
        kind = key & 7
        if kind == 1:
            found.append((key >> 3, data[at : at + 8]))
            at += 8
            continue
        value = data[at]
        at += 1
        if value > 127:
            value, at = varint(data, at - 1)
        if kind == 0:
            found.append((key >> 3, value))
        else:
            assert kind == 2, f"wire type {kind}"
            assert at + value <= end, "cut off"
            found.append((key >> 3, data[at : at + value]))
            at += value
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next field begins."""
    value = shift = 0
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1


def as_dict(data: Any) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


class Args(Mapping[str, Any]):
    """What a slice tells, decoded when somebody asks: there are hundreds of thousands."""

    def __init__(self, raw: list[bytes], sequence: int, texts: Texts) -> None:
        self.raw, self.sequence, self.texts = raw, sequence, texts

    @cached_property
    def told(self) -> dict[str, Any]:
        return dict(_arg(as_dict(raw), self.sequence, self.texts) for raw in self.raw)

    def __getitem__(self, name: str) -> Any:
        return self.told[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.told)

    def __len__(self) -> int:
        return len(self.told)


@dataclass
class Read:
    """What a viewer would see of a file."""

    tracks: dict[int, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    of_process: dict[int, int] = field(default_factory=dict)
    slices: list[tuple[int, str, int, int, Mapping[str, Any], list[int], list[int]]] = field(
        default_factory=list
    )
    """Track, name, start, end, args, arrows that begin here, arrows that end here."""
    points: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def named(self, process: str | None = None) -> list[Slice]:
        return [
            (name, start, end - start, self.tracks[track])
            for track, name, start, end, *_ in self.slices
            if process is None or self.processes[self.of_process[track]] == process
        ]

    def counter(self, name: str) -> list[tuple[int, float]]:
        return next(points for track, points in self.points.items() if self.tracks[track] == name)


def read_proto(path: Path) -> Read:
    """Packets in the order of their times, equal ones as they stand; slices open and close on their
    track's stack."""
    read, events = Read(), []
    texts: Texts = {}
    for number, packet in fields(path.read_bytes()):
        assert number == 1
        told = as_dict(packet)
        sequence = told[10][0]
        for interned in told[12]:
            for kind, entry in fields(interned):
                one = as_dict(entry)
                assert (
                    texts.setdefault((sequence, kind, one[1][0]), one[2][0].decode())
                    == one[2][0].decode()
                )
        for raw in told[60]:
            _describe(read, as_dict(raw))
        events += [(told[8][0], sequence, as_dict(raw)) for raw in told[11]]
    stacks: dict[int, list[Any]] = defaultdict(list)
    for time, sequence, one in sorted(events, key=lambda row: row[0]):
        track = one[11][0]
        if one[9] == [1]:
            name = one[23][0].decode() if one[23] else texts[sequence, 2, one[10][0]]
            arrows = [[struct.unpack("<q", raw)[0] for raw in one[which]] for which in (47, 48)]
            stacks[track].append((name, time, Args(one[4], sequence, texts), *arrows))
        elif one[9] == [2]:
            name, start, *rest = stacks[track].pop()
            read.slices.append((track, name, start, time, *rest))
        else:
            read.points[track].append((time, struct.unpack("<d", one[44][0])[0]))
    assert not any(stacks.values()), "slices that never close"
    return read


def _describe(read: Read, told: dict[int, list[Any]]) -> None:
    uuid = told[1][0]
    if uuid == 0:
        assert (told[19], told[20]) == ([1], [1]), "ranks and threads in our order"
        return
    if told[3]:
        read.processes[uuid] = as_dict(told[3][0])[6][0].decode()
        return
    read.of_process[uuid] = told[5][0]
    read.tracks[uuid] = (as_dict(told[4][0])[5][0] if told[4] else told[2][0]).decode()


def _arg(told: dict[int, list[Any]], sequence: int, texts: Texts) -> tuple[str, Any]:
    name = told[10][0].decode() if told[10] else texts[sequence, 3, told[1][0]]
    if told[12]:
        return name, [as_dict(one)[6][0].decode() for one in told[12]]
    if told[17]:
        return name, texts[sequence, 29, told[17][0]]
    if told[6]:
        return name, told[6][0].decode()
    return name, struct.unpack("<d", told[5][0])[0] if told[5] else told[4][0] if told[4] else []


def read_json(path: Path) -> Read:
    text = unpacked(path)
    read, threads = Read(), {}
    counters: dict[tuple[int, str], int] = {}
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    for record in events:
        if record["ph"] == "M" and record["name"] == "process_name":
            read.processes[record["pid"]] = record["args"]["name"]
        elif record["ph"] == "M" and record["name"] == "thread_name":
            read.tracks[record["tid"]], read.of_process[record["tid"]] = (
                record["args"]["name"],
                record["pid"],
            )
            threads[record["tid"]] = record["pid"]
    for record in events:
        if record["ph"] == "X":
            assert threads[record["tid"]] == record["pid"]
            start = int(record["ts"] * 1000)
            read.slices.append(
                (
                    record["tid"],
                    record["name"],
                    start,
                    start + int(record["dur"] * 1000),
                    record["args"],
                    [],
                    [],
                )
            )
        elif record["ph"] == "C":
            number = counters.setdefault((record["pid"], record["name"]), -len(counters) - 1)
            read.tracks[number], read.of_process[number] = record["name"], record["pid"]
            read.points[number].append(
                (int(record["ts"] * 1000), float(next(iter(record["args"].values()))))
            )
    return read


def recorded(path: Path) -> list[dict[str, Any]]:
    """The trace's complete events, by the standard library alone."""
    text = unpacked(path)
    return [
        record
        for record in json.loads(text, parse_float=Decimal)["traceEvents"]
        if record.get("ph") == "X"
    ]


def ns(value: Any) -> int:
    return int(Decimal(value) * 1000)


def export(target: Path, *paths: Path, more: tuple[str, ...] = ()) -> Path:
    assert (
        main(
            [
                "export",
                "perfetto",
                *map(str, paths),
                "-o",
                str(target),
                "--no-cache",
                "--jobs",
                "1",
                *more,
            ]
        )
        == 0
    )
    return target


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Read:
    return read_proto(
        export(tmp_path_factory.mktemp("demo") / "demo.pftrace", DEMO, more=("--step-ms", "65.48"))
    )


@pytest.fixture(scope="module")
def demo_events() -> list[dict[str, Any]]:
    return recorded(DEMO)


OWN = {"steps", "partition", "critical path"}


def test_every_recorded_event_is_a_slice_of_its_track(
    demo: Read, demo_events: list[dict[str, Any]]
) -> None:
    track = {
        (426, 456, False): "thread 456 (python3)",
        (426, 426, False): "thread 426 (python3)",
        (0, 7, False): "stream 7",
        (0, 7, True): "stream 7 marks",
        ("Spans", "PyTorch Profiler", False): "PyTorch Profiler",
    }
    first = min(ns(record["ts"]) for record in demo_events)
    wanted = Counter(
        (
            record["name"],
            ns(record["ts"]) - first,
            ns(record["dur"]),
            track[record["pid"], record["tid"], record["cat"] == "gpu_user_annotation"],
        )
        for record in demo_events
    )
    assert Counter(record for record in demo.named("rank 0") if record[3] not in OWN) == wanted


def test_arrows_lead_from_each_launch_to_its_work(
    demo: Read, demo_events: list[dict[str, Any]]
) -> None:
    first = min(ns(record["ts"]) for record in demo_events)
    calls = {
        record["args"]["correlation"]: record
        for record in demo_events
        if record["cat"] in ("cuda_runtime", "cuda_driver")
    }
    wanted = Counter(
        (call["name"], ns(call["ts"]) - first, record["name"], ns(record["ts"]) - first)
        for record in demo_events
        if record["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
        and (call := calls.get(record["args"]["correlation"]))
    )
    begins = {arrow: (name, start) for _, name, start, _, _, out, _ in demo.slices for arrow in out}
    ends = [
        (*begins[arrow], name, start)
        for _, name, start, _, _, _, into in demo.slices
        for arrow in into
    ]
    assert Counter(ends) == wanted


def test_the_queue_is_as_deep_as_launches_without_begun_work(
    demo: Read, demo_events: list[dict[str, Any]]
) -> None:
    first = min(ns(record["ts"]) for record in demo_events)
    calls = {
        record["args"]["correlation"]: ns(record["ts"])
        for record in demo_events
        if record["cat"] in ("cuda_runtime", "cuda_driver")
    }
    waits = [
        (calls[record["args"]["correlation"]] - first, ns(record["ts"]) - first)
        for record in demo_events
        if record["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
        and record["args"]["correlation"] in calls
    ]
    points = demo.counter("queue depth")
    for time, depth in points[:: len(points) // 50]:
        assert depth == sum(launched <= time < begun for launched, begun in waits)
    assert max(depth for _, depth in points) > 100


def test_a_finding_lies_over_the_steps_with_its_evidence(demo: Read) -> None:
    steps = [
        (start, end) for track, _, start, end, *_ in demo.slices if demo.tracks[track] == "steps"
    ]
    found = {
        demo.tracks[track]: (start, end, args) for track, _, start, end, args, *_ in demo.slices
    }
    start, end, args = found["finding 1: serial-loader"]
    assert (start, end) == (steps[0][0], steps[-1][1])
    assert args["code"] == "serial-loader"
    assert args["predicted_speedup"] > 1.9
    assert "num_workers" in args["action"]
    assert len(args["evidence"]) == 2
    assert found["verdict"][2]["bound"] == "data"


def test_both_forms_hold_the_same(tmp_path: Path) -> None:
    trace = lab_trace("single/launch_tiny.fixed")
    one = read_proto(export(tmp_path / "trace.pftrace", trace))
    other = read_json(export(tmp_path / "trace.json.gz", trace))
    assert Counter(other.named()) == Counter(one.named())
    ours = {name: points for track, points in one.points.items() if (name := one.tracks[track])}
    theirs = {other.tracks[track]: points for track, points in other.points.items()}
    assert theirs == ours
    args = {
        (name, start): {key: _parsed(key, value) for key, value in args.items()}
        for _, name, start, _, args, *_ in one.slices
        if "correlation" in args
    }
    others = {
        (name, start): args for _, name, start, _, args, *_ in other.slices if "correlation" in args
    }
    assert others == args


def _parsed(key: str, value: Any) -> Any:
    """Inputs and sizes of launches are JSON, in the one form as a text."""
    return json.loads(value, parse_float=Decimal) if key in (*LAUNCH, *INPUTS) else value


def test_a_rank_whose_clock_is_off_is_moved_to_the_others(tmp_path: Path) -> None:
    pair = [lab_trace(f"ranks2/ddp_even.slow.rank{rank}") for rank in (0, 1)]
    off, num = re.subn(
        r'(?<="ts": )\d+',
        lambda us: str(int(us[0]) + 7500),
        unpacked(pair[1]).decode(),
    )
    assert num > 5_000
    paths = [pair[0], write(tmp_path / pair[1].name.removesuffix(".zst"), off)]
    read = read_proto(export(tmp_path / "two.pftrace", *paths))
    shifts, ends = [], []
    for rank, path in enumerate(paths):
        events = recorded(path)
        own = sorted((record["name"], ns(record["ts"]), ns(record["dur"])) for record in events)
        drawn = sorted(
            (name, at, dur)
            for name, at, dur, track in read.named(f"rank {rank}")
            if track not in OWN
        )
        assert [(name, dur) for name, _, dur in drawn] == [(name, dur) for name, _, dur in own]
        moved = {at - then for (_, at, _), (_, then, _) in zip(drawn, own, strict=True)}
        assert len(moved) == 1, "a rank is moved as a whole"
        shifts.append(moved.pop())
        ends.append(
            sorted(
                ns(record["ts"]) + ns(record["dur"]) + shifts[-1]
                for record in events
                if "AllReduce" in record["name"]
            )
        )
    apart = [a - b for a, b in zip(*ends, strict=True)]
    assert len(apart) > 10
    assert abs(sorted(apart)[len(apart) // 2]) < 200_000
    notes = next(
        args["notes"] for _, name, *_, args, _, _ in read.slices if name.startswith("bound by")
    )
    distance = f"moved by {(shifts[1] - shifts[0]) / 1000:+,.1f} us"
    assert any(mentions(note, "2 ranks", distance) for note in notes)
    # But for what the two clocks were apart when they were recorded.
    assert -10_000_000 < shifts[1] - shifts[0] < -5_000_000


def steps(*more: dict[str, Any]) -> str:
    marks = [
        event(cat="user_annotation", name=f"ProfilerStep#{i}", ts=i * 1000, dur=990)
        for i in (1, 2, 3)
    ]
    calls = [
        event(
            cat="cuda_runtime",
            name="cudaLaunchKernel",
            ts=i * 1000 + 10,
            dur=5,
            args={"correlation": i},
        )
        for i in (1, 2, 3)
    ]
    return trace_text([*marks, *calls, *(kernel(i, i * 1000 + 100, 500) for i in (1, 2, 3)), *more])


HOSTILE = [
    "<script>alert(1)</script>",
    'quote " backslash \\ brace }',
    "bell \a escape \x1b[31m newline \n",
    "emoji \U0001f600 \u202eoverride",
    "x" * 1_000_000,
]


@pytest.mark.parametrize("form", ["t.pftrace", "t.json"])
def test_hostile_names_survive_and_long_ones_are_cut(tmp_path: Path, form: str) -> None:
    more = [
        event(name=name, ts=1100 + i, dur=1)
        for i, name in enumerate([*HOSTILE, "half \ud800 pair", "nul \0 end"])
    ]
    path = write(tmp_path / "evil.json", steps(*more))
    target = export(tmp_path / form, path)
    names = {
        name for name, *_ in (read_proto if form.endswith("pftrace") else read_json)(target).named()
    }
    assert set(HOSTILE[:-1]) <= names
    assert "x" * 2000 + "..." in names
    assert max(map(len, names)) <= 2003
    assert any(name.startswith("half ") for name in names)
    assert not any("\0" in name for name in names)
    assert any(name.startswith("nul ") and name.endswith(" end") for name in names)


@pytest.mark.parametrize("form", ["t.pftrace", "t.json"])
def test_overlapping_events_of_a_thread_lie_on_lanes_of_their_own(
    tmp_path: Path, form: str
) -> None:
    crossing = [event(name=f"crossing {i}", ts=1100 + i * 10, dur=25, tid=99) for i in range(5)]
    path = write(
        tmp_path / "crossing.json", steps(*crossing, event(name="inner", ts=1101, dur=2, tid=99))
    )
    read = (read_proto if form.endswith("pftrace") else read_json)(export(tmp_path / form, path))
    mine = {
        name: (start, dur, track)
        for name, start, dur, track in read.named()
        if name.startswith(("cross", "inner"))
    }
    assert all(mine[f"crossing {i}"][:2] == (100_000 + i * 10_000, 25_000) for i in range(5))
    tracks = [mine[f"crossing {i}"][2] for i in range(5)]
    assert tracks == [
        "thread 99",
        "thread 99 (overlapping 1)",
        "thread 99 (overlapping 2)",
        *tracks[:2],
    ]
    assert mine["inner"] == (101_000, 2_000, "thread 99")


def test_memory_recorded_before_the_first_event_stands_at_the_beginning(tmp_path: Path) -> None:
    args = {
        "Bytes": 512,
        "Addr": 1,
        "Total Allocated": 1024,
        "Total Reserved": 2048,
        "Device Type": 1,
        "Device Id": 0,
    }
    memory = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 10,
        "tid": 20,
        "ts": 900,
        "args": args,
    }
    path = write(
        tmp_path / "memory.json",
        steps(memory, memory | {"ts": 1500, "args": args | {"Total Allocated": 512}}),
    )
    read = read_proto(export(tmp_path / "t.pftrace", path))
    assert read.counter("device 0 memory allocated") == [(0, 1024.0), (500_000, 512.0)]
    assert read.counter("device 0 memory reserved") == [(0, 2048.0), (500_000, 2048.0)]
