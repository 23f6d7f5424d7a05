"""What the memory rules say of recordings: one story where each fires, one look-alike where it
stays silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.memory import MemoryRecord, MemoryReport
from stepscope.core.recordings.system import DeviceSeries, SystemReport
from stepscope.readers.format import Source
from stepscope.recordings.memory.snapshot import read
from stepscope.recordings.system.nvidia_smi import read_file as read_monitor
from stepscope.rules.memory import fragmentation, memory_growth, memory_pressure
from tests.memory_snapshots import FORWARD, MB, Story, pickled, source_of, training
from tests.recording_texts import memory_report, system_report
from tests.shared_data import SAMPLES
from tests.wording import any_mentions, mentions

GB = 1 << 30
RULES = (memory_pressure, fragmentation, memory_growth)


def told(tmp_path: Path, story: Story | dict[str, Any]) -> Auxiliary:
    snapshot = story.snapshot() if isinstance(story, Story) else story
    return Auxiliary(memory=read([source_of(tmp_path / "s.pickle", pickled(snapshot))]))


def only_record(beside: Auxiliary) -> MemoryRecord:
    assert beside.memory is not None
    (record,) = beside.memory.records
    return record


def counters(**fields: Any) -> Auxiliary:
    return Auxiliary(
        memory=memory_report(
            replace(MemoryRecord(format="memory-stats", label="s", peak_bytes=0), **fields)
        )
    )


def only(advice: Advice | None) -> Advice:
    assert advice is not None
    return advice


def test_nothing_is_said_of_nothing() -> None:
    for rule in RULES:
        assert rule.advise(Auxiliary()) is None
        assert rule.advise(Auxiliary(memory=MemoryReport())) is None


def test_the_healthy_real_snapshot_is_blamed_for_nothing() -> None:
    path = SAMPLES / "formats" / "memory_snapshot.pickle.zst"
    beside = Auxiliary(memory=read([Source(path=path, label="real")]))
    assert [rule.advise(beside) for rule in RULES] == [None, None, None]


def test_running_out_names_what_holds_the_peak(tmp_path: Path) -> None:
    story = training(2)
    story.oom(9000 * MB, device_free=10 * MB)
    advice = only(memory_pressure.advise(told(tmp_path, story)))
    assert mentions(advice.summary, "ran out once", "0.8 GB held", "9.44 GB")
    assert "checkpoint activations" in advice.action
    assert advice.weight == pytest.approx(300 / 764)
    assert advice.weight_of == "the peak"
    assert any_mentions(
        advice.evidence,
        "0.80 GB",
        "activations 39%, optimizer 26%, weights 13%, gradients 13%",
    )
    assert any_mentions(advice.evidence, "forward (job/train.py:20)", "0.31 GB of activations")


def test_retries_and_fullness_are_pressure_and_their_absence_is_none() -> None:
    calm = {
        "peak_bytes": 70 * MB,
        "reserved_bytes": 75 * MB,
        "capacity_bytes": 80 * MB,
        "num_retries": 0,
        "num_ooms": 0,
    }
    assert memory_pressure.advise(counters(**calm)) is None
    retried = only(memory_pressure.advise(counters(**{**calm, "num_retries": 5})))
    assert mentions(retried.summary, "driver", "5 times")
    assert mentions(retried.action, "snapshot", "stacks")
    assert retried.weight == pytest.approx(70 / 80)
    assert retried.weight_of == "the device's memory"
    full = only(memory_pressure.advise(counters(**{**calm, "peak_bytes": 75 * MB})))
    assert full.summary.endswith("at the peak (94%)")
    assert (
        memory_pressure.advise(counters(peak_bytes=75 * MB)) is None
    )  # How large the device is was not recorded.


def monitored(beside: Auxiliary, *totals_mb: float | None) -> Auxiliary:
    devices = (
        DeviceSeries(index=i, memory_total_bytes=None if mb is None else mb * MB)
        for i, mb in enumerate(totals_mb)
    )
    return replace(beside, system=system_report(devices=tuple(devices)))


def test_the_monitor_says_how_large_the_device_is_where_the_recording_does_not() -> None:
    unknown = counters(peak_bytes=75 * MB)
    full = only(memory_pressure.advise(monitored(unknown, 80, 80)))
    assert mentions(full.summary, "0.1 of 0.1 GB", "94%")
    assert full.weight == pytest.approx(75 / 80)
    assert full.weight_of == "the device's memory"
    assert memory_pressure.advise(monitored(unknown, 100)) is None
    assert memory_pressure.advise(monitored(unknown, None)) is None
    assert (
        memory_pressure.advise(monitored(unknown, 80, 100)) is None
    )  # Which of them it was is not known.
    # What the recording itself tells goes first.
    assert (
        memory_pressure.advise(monitored(counters(peak_bytes=75 * MB, capacity_bytes=100 * MB), 80))
        is None
    )


def test_the_log_of_nvidia_smi_says_how_large_the_device_is(tmp_path: Path) -> None:
    """As `nvidia-smi --query-gpu` writes it, with the H200's own total."""
    log = b"timestamp, index, name, memory.used [MiB], memory.total [MiB]\n"
    log += b"2026/11/15 02:01:04.497, 0, NVIDIA H200, 136000 MiB, 143771 MiB\n" * 2
    system = SystemReport(recordings=(read_monitor(source_of(tmp_path / "smi.csv", log)),))
    full = replace(counters(peak_bytes=136_000 * MB), system=system)
    assert mentions(only(memory_pressure.advise(full)).summary, "142.6 of 150.8 GB", "95%")
    assert memory_pressure.advise(replace(counters(peak_bytes=130_000 * MB), system=system)) is None


