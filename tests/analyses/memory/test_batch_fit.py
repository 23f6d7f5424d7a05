"""Which batch fits: what a job asks for, and in which order it begins."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.memory.batch_fit import WORKSPACE, BatchFit, Beginning
from stepscope.analyses.memory.lifetimes import NEVER, DeviceEvents, Lifetimes
from stepscope.analyses.memory.requests import requested_bytes
from tests.tracing import op, trace_of

MB = 1 << 20


def test_an_operator_asks_for_the_smallest_block_that_it_got() -> None:
    """Blocks of the second call were not cut: 1 MB more than what it asked for."""
    trace = trace_of(op("aten::mm", 0, 10), op("aten::mm", 20, 30), op("aten::add", 40, 50))
    mm_first, mm_second, add = range(3)
    spans = Lifetimes(
        size=np.array([24, 6, 25, 7, 9]) * MB,
        start_ns=np.array([1, 2, 21, 22, 41]),
        end_ns=np.full(5, NEVER),
    )
    operator = np.array([mm_first, mm_first, mm_second, mm_second, add])
    asked = requested_bytes(trace, operator, spans)
    assert (asked // MB).tolist() == [24, 6, 24, 6, 9]


def fit(beginning: Beginning, stays: int) -> BatchFit:
    """100 MB of activations from 10 to 20 of each of two steps of 100."""
    spans = Lifetimes(
        size=np.array([100, 100]) * MB, start_ns=np.array([10, 110]), end_ns=np.array([20, 120])
    )
    events = DeviceEvents(
        time_ns=np.array([10, 20, 110, 120]),
        size_bytes=np.array([100, -100, 100, -100]) * MB,
        address=np.array([1, 1, 1, 1]),
        allocated=np.array([stays + 100 * MB, stays, stays + 100 * MB, stays]),
        reserved=np.full(4, stays + 100 * MB),
    )
    return BatchFit(events, spans, spans.size, np.full(2, 1 << 50), beginning)


def test_states_are_cut_out_of_the_first_steps_activations() -> None:
    """30 MB of weights, then 60 MB of states in the 100 MB that are free: the next step finds no
    100 MB there, and the piece that is left is never given back."""
    job = Beginning(weights=(30 * MB,), num_states=2, backward_ns=15, update_ns=30)
    assert fit(job, 90 * MB).reserved_bytes(1.0, 1 << 40) == 230 * MB
    assert fit(job, 90 * MB).reserved_bytes(1.0, 220 * MB) is None
    before = Beginning(weights=(30 * MB, 30 * MB, 30 * MB), backward_ns=15, update_ns=30)
    assert fit(before, 90 * MB).reserved_bytes(1.0, 220 * MB) == 190 * MB


def test_the_backward_threads_workspace_is_made_in_it() -> None:
    job = Beginning(weights=(30 * MB,), backward_ns=25, update_ns=30)
    assert fit(job, 30 * MB + 2 * WORKSPACE).reserved_bytes(1.0, 1 << 40) == 30 * MB + WORKSPACE + (
        200 * MB
    )
