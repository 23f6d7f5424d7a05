"""Which side of the line each category stands on."""

from __future__ import annotations

import pytest

from stepscope.core.trace import DEVICE_WORK, HOST_RANGES, Kind
from stepscope.readers.trace.categories import kind_of_category

# libkineto's ActivityType.h, by where PyTorch's deviceTypeFromActivity and the plugins put them.
HOST = [
    "cpu_op",
    "user_annotation",
    "cuda_runtime",
    "cuda_driver",
    "python_function",
    "mtia_runtime",
    "glow_runtime",
    "hpu_op",
]
HOST += [
    "xpu_runtime",
    "xpu_driver",
    "privateuse1_runtime",
    "privateuse1_driver",
    "collective_comm",
    "cpu_instant_event",
]
WORK = ["kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events"]
NO_WORK = [
    "gpu_user_annotation",
    "cuda_sync",
    "cuda_event",
    "xpu_sync",
    "overhead",
    "cuda_profiler_range",
    "Trace",
]
NOT_KNOWN = ["mtia_insight", "external_correlation", "", "npu", "hardware_counters"]


@pytest.mark.parametrize("category", HOST)
def test_what_the_host_does_is_a_host_range(category: str) -> None:
    assert kind_of_category(category) in HOST_RANGES


@pytest.mark.parametrize("category", [*WORK, "Kernel", "Memcpy", "Memset"])
def test_what_the_device_does_is_work(category: str) -> None:
    assert kind_of_category(category) in DEVICE_WORK


@pytest.mark.parametrize("category", NO_WORK)
def test_waits_marks_and_the_profiler_are_neither(category: str) -> None:
    assert kind_of_category(category) in (Kind.SYNC, Kind.DEVICE_MARK, Kind.OVERHEAD)


@pytest.mark.parametrize("category", NOT_KNOWN)
def test_what_is_not_known_is_called_so(category: str) -> None:
    assert kind_of_category(category) == Kind.OTHER
