"""unoverlapped-copy: pinned copies on the stream of the kernels."""

from __future__ import annotations

import pytest

from tests.rules.recorded import PAGEABLE, PINNED, Run


def training(copy_us: int, host_us: int = 10) -> Run:
    run = Run()
    for _ in range(5):
        run.step()
        run.copy(PINNED, copy_us * 50_000, copy_us)
        run.launch(10_000, host_us=host_us)
    return run


def test_a_copy_in_the_way_of_a_busy_device_can_go_beside_it() -> None:
    assert training(2_500).gain("unoverlapped-copy") == pytest.approx(1.25, rel=0.02)


def test_copies_longer_than_the_step_still_have_to_be_made() -> None:
    assert training(20_000).gain("unoverlapped-copy") == pytest.approx(1.5, rel=0.02)


def test_a_device_that_waits_for_the_host_has_time_for_the_copy() -> None:
    assert training(2_500, host_us=30_000).gain("unoverlapped-copy") < 1.02


def pageable(size_bytes: int, copy_us: int) -> Run:
    run = Run()
    for _ in range(5):
        run.step()
        run.copy(PAGEABLE, size_bytes, copy_us, staged=True)
        run.launch(10_000)
    return run


def test_pageable_copies_that_pinning_leaves_in_the_way_are_told_after_pinning() -> None:
    # Pinned, 160 MB take 160 / (64 * 0.8) = 3.1 ms on the kernels' stream.
    run = pageable(160_000_000, 16_000)
    assert run.gain("pageable-copy") == pytest.approx(26 / 13.1, rel=0.05)
    assert run.gain("unoverlapped-copy") == pytest.approx(26 / 10, rel=0.05)
    codes = [finding.code for finding in run.judged().findings]
    assert codes.index("pageable-copy") < codes.index("unoverlapped-copy")


def test_pageable_copies_that_are_short_once_pinned_need_only_that() -> None:
    assert pageable(4_000_000, 2_000).finding("unoverlapped-copy") is None