def test_free_memory_in_small_pieces_is_fragmentation(tmp_path: Path) -> None:
    story = Story()
    for _ in range(10):
        segment = story.segment(20 * MB)
        first = story.alloc(10 * MB, FORWARD, segment)
        story.alloc(2 * MB, FORWARD, segment + 10 * MB)
        story.free(first, FORWARD)
    story.oom(50 * MB, device_free=0)
    advice = only(fragmentation.advise(told(tmp_path, story)))
    assert mentions(advice.summary, "for 0.05 GB", "0.19 GB free", "pieces")
    assert "expandable_segments:True" in advice.action
    # At the peak of tensors 200 MB are reserved: nine blocks of 2 MB are left, and the last pair
    # has 12.
    assert advice.weight == pytest.approx(1 - 30 / 200)
    assert mentions(advice.evidence[0], "0.18 GB free", "largest block 0.01 GB")


def test_memory_that_ran_out_because_it_was_full_is_not_fragmentation(tmp_path: Path) -> None:
    story = Story()
    for _ in range(10):
        story.alloc(20 * MB, FORWARD)
    story.oom(50 * MB, device_free=0)
    assert fragmentation.advise(told(tmp_path, story)) is None
    assert memory_pressure.advise(told(tmp_path, story)) is not None


def test_a_cache_that_is_in_nobodys_way_is_not_fragmentation() -> None:
    loose = {"peak_bytes": 40 * GB, "reserved_bytes": 70 * GB}
    assert only(fragmentation.advise(counters(**loose))).weight == pytest.approx(3 / 7)
    assert fragmentation.advise(counters(**loose, capacity_bytes=200 * GB)) is None
    assert fragmentation.advise(counters(peak_bytes=60 * GB, reserved_bytes=70 * GB)) is None
    assert fragmentation.advise(counters(peak_bytes=60 * GB)) is None
    few = {"peak_bytes": 400 * MB, "reserved_bytes": 1300 * MB}
    assert fragmentation.advise(counters(**few)) is None, (
        "less than a gigabyte, on a device of which nothing is known"
    )
    assert fragmentation.advise(counters(**few, capacity_bytes=2000 * MB)) is not None


