"""resharded-forward: parameters fetched twice; fetched once, or of other sizes, is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.core.trace import DeviceProperties, MemoryEvents, Trace
from stepscope.rules.comms.resharded_forward import propose_job
from tests.rules.job_cases import NODE, Fleet, gain
from tests.wording import mentions

SIZES = (8 << 20, 12 << 20, 12 << 20, 16 << 20)


def sharded(*, again: tuple[int, ...]) -> Fleet:
    """Four layers gathered in forward; those of `again` gathered in backward."""
    fleet = Fleet()
    for _ in range(4):
        for size in SIZES:
            fleet.collective("all_gather", size, 400)
            fleet.compute(100)
        for size in again:
            fleet.collective(
                "all_gather",
                size,
                400,
                inside=[NODE.format("RegisterPostBackwardFunctionBackward")],
            )
            fleet.compute(200, backward=True)
        for size in SIZES:
            fleet.collective(
                "reduce_scatter",
                size,
                100,
                inside=[NODE.format("RegisterPostBackwardFunctionBackward")],
            )
        fleet.step()
    return fleet


def test_the_second_gather_is_gone() -> None:
    job = sharded(again=SIZES).job()
    said = propose_job(job)
    assert said is not None
    assert "4 all-gathers a step" in said.evidence[0]
    assert gain(job, said) == pytest.approx(4.9 / 3.3, rel=0.1)


@pytest.mark.parametrize("again", [(), (1 << 20, 1 << 20), (8 << 20,)])
def test_gathered_once_or_something_else_is_right(again: tuple[int, ...]) -> None:
    assert propose_job(sharded(again=again).job()) is None


def with_memory(trace: Trace, reserved: int, whole: int) -> Trace:
    """The allocator's events of a device, and one of the host, which says nothing of it."""
    device = DeviceProperties(
        index=0,
        name="made up",
        memory_bytes=whole,
        num_sms=1,
        compute_capability=None,
        warp_size=None,
    )
    rows = np.array([reserved // 2, reserved, 1 << 50], np.int64)
    events = MemoryEvents(
        time_ns=np.arange(3),
        size_bytes=rows,
        address=np.arange(3),
        allocated_bytes=rows // 2,
        reserved_bytes=rows,
        device_type=np.array([1, 1, 0], np.int16),
        device=np.zeros(3, np.int16),
    )
    return replace(trace, memory=events, meta=replace(trace.meta, devices=(device,)))


def test_without_the_allocators_events_memory_is_not_known() -> None:
    said = propose_job(sharded(again=SIZES).job())
    assert said is not None
    assert mentions(said.evidence[1], "not known", "profile_memory=True")


@pytest.mark.parametrize(("room", "num"), [(60 << 20, 4), (30 << 20, 2), (4 << 20, None)])
def test_no_more_is_kept_than_memory_has_room_for(room: int, num: int | None) -> None:
    whole = 1 << 30
    fleet = sharded(again=SIZES[::-1])
    reserved = round(0.95 * whole) - room
    job = fleet.job([with_memory(trace, reserved, whole) for trace in fleet.traces()])
    said = propose_job(job)
    if num is None:
        assert said is None
        return
    assert said is not None
    assert f"{num} all-gathers a step" in said.evidence[0]
    assert "not reserved" in said.evidence[1]
    assert mentions(said.action, "last layers") == (num < 4)
    assert said.memory is not None
    assert said.memory.before_bytes == reserved // 2
    assert 0 < said.memory.after_bytes - said.memory.before_bytes <= room
