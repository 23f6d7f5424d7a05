"""host-offload: tensors go out and come back in each step."""

from __future__ import annotations

import pytest

from tests.ranges import left_open
from tests.rules.recorded import PINNED, TO_HOST, Run

MB = 1_000_000


def offloading(out: int, back: int) -> Run:
    """A kernel of 10 ms, gradients out in 2 ms, 5 ms of update on the host, parameters back in 2
    ms."""
    run = Run()
    for _ in range(4):
        run.step()
        run.launch(10_000)
        run.copy(TO_HOST, out, 2_000)
        run.sync()
        run.host(5_000)
        run.copy(PINNED, back, 2_000)
        run.sync()
    return run


def test_state_that_crosses_the_bus_both_ways_is_offloaded() -> None:
    finding = offloading(100 * MB, 100 * MB).finding("host-offload")
    assert finding is not None
    # The update itself stays: seven passes over 100 MB at 4.8 TB/s are 0.15 ms.
    assert finding.predicted_speedup == pytest.approx(19 / 10.2, rel=0.05)
    assert left_open(finding)[0] < finding.predicted_speedup


def test_a_batch_in_and_results_out_are_no_offload() -> None:
    assert offloading(4 * MB, 100 * MB).gain("host-offload") == 1.0
    assert offloading(1 * MB, 1 * MB).gain("host-offload") == 1.0


def test_gradients_that_gloo_takes_through_the_host_are_no_offload() -> None:
    run = offloading(100 * MB, 100 * MB)
    run.fetch(500, "gloo:all_reduce")
    assert run.gain("host-offload") == 1.0
