"""CUDA memory snapshots: a real one against the counters of the same run, stories with a known
answer, and hostile ones."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.recordings.memory import MemoryRecord
from stepscope.errors import FormatError, StepscopeError
from stepscope.readers.detect import format_of, head_of
from stepscope.readers.format import Source
from stepscope.readers.formats import FORMATS
from stepscope.recordings.memory import events as memory_events
from stepscope.recordings.memory import snapshot as memory_snapshot
from stepscope.recordings.memory.arena import Arena, Rules
from stepscope.recordings.memory.snapshot import is_mine, read
from tests.memory_snapshots import (
    FORWARD,
    MB,
    Story,
    frame,
    pickled,
    source_of,
    training,
)
from tests.recording_texts import texts_of
from tests.shared_data import DEMO, SAMPLES, unpacked
from tests.shared_pickles import Many, Once
from tests.shared_pickles import pickled as pickled_once
from tests.wording import any_mentions, mentions

SNAPSHOT = SAMPLES / "formats" / "memory_snapshot.pickle.zst"
STATS = SAMPLES / "formats" / "memory_stats.json"


def record_of(tmp_path: Path, snapshot: Any) -> MemoryRecord:
    report = read([source_of(tmp_path / "snapshot.pickle", pickled(snapshot))])
    assert len(report.records) == 1
    return report.records[0]


@pytest.fixture(scope="module")
def real() -> MemoryRecord:
    return read([Source(path=SNAPSHOT, label="real")]).records[0]


def test_the_real_snapshot_meets_the_allocators_own_counters(real: MemoryRecord) -> None:
    stats = json.loads(STATS.read_text())
    assert real.peak_bytes == stats["allocated_bytes.all.peak"] == 4499450368
    assert real.held_bytes == stats["allocated_bytes.all.current"]
    assert real.reserved_bytes == stats["reserved_bytes.all.peak"]
    assert real.reserved_now_bytes == stats["reserved_bytes.all.current"]
    assert real.split_bytes == stats["inactive_split_bytes.all.peak"]
    assert (real.num_retries, real.num_ooms) == (stats["num_alloc_retries"], stats["num_ooms"])
    assert real.reserved_at_peak_bytes is not None
    assert real.free_at_peak_bytes == real.reserved_at_peak_bytes - real.peak_bytes


def test_the_real_snapshots_parts_are_those_of_adam_in_fp32(real: MemoryRecord) -> None:
    """65 tensors of fp32 weights, as many gradients, and two moments of each: 568,557,568 bytes a
    set before rounding."""
    one_set = 568_557_568
    assert real.held is not None
    assert real.most is not None
    assert real.held["weights"] == pytest.approx(one_set, rel=0.005)
    assert real.held["optimizer"] == pytest.approx(2 * one_set, rel=0.005)
    assert real.most["gradients"] == pytest.approx(one_set, rel=0.005)
    assert real.held.get("gradients", 0) == 0  # The peak is where the loss is differentiated.
    assert (
        real.held["unknown"] == 131072
    )  # The batch: made once, by plain code, and kept to the end.
    assert (
        real.held["workspace"] == 2 * 33554432 + 1048576
    )  # cuBLAS, for two streams, and cuBLASLt.


def test_the_real_snapshots_largest_and_steps(real: MemoryRecord) -> None:
    assert [tensor.size_bytes for tensor in real.largest[:2]] == [524288000, 524288000]
    assert {tensor.frame for tensor in real.largest[:2]} == {
        "step (train/lab.py:136)",
        "NllLossBackward0",
    }
    assert real.holders[0].frame == "step (train/lab.py:142)"
    assert real.holders[0].category == "optimizer"
    assert len(real.steps) == 3
    assert real.steps[1].floor_bytes == real.steps[2].floor_bytes


@pytest.mark.parametrize("has_native", [True, False])
def test_training_is_taken_apart_by_stack_and_life(tmp_path: Path, has_native: bool) -> None:
    record = record_of(tmp_path, training(4, has_native=has_native).snapshot())
    assert record.peak_bytes == (100 + 200 + 4 + 300 + 60 + 100) * MB
    assert record.held == {
        "weights": 100 * MB,
        "optimizer": 200 * MB,
        "inputs": 4 * MB,
        "activations": 300 * MB,
        "temporary": 60 * MB,
        "gradients": 100 * MB,
    }
    assert record.most is not None
    assert record.most["temporary"] == 60 * MB
    assert len(record.steps) == 4
    # In each the least is held after zero_grad or before the batch: weights and moments, in the
    # first before there are moments.
    assert [step.floor_bytes // MB for step in record.steps[1:]] == [300, 300, 300]
    assert record.held_bytes == 300 * MB
    assert record.kept_frames == ()


def test_what_plain_code_makes_once_and_keeps_is_unknown(tmp_path: Path) -> None:
    """It may be the state of an optimizer of one's own, or a batch that is used again: nothing
    tells."""
    story = training(1)
    story.alloc(70 * MB, [frame("my_optimizer", 70)])
    later = training(3)
    for event in later.events:
        event["time_us"] += 10_000
        event["addr"] += 1 << 44
    story.events += later.events
    story.segments |= {addr + (1 << 44): size for addr, size in later.segments.items()}
    story.live |= {addr + (1 << 44): held for addr, held in later.live.items()}
    record = record_of(tmp_path, story.snapshot())
    assert record.held is not None
    assert record.held["unknown"] == 70 * MB
    assert record.held["inputs"] == 4 * MB


def test_frees_without_stacks_are_judged_by_what_the_backward_does_next(tmp_path: Path) -> None:
    snapshot = training(3).snapshot()
    for event in snapshot["device_traces"][0]:
        if event["action"].startswith("free"):
            event["frames"] = []
    record = record_of(tmp_path, snapshot)
    assert record.held is not None
    assert record.held["gradients"] >= 100 * MB
    assert record.held["activations"] == 300 * MB


def test_without_stacks_nothing_is_claimed(tmp_path: Path) -> None:
    snapshot = training(2).snapshot()
    for event in snapshot["device_traces"][0]:
        event["frames"] = []
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            block["frames"] = []
    report = read([source_of(tmp_path / "s.pickle", pickled(snapshot))])
    assert report.records[0].held == {"unknown": report.records[0].peak_bytes}
    assert report.records[0].steps == ()
    assert any_mentions(report.recordings[0].notes, "no stacks")


def test_what_steps_leave_behind_is_counted_and_named(tmp_path: Path) -> None:
    record = record_of(tmp_path, training(5, kept_mb=8).snapshot())
    assert [step.floor_bytes // MB for step in record.steps[1:]] == [308, 316, 324, 332]
    assert [(one.frame, one.size_bytes, one.num_tensors) for one in record.kept_frames] == [
        ("loss_of (job/train.py:33)", 32 * MB, 4)
    ]


def test_events_that_were_lost_do_not_change_the_peak(tmp_path: Path) -> None:
    whole = training(4).snapshot()
    late = {**whole, "device_traces": [whole["device_traces"][0][20:]]}
    record, after = record_of(tmp_path, whole), record_of(tmp_path, late)
    assert after.peak_bytes == record.peak_bytes
    assert after.reserved_bytes == record.reserved_bytes
    assert after.held is not None
    assert after.held["weights"] == 100 * MB  # Their stacks are in the blocks that are still there.
    assert after.held_bytes == record.held_bytes


def test_a_snapshot_without_events_tells_what_is_held_now(tmp_path: Path) -> None:
    whole = training(2).snapshot()
    report = read([source_of(tmp_path / "s.pickle", pickled({"segments": whole["segments"]}))])
    record = report.records[0]
    assert record.peak_bytes == 300 * MB
    assert record.held == {"weights": 100 * MB, "optimizer": 200 * MB}
    assert (record.num_ooms, record.num_retries, record.steps) == (None, None, ())
    assert mentions(report.recordings[0].notes[0], "no events")
    assert record_of(tmp_path, whole["segments"]).peak_bytes == 300 * MB  # As torch 2.0 wrote it.


def test_free_pieces_follow_the_allocators_rules(tmp_path: Path) -> None:
    story = Story()
    segment = story.segment(100 * MB)
    first = story.alloc(10 * MB, FORWARD, segment)
    second = story.alloc(20 * MB + 100, FORWARD, segment + 10 * MB)  # Rounded up by 412 bytes.
    story.alloc(5 * MB, FORWARD, second + 20 * MB + 512)
    story.free(first, FORWARD)
    story.alloc(9 * MB + MB // 2, FORWARD, segment)  # Half a megabyte is left: not cut.
    record = record_of(tmp_path, story.snapshot())
    assert record.peak_bytes == 10 * MB + 20 * MB + 512 + 5 * MB
    assert record.held_bytes == record.peak_bytes
    assert record.free_at_peak_bytes == record.largest_free_bytes == 65 * MB - 512
    assert record.split_bytes == 90 * MB  # After the first of them.


def test_running_out_tells_the_devices_size(tmp_path: Path) -> None:
    story = training(1)
    reserved = sum(story.segments.values())
    story.oom(2000 * MB, device_free=500 * MB)
    record = record_of(tmp_path, story.snapshot())
    assert (record.num_ooms, record.oom_bytes) == (1, 2000 * MB)
    assert record.capacity_bytes == reserved + 500 * MB
    assert record.oom_free_bytes == reserved - 300 * MB


def test_running_out_tells_what_was_held(tmp_path: Path) -> None:
    story = training(1)
    story.alloc(100 * MB, FORWARD, story.segment(100 * MB))
    story.oom(2000 * MB, device_free=500 * MB)
    record = record_of(tmp_path, story.snapshot())
    assert record.oom_held is not None
    assert sum(record.oom_held.values()) == record.held_bytes
    assert record.oom_phase == "forward"
    assert [phase for phase, _, _ in record.phases] == [
        "forward",
        "backward",
        "optimizer",
        "before",
    ]


def test_a_retry_is_told_from_empty_cache(tmp_path: Path) -> None:
    story = Story()
    for frames in (FORWARD, [frame("empty_cache", 5, "site-packages/torch/cuda/memory.py")]):
        addr = story.alloc(10 * MB, FORWARD)
        story.free(addr, FORWARD)
        story.give_back(addr, frames)
        story.alloc(30 * MB, FORWARD)
    assert record_of(tmp_path, story.snapshot()).num_retries == 1


def test_where_no_stack_says_who_gave_back_retries_are_not_known(tmp_path: Path) -> None:
    def after(frames: list[Any]) -> int | None:
        story = Story()
        story.free(addr := story.alloc(10 * MB, FORWARD), FORWARD)
        story.give_back(addr, frames)
        story.alloc(30 * MB, FORWARD)
        return record_of(tmp_path, story.snapshot()).num_retries

    assert (after([]), after(FORWARD)) == (None, 1)


def test_pools_of_graphs_are_told(tmp_path: Path) -> None:
    story = Story()
    story.alloc(10 * MB, FORWARD)
    pool = story.segment(40 * MB)
    story.alloc(8 * MB, FORWARD, pool)
    snapshot = story.snapshot()
    record = record_of(tmp_path, snapshot)
    assert (record.pool_bytes, record.pool_free_bytes) == (0, 0), (
        "pools were not recorded, or there are none"
    )
    for segment in snapshot["segments"]:
        segment["segment_pool_id"] = (0, 7) if segment["address"] == pool else (0, 0)
    report = read([source_of(tmp_path / "s.pickle", pickled(snapshot))])
    assert (report.records[0].pool_bytes, report.records[0].pool_free_bytes) == (40 * MB, 32 * MB)
    assert mentions(dict(texts_of(report)[0].pairs)["in pools of their own"], "41.9 MB")


def test_what_is_named_a_thousand_times_is_taken_once(tmp_path: Path) -> None:
    """Kept values are named in two bytes: 10 kB here would be nine million blocks to look at."""
    block = Once({"size": 16, "address": 1, "state": "active_allocated"})
    segment = {"device": 0, "address": 0, "total_size": 4096, "blocks": Once(Many(block, 3000))}
    event = Once({"action": "alloc", "addr": 64, "size": 32})
    whole = Once(segment)
    snapshot = {
        "segments": [whole, segment | {"address": 8192}, whole, whole],
        "device_traces": [[event, event, event]],
    }
    report = read([source_of(tmp_path / "s.pickle", pickled_once(snapshot))])
    # Of the blocks 3,000, the second segment's list of them, two segments, two events.
    assert any_mentions(report.recordings[0].notes, "3005 entries", "make no sense")
    assert report.records[0].peak_bytes == 16 + 512


def test_the_oldest_events_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_events, "MAX_EVENTS", 10)
    story = training(3)
    report = read([source_of(tmp_path / "s.pickle", pickled(story.snapshot()))])
    oldest = f"oldest {len(story.events) - 10} events"
    assert any_mentions(report.recordings[0].notes, oldest, "left out")


def test_a_device_of_unknown_size_is_said_to_be_one(tmp_path: Path) -> None:
    def notes(story: Story) -> str:
        return " ".join(
            read([source_of(tmp_path / "s.pickle", pickled(story.snapshot()))]).recordings[0].notes
        )

    assert mentions(notes(training(1)), "how large", "device")
    story = training(1)
    story.oom(1 << 40, device_free=MB)
    assert not mentions(notes(story), "how large")


def test_expandable_segments_grow_and_are_cut(tmp_path: Path) -> None:
    starts = [0x1000000 + at * MB for at in (0, 20, 30, 34)]
    arena = Arena(Rules(), starts, [starts[0], starts[-1]])
    arena.add(0x1000000, 20 * MB, expandable=True)
    arena.add(0x1000000 + 20 * MB, 20 * MB, expandable=True)
    arena.hold(0x1000000, 30 * MB)
    assert (arena.num_pieces, arena.reserved, arena.split, arena.free_blocks()) == (
        1,
        40 * MB,
        10 * MB,
        [10 * MB],
    )
    arena.hold(0x1000000 + 34 * MB, 2 * MB)
    arena.take(0x1000000 + 30 * MB, 4 * MB)
    assert (arena.num_pieces, arena.reserved, arena.split, arena.free_blocks()) == (
        2,
        36 * MB,
        4 * MB,
        [4 * MB],
    )
    arena.release(0x1000000 + 34 * MB)
    arena.release(0x1000000)
    assert (arena.split, sorted(arena.free_blocks())) == (0, [6 * MB, 30 * MB])
    arena.add(0x1000000 + 30 * MB, 4 * MB, expandable=True)
    assert (arena.num_pieces, arena.free_blocks()) == (1, [40 * MB])


def test_sizes_are_rounded_as_the_settings_say() -> None:
    assert [Rules().rounded(size) for size in (0, 1, 512, 513, 1 << 20)] == [
        512,
        512,
        512,
        1024,
        1 << 20,
    ]
    rules = Rules.of({"roundup_power2_divisions": {str(1 << i): 4 for i in range(16)}})
    assert rules.rounded(1200) == 1536  # Not above 512 bytes times the divisions.
    assert rules.rounded(1200 * 1024) == 1280 * 1024  # A megabyte and a quarter.


def test_several_devices_are_several_records(tmp_path: Path) -> None:
    one, two = training(1).snapshot(), training(2).snapshot()
    for segment in two["segments"]:
        segment["device"] = 1
    both = {
        "segments": one["segments"] + two["segments"],
        "device_traces": one["device_traces"] + two["device_traces"],
    }
    report = read([source_of(tmp_path / "s.pickle", pickled(both))])
    assert [record.device for record in report.records] == [0, 1]
    assert [len(record.steps) for record in report.records] == [1, 2]


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "words",
        [],
        {},
        {"segments": None},
        {"segments": []},
        {"segments": [], "device_traces": [[]]},
        {"segments": [], "device_traces": 7},
        {"segments": [1, None, "x"]},
    ],
)
def test_what_is_no_snapshot_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(FormatError, match=r"s\.pickle: .*(no memory snapshot|snapshot is empty)"):
        read([source_of(tmp_path / "s.pickle", pickled(value))])


def test_fields_of_the_wrong_kind_cost_themselves_alone(tmp_path: Path) -> None:
    """Every field of a good snapshot replaced by nonsense, one at a time."""
    draw = random.Random(3)
    nonsense: list[Any] = [None, -1, 1 << 64, "x", [], {}, 2.5, [None], {"a": 1}, [[]]]
    for _ in range(90):
        snapshot = training(1).snapshot()
        events, segments = snapshot["device_traces"][0], snapshot["segments"]
        place = draw.choice(
            [
                *events,
                *segments,
                *(block for segment in segments for block in segment["blocks"]),
                snapshot,
            ]
        )
        place[draw.choice(list(place))] = draw.choice(nonsense)
        try:
            record = record_of(tmp_path, snapshot)
        except FormatError:
            continue
        record.self_check()
        assert record.peak_bytes <= 2 * 764 * MB


def test_events_out_of_order_are_told_and_end_nothing(tmp_path: Path) -> None:
    snapshot = training(3).snapshot()
    random.Random(1).shuffle(snapshot["device_traces"][0])
    report = read([source_of(tmp_path / "s.pickle", pickled(snapshot))])
    assert any("contradict" in note for note in report.recordings[0].notes)


def test_events_that_cannot_be_are_played_without_harm(tmp_path: Path) -> None:
    """Overlapping segments, blocks in no segment, frees of nothing: whatever comes, times and sizes
    stay whole."""
    draw = random.Random(4)
    actions = [
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
    ]
    stacks: list[Any] = [[], FORWARD, [frame("main", 1)], [{"name": 5}], [None]]
    for _ in range(150):
        events = [
            {
                "action": draw.choice(actions),
                "addr": draw.randrange(12) * MB,
                "size": draw.randrange(1, 5) * MB,
                "time_us": draw.randrange(1000),
                "frames": draw.choice(stacks),
            }
            for _ in range(40)
        ]
        segments = [
            {
                "address": draw.randrange(12) * MB,
                "total_size": draw.randrange(1, 9) * MB,
                "is_expandable": draw.random() < 0.5,
                "blocks": [
                    {"address": draw.randrange(12) * MB, "size": MB, "state": "active_allocated"}
                    for _ in range(3)
                ],
            }
            for _ in range(4)
        ]
        record = record_of(tmp_path, {"segments": segments, "device_traces": [events]})
        assert record.peak_bytes > 0


def test_a_payload_in_a_file_is_refused_in_words_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    word = f"touch {mark}".encode()
    data = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([len(word)]) + word + b"\x85R."
    source = source_of(tmp_path / "evil.bin", data)
    assert is_mine(head_of(source), source.label)
    with pytest.raises(FormatError, match=r"evil\.bin: .* byte 17: .*STACK_GLOBAL"):
        read([source])
    assert not mark.exists()


def test_a_bomb_and_a_cut_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(
        b"\x80\x04X" + (80 << 20).to_bytes(4, "little") + b"x" * (80 << 20) + b".", 1
    )
    with pytest.raises(FormatError, match="expands more than"):
        read([source_of(tmp_path / "bomb.pickle.gz", bomb)])
    packed = gzip.compress(pickled(training(2).snapshot()))
    with pytest.raises(FormatError, match="read whole"):
        read([source_of(tmp_path / "cut.pickle.gz", packed[: len(packed) // 2])])
    monkeypatch.setattr(memory_snapshot, "MAX_BYTES", 1 << 20)
    with pytest.raises(FormatError, match="more than 1 MiB"):
        read([source_of(tmp_path / "big.pickle", b"\x80\x04" + b"N" * (2 << 20))])


def test_segments_cut_again_and_again_are_followed(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"action": "segment_map", "addr": 0, "size": 4000 * MB, "frames": []}
    ]
    events += [
        {"action": "alloc", "addr": at * 4 * MB, "size": MB, "frames": []} for at in range(20)
    ]
    events += [
        {"action": "segment_unmap", "addr": (3000 + at) * MB, "size": MB, "frames": []}
        for at in range(0, 60, 2)
    ]
    ends = [(0, 3000), *((at + 1, at + 2) for at in range(3000, 3058, 2)), (3059, 4000)]
    segments = [
        {"address": start * MB, "total_size": (end - start) * MB, "is_expandable": True}
        for start, end in ends
    ]
    record = record_of(tmp_path, {"segments": segments, "device_traces": [events]})
    assert record.reserved_bytes == 4000 * MB
    assert record.reserved_now_bytes == 3970 * MB
    assert record.split_bytes == 3999 * MB


def test_only_pickles_are_claimed(tmp_path: Path) -> None:
    assert is_mine(b"\x80\x04\x95", "anything")
    assert is_mine(b"cos\nsystem\n", "old.pkl")
    assert not is_mine(b"cos\nsystem\n", "old.txt")
    assert not is_mine(b'{"a": 1}', "trace.pickle")
    assert not is_mine(b"", "a.json")
    assert not is_mine(head_of(Source(path=DEMO, label="demo")), "demo")


def test_each_shared_sample_of_memory_is_its_own_readers() -> None:
    mine = {each.name for each in FORMATS if each.name.startswith("memory")}
    found = {}
    for path in (SAMPLES / "formats").iterdir():
        form = format_of(head_of(Source(path=path, label=path.name)), path.name)
        if form is not None and form.name in mine:
            found[path.name] = form.name
    assert found == {
        "memory_snapshot.pickle.zst": "memory-snapshot",
        "memory_stats.json": "memory-stats",
    }


def test_the_real_snapshot_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data = unpacked(SNAPSHOT)
    for length in (1, 2, 3, 100, 65_536, 2_000_000):
        with pytest.raises(StepscopeError):
            read([source_of(tmp_path / "cut.pickle", data[:length])])


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "memory-snapshot", "snapshot.pickle", pickled(training(3).snapshot())
