"""serial-loader: the training process loads; workers divide the cost, and what is left of it
stays."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.core.run import LoaderKnobs, RankMetadata
from stepscope.rules.data import serial_loader
from tests.ranges import left_open
from tests.rules.judging import judge
from tests.rules.recorded import SERIAL, Run
from tests.tracing import op


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
    # 160 ms of loading over 8 workers is 20 ms a batch, over 4 it is 40, over 16 it is 10: the
    # kernel takes 10 too.
    finding = loading(160_000).finding("serial-loader")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(170 / 20, rel=0.05)
    assert left_open(finding)[0] == pytest.approx(170 / 40, rel=0.05)
    assert left_open(finding)[1] == pytest.approx(170 / 11, rel=0.05)
    assert "num_workers=8" in finding.action
    assert "15 keep up" in finding.action


def test_what_many_threads_did_in_the_training_process_is_one_threads_in_a_worker() -> None:
    """80 ms of loading on 8 of 16 cores, 20 of everything else on one: 8 workers bring a batch
    every 80 ms."""
    run = loading(80_000, compute_us=20_000)
    case = replace(
        run.case(),
        metadata=RankMetadata(
            rank=0, cores=16, cores_used=0.8 * 8 + 0.2, loader=LoaderKnobs(num_workers=0)
        ),
    )
    finding = next((one for one in judge(case).findings if one.code == "serial-loader"), None)
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(100 / 80, rel=0.05)
    single = replace(
        case,
        metadata=RankMetadata(rank=0, cores=16, cores_used=1.0, loader=LoaderKnobs(num_workers=0)),
    )
    finding = next(one for one in judge(single).findings if one.code == "serial-loader")
    assert finding.predicted_speedup == pytest.approx(100 / 21, rel=0.05)


def test_threads_of_operators_may_only_spin() -> None:
    """As before, but all of the loading is operators: 8 workers bring a batch every 10 to 80 ms, so
    28 is the middle."""
    run = loading(80_000, compute_us=20_000)
    run.events += [
        op("aten::avg_pool2d", one.start + 1, one.end - 1)
        for one in run.events
        if "DataLoader" in one.name
    ]
    case = replace(
        run.case(),
        metadata=RankMetadata(
            rank=0, cores=16, cores_used=0.8 * 8 + 0.2, loader=LoaderKnobs(num_workers=0)
        ),
    )
    finding = next(one for one in judge(case).findings if one.code == "serial-loader")
    assert finding.predicted_speedup == pytest.approx(100 / 28.3, rel=0.05)
    assert finding.predicted_low == pytest.approx(1.0, abs=0.01)
    assert left_open(finding)[1] == pytest.approx(100 / 21, rel=0.05)
    assert any("8 cores busy, 100 % of the time in operators" in told for told in finding.evidence)


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


@pytest.mark.parametrize(
    ("cores_used", "workers", "batch_ms"), [(0.1, 8, 5.0), (1.0, 1, 50.0), (None, 1, 50.0)]
)
def test_workers_that_wait_for_their_data_need_no_cores_of_their_own(
    cores_used: float | None, workers: int, batch_ms: float
) -> None:
    """40 ms of loading and 10 of work on one core, without a device. If the core idles through the
    loading, workers wait together."""
    known = RankMetadata(rank=0, cores=1, cores_used=cores_used, loader=LoaderKnobs(num_workers=0))
    case: Any = SimpleNamespace(
        graph=SimpleNamespace(on_host=True), metadata=known, step_interval_ns=50e6
    )
    assert serial_loader._workers(case) == workers
    assert serial_loader._batch_ns(case, 40e6, workers) == pytest.approx(batch_ms * 1e6)
    # To be sure of it, cores must be left over.
    assert serial_loader._batch_ns(case, 40e6, 4, sure=True) == pytest.approx(
        10e6 if cores_used == 0.1 else 50e6
    )


@pytest.mark.parametrize(
    ("cores", "words"), [(2, "may outnumber the rank's cores"), (16, "at most the cores per rank")]
)
def test_the_action_does_not_ask_for_more_cores_than_there_are(cores: int, words: str) -> None:
    case = replace(
        loading(10_000).case(),
        metadata=RankMetadata(
            rank=0, cores=cores, cores_used=0.2, loader=LoaderKnobs(num_workers=0)
        ),
    )
    assert words in serial_loader._least(case, 10e6, 8)
