"""The sampler, torch's own counters, and what happens to a source that fails."""

import json
import re
import sys
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.capture.counters.nvml import Nvml
from stepscope.capture.counters.samples import MemoryLeft, Sampler
from stepscope.capture.counters.torch_devices import (
    AllocatorCounters,
    DeviceCounters,
    DynamoCounters,
    devices_in_use,
)
from tests.capture.fakes import FakeNvml
from tests.installed import needs

OURS = re.compile("AttributeError|KeyError|NameError|RuntimeError|TypeError|ValueError")
"""What a source is dropped for that has a fault, rather than nothing to read."""
linux = needs("Linux")


@linux
def test_sampler_takes_a_sample_of_this_process() -> None:
    sample = json.loads(json.dumps(Sampler().take()))
    assert sample["rss_bytes"] > 0
    assert sample["cpu_user_cores"] >= 0
    assert sample["sample_wall_s"] >= 0
    assert "devices" not in sample
    assert not [note for note in sample.get("notes", ()) if OURS.search(note)]


@linux
def test_what_the_address_space_leaves_is_told_where_it_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import resource

    assert "address_space_left_bytes" not in MemoryLeft().take()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 50, 1 << 50))
    assert 0 < MemoryLeft().take()["address_space_left_bytes"] < 1 << 50


class Failing:
    made = taken = 0

    def __init__(self) -> None:
        Failing.made += 1
        self.notes: list[str] = []

    def take(self) -> dict[str, Any]:
        Failing.taken += 1
        raise OSError(13, "Permission denied")


class Absent:
    notes: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    def take(self) -> dict[str, Any]:
        return {}


def test_sampler_drops_what_fails_once_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "taken", 0)
    sampler = Sampler((Failing, Absent))
    notes = sampler.take()["notes"]
    assert [note.split()[0] for note in notes] == ["Absent", "Failing"]
    assert "Permission denied" in notes[1]
    assert "notes" not in sampler.take()
    assert Failing.taken == 1


def test_sampler_starts_anew_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "made", 0)
    sampler = Sampler((Failing,))
    sampler.take()
    monkeypatch.setattr("os.getpid", lambda: -5)
    assert sampler.take()["notes"]
    assert Failing.made == 2


def fake_torch(reserved: list[int], **cuda: Any) -> SimpleNamespace:
    stats = {
        "allocated_bytes": {"all": {"current": 3, "peak": 4}},
        "reserved_bytes": {"all": {"current": 5, "peak": 6}},
    }
    return SimpleNamespace(
        version=SimpleNamespace(hip=None),
        cuda=SimpleNamespace(
            **{
                "is_initialized": lambda: True,
                "device_count": lambda: len(reserved),
                "memory_reserved": lambda index: reserved[index],
                "memory_stats_as_nested_dict": lambda index: {**stats, "num_alloc_retries": 2},
                "get_device_properties": lambda index: SimpleNamespace(uuid="1234"),
                **cuda,
            }
        ),
    )


def test_devices_in_use_are_those_that_hold_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert devices_in_use(fake_torch([0, 0, 8])) == [2]
    assert devices_in_use(fake_torch([0, 0, 0])) == [1]
    assert devices_in_use(fake_torch([8], is_initialized=lambda: False)) == []
    assert devices_in_use(SimpleNamespace()) == []


def test_allocator_and_device_counters_wait_for_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    allocators, devices = AllocatorCounters(), DeviceCounters(lambda: Nvml(FakeNvml()))
    monkeypatch.setitem(sys.modules, "torch", fake_torch([8], is_initialized=lambda: False))
    assert allocators.take() == devices.take() == {}
    monkeypatch.setitem(sys.modules, "torch", fake_torch([0, 8]))
    row = allocators.take()["allocators"][0]
    assert (
        row["device"],
        row["allocated_bytes"],
        row["peak_reserved_bytes"],
        row["num_alloc_retries"],
    ) == (1, 3, 6, 2)
    row = devices.take()["devices"][0]
    assert (row["device"], row["gpu_power_w"]) == (1, 650.5)
    assert devices.notes[0].startswith("device 1: not measured")


def test_device_counters_without_the_library_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Nvml:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setitem(sys.modules, "torch", fake_torch([8]))
    sampler = Sampler((lambda: DeviceCounters(missing), AllocatorCounters))
    sample = sampler.take()
    assert "cannot open" in sample["notes"][0]
    assert sample["allocators"]
    assert "notes" not in sampler.take()


def test_dynamo_counters_are_read_and_not_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    counters["frames"]["total"] = 3
    utils = SimpleNamespace(
        counters=counters, cumulative_time_spent_ns={"entire_frame_compile": 2e9}
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    monkeypatch.setitem(
        sys.modules,
        "torch._dynamo.convert_frame",
        SimpleNamespace(FRAME_COMPILE_COUNTER={0: 3, 1: 1}),
    )
    sample = DynamoCounters().take()
    assert (sample["dynamo_frames"], sample["dynamo_recompiles"], sample["dynamo_compile_s"]) == (
        3,
        2,
        2.0,
    )
    assert sample["dynamo_graph_breaks"] == 0
    assert list(counters) == ["frames"]
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert DynamoCounters().take() == {}