def test_the_monitors_size_of_the_device_counts_for_fragmentation_too() -> None:
    loose = counters(peak_bytes=40 * GB, reserved_bytes=70 * GB)
    assert fragmentation.advise(monitored(loose, 150_000)) is None
    assert fragmentation.advise(monitored(loose, 80_000)) is not None


def test_what_a_graphs_pool_has_free_is_not_fragmentation(tmp_path: Path) -> None:
    """A captured graph's tensors are free to the allocator, and used by every replay."""
    story = Story()
    story.alloc(2000 * MB, FORWARD)
    captured = story.segment(4000 * MB)
    story.free(story.alloc(100 * MB, FORWARD, captured), FORWARD)
    assert only(fragmentation.advise(told(tmp_path, story))).weight == pytest.approx(3900 / 6000)
    own = story.snapshot()
    for segment in own["segments"]:
        segment["segment_pool_id"] = (0, 1) if segment["address"] == captured else (0, 0)
    record = only_record(told(tmp_path, own))
    assert (record.pool_bytes, record.pool_free_bytes) == (4000 * MB, 4000 * MB)
    assert fragmentation.advise(told(tmp_path, own)) is None


def test_memory_that_ran_out_beside_a_graphs_pool_is_not_fragmentation(tmp_path: Path) -> None:
    story = Story()
    story.alloc(2000 * MB, FORWARD)
    captured = story.alloc(400 * MB, FORWARD)
    story.free(captured, FORWARD)
    story.alloc(3000 * MB, FORWARD)
    story.oom(300 * MB, device_free=0)
    assert "ran out" in only(fragmentation.advise(told(tmp_path, story))).summary
    own = story.snapshot()
    for segment in own["segments"]:
        segment["segment_pool_id"] = (0, 1) if segment["address"] == captured else (0, 0)
    assert fragmentation.advise(told(tmp_path, own)) is None


def test_of_several_recordings_the_one_in_trouble_is_named_and_its_peak_told() -> None:
    calm = MemoryRecord(
        format="memory-snapshot",
        label="rank0.pickle",
        peak_bytes=9 * GB,
        held={"weights": 9 * GB},
        num_ooms=0,
    )
    out = replace(
        calm,
        label="rank1.pickle",
        device=1,
        peak_bytes=8 * GB,
        held={"activations": 8 * GB},
        num_ooms=1,
    )
    advice = only(memory_pressure.advise(Auxiliary(memory=memory_report(calm, out))))
    assert mentions(advice.summary, "rank1.pickle, device 1")
    assert "checkpoint activations" in advice.action
    assert any_mentions(advice.evidence, "8.59 GB (rank1.pickle, device 1)", "activations 100%")


def test_expandable_segments_that_are_on_are_not_advised() -> None:
    beside = counters(peak_bytes=40 * GB, reserved_bytes=70 * GB, expandable=True)
    assert "expandable" not in only(fragmentation.advise(beside)).action


def test_each_step_keeping_its_loss_is_growth(tmp_path: Path) -> None:
    story = training(6, kept_mb=8)
    story.oom(1 << 40, device_free=400 * MB)
    advice = only(memory_growth.advise(told(tmp_path, story)))
    assert mentions(advice.summary, "each step", f"{8 * MB / 1e6:.1f} MB more")
    assert any_mentions(
        advice.evidence, "loss_of (job/train.py:33)", f"{40 * MB / 1e6:.1f} MB", "5 tensors"
    )
    assert any_mentions(advice.evidence, "full after")
    assert advice.weight == pytest.approx(32 / (764 + 6 * 8))


@pytest.mark.parametrize(("num_steps", "kept_mb"), [(6, 0), (3, 8)])
def test_steady_steps_and_too_few_are_not_growth(
    tmp_path: Path, num_steps: int, kept_mb: int
) -> None:
    assert memory_growth.advise(told(tmp_path, training(num_steps, kept_mb=kept_mb))) is None
