"""serial-loader: the training process loads; workers divide the cost, and what is left of it stays."""

from __future__ import annotations

import pytest

from tests.rules.recorded import SERIAL, Run


def loading(load_us: int, compute_us: int = 10_000) -> Run:
    run = Run()
    for _ in range(5):
        run.step()
        run.fetch(load_us, SERIAL)
        run.launch(compute_us)
        run.sync()
    return run


def test_loading_goes_beside_the_step() -> None:
    finding = loading(10_000).finding("serial-loader")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(20 / 11, rel=0.03)


def test_a_loader_too_slow_for_the_workers_keeps_part_of_the_wait() -> None:
    # 160 ms of loading over 8 workers is 20 ms a batch, over 4 it is 40, over 16 it is 10: the kernel takes 10 too.
    finding = loading(160_000).finding("serial-loader")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(170 / 20, rel=0.05)
    assert finding.predicted_low == pytest.approx(170 / 40, rel=0.05)
    assert finding.predicted_high == pytest.approx(170 / 11, rel=0.05)
    assert "num_workers=8" in finding.action
    assert "15 keep up" in finding.action


def test_a_cheap_loader_is_left_where_it_is() -> None:
    assert loading(250).gain("serial-loader") < 1.02
    assert loading(250, compute_us=1_000).gain("serial-loader") < 1.02


def test_loading_hidden_behind_a_busy_device_is_innocent() -> None:
    run = Run()
    for _ in range(5):
        run.step()
        run.fetch(3_000, SERIAL)
        run.launch(10_000)
    assert run.gain("serial-loader") < 1.02
