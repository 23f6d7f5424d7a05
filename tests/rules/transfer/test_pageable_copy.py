"""pageable-copy: the host is held by the copies and the device runs dry."""

from __future__ import annotations

import pytest

from tests.ranges import left_open
from tests.rules.recorded import PAGEABLE, Run


def images(size: int, copy_us: int, compute_us: int = 10_000, host_us: int = 4_000) -> Run:
    """Four steps: a staged copy, host work, a kernel."""
    run = Run()
    for _ in range(4):
        run.step()
        run.copy(PAGEABLE, size, copy_us, staged=True)
        run.host(host_us)
        run.launch(compute_us)
    return run


def test_large_pageable_copies_give_what_pinned_ones_on_the_same_stream_save() -> None:
    # 16 ms of copy, 4 of host work with the device idle, 10 of kernel; pinned, 160 MB take 160 /
    # (64 * 0.8) = 3.1 ms.
    finding = images(160_000_000, 16_000).finding("pageable-copy")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(30 / 13.1, rel=0.05)
    assert left_open(finding)[0] < finding.predicted_speedup < left_open(finding)[1]
    assert left_open(finding)[1] == pytest.approx(30 / 10, rel=0.05)


def test_a_few_bytes_of_labels_give_nothing() -> None:
    assert images(2_048, 2, host_us=50).gain("pageable-copy") < 1.02


def test_a_host_bound_step_with_small_pageable_copies_gains_nothing() -> None:
    run = Run()
    for _ in range(4):
        run.step()
        run.copy(PAGEABLE, 65_536, 15)
        for _ in range(20):
            run.launch(20, host_us=400)
    assert run.gain("pageable-copy") < 1.02
