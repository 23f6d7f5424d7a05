"""The allocator's events of one device, whatever numbers a file has for devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepscope.analyses.memory.lifetimes import device_events


def context(devices: list[int]) -> Any:
    num = len(devices)
    memory = SimpleNamespace(
        device_type=np.ones(num, np.int64),
        device=np.array(devices, np.int64),
        time_ns=np.arange(num),
        size_bytes=np.full(num, 512),
        address=np.arange(num),
        allocated_bytes=np.full(num, 512),
        reserved_bytes=np.full(num, 1024),
    )
    return SimpleNamespace(trace=SimpleNamespace(memory=memory), device=None)


@pytest.mark.parametrize(
    ("devices", "times"),
    [([1, 0, 1], [0, 2]), ([-1, -1, 2], [2]), ([1 << 60, 3, 3], [1, 2]), ([-1], None)],
)
def test_the_device_with_most_events_is_taken(devices: list[int], times: list[int] | None) -> None:
    events = device_events(context(devices))
    assert (None if events is None else events.time_ns.tolist()) == times
