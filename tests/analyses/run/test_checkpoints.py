"""Saving told by what it does: many fetches in a row with silence between them."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyses.host.activity import host_activity
from stepscope.analyses.links import link
from stepscope.core.trace import NONE
from tests.tracing import Event, call, copy, kernel, op, trace_of

MS = 1_000_000
US = 1000
TENSOR = 1_000_000


def fetch(start: int, number: int, size: int = TENSOR) -> list[Event]:
    """A tensor copied to the host, in 100 us."""
    end = start + 100 * US
    return [
        op("aten::copy_", start, end),
        call("cudaMemcpyAsync", start + 5 * US, end - 5 * US, number),
        copy("Memcpy DtoH (Device -> Pageable)", start + 10 * US, end - 10 * US, number, size=size),
    ]


def launch(start: int, number: int) -> list[Event]:
    end = start + 20 * US
    return [
        op("aten::mm", start, end),
        call("cudaLaunchKernel", start + 5 * US, end - 5 * US, number),
        kernel("gemm", end, end + 50 * US, number),
    ]


def saving(
    num: int, *, write_us: int, between: str | None = None, back: bool = False
) -> list[Event]:
    """A product, `num` tensors fetched with `write_us` of silence after each, a product."""
    events, now = launch(0, 1), 1 * MS
    for i in range(num):
        events += fetch(now, 10 + i)
        now += 100 * US
        if between is not None:
            events.append(op(between, now, now + 10 * US))
        now += write_us * US
        if back:
            events += [
                op("aten::copy_", now, now + 50 * US),
                call("cudaMemcpyAsync", now + 5 * US, now + 40 * US, 100 + i),
                copy(
                    "Memcpy HtoD (Pageable -> Device)",
                    now + 10 * US,
                    now + 30 * US,
                    100 + i,
                    size=TENSOR,
                ),
            ]
            now += 60 * US
    return events + launch(now + 1 * MS, 2)


def io_of(events: list[Event]) -> list[tuple[int, int]]:
    trace = trace_of(*events)
    found = host_activity(trace, link(trace)).io
    return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


def test_a_save_reaches_from_the_operator_before_to_the_one_after() -> None:
    events = saving(10, write_us=400)
    assert io_of(events) == [(20 * US, 1 * MS + 10 * 500 * US + 1 * MS)]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(saving(5, write_us=400), id="a few tensors somebody looks at"),
        pytest.param(saving(10, write_us=400, between="aten::mul"), id="work on what was fetched"),
        pytest.param(saving(10, write_us=400, back=True), id="an offload, whose tensors come back"),
    ],
)
def test_what_is_no_save_is_not_called_one(events: list[Event]) -> None:
    assert io_of(events) == []


def test_fetches_with_no_silence_between_them_are_no_save() -> None:
    first = launch(0, 1)
    events = [event for i in range(10) for event in fetch(20 * US + i * 100 * US, 10 + i)]
    assert io_of(first + events + launch(20 * US + 1000 * US, 2)) == []


def test_every_event_is_linked_as_built() -> None:
    trace = trace_of(*saving(10, write_us=400))
    assert int((link(trace).launch != NONE).sum()) == 12
    assert np.count_nonzero(trace.size_bytes == TENSOR) == 10
