"""serial-loader: the training process loads; workers divide the cost, and what is left of it
stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.run import LoaderKnobs, RankMetadata
from stepscope.rules.data import serial_loader
from stepscope.rules.proposal import Proposal
from tests.ranges import left_open
from tests.rules.judging import judge
from tests.rules.recorded import SERIAL, Run
from tests.tracing import op
from tests.wording import any_mentions


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
    # 160 ms of loading are 184 of a worker: over 8 it is 23 ms a batch, over 4 it is 46. If workers
    # are no slower, over 16 it is 10: the kernel takes 10 too.
    finding = loading(160_000).finding("serial-loader")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(170 / 23, rel=0.05)
    assert left_open(finding)[0] == pytest.approx(170 / 46, rel=0.05)
    assert left_open(finding)[1] == pytest.approx(170 / 11, rel=0.05)
    assert "num_workers=8" in finding.action
    assert "17 keep up" in finding.action


def test_what_many_threads_did_in_the_training_process_is_one_threads_in_a_worker() -> None:
    """80 ms of loading on 8 of 16 cores, 20 of everything else on one: 15 workers bring a batch
    every 49 ms."""
    run = loading(80_000, compute_us=20_000)
    case = replace(
        run.case(),
        metadata=RankMetadata(
            rank=0, cores=16, cores_used=0.8 * 8 + 0.2, loader=LoaderKnobs(num_workers=0)
        ),
    )
    finding = next((one for one in judge(case).findings if one.code == "serial-loader"), None)
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(100 / 49, rel=0.05)
    single = replace(
        case,
        metadata=RankMetadata(rank=0, cores=16, cores_used=1.0, loader=LoaderKnobs(num_workers=0)),
    )
    finding = next(one for one in judge(single).findings if one.code == "serial-loader")
    assert finding.predicted_speedup == pytest.approx(100 / 21, rel=0.05)


def test_threads_of_operators_may_only_spin() -> None:
    """As before, but all of the loading is operators: one worker takes 92 to 736 ms, so 260 is the
    middle, and 13 keep up with the step."""
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
    assert finding.predicted_speedup == pytest.approx(100 / 21, rel=0.05)
    assert "num_workers=13" in finding.action
    assert finding.predicted_low == pytest.approx(1.0, abs=0.01)
    assert left_open(finding)[1] == pytest.approx(100 / 21, rel=0.05)
    assert any_mentions(finding.evidence, "8 cores busy", "100 % of the time")


def test_a_cheap_loader_is_left_where_it_is() -> None:
    assert loading(250).gain("serial-loader") < 1.02
    assert loading(250, compute_us=1_000).gain("serial-loader") < 1.02


@pytest.mark.parametrize(("num_tensors", "gain"), [(2, 20 / 11.35), (24, 20 / 19.05), (300, 1.0)])
def test_a_batch_of_many_tensors_costs_to_hand_over(num_tensors: int, gain: float) -> None:
    """Of the 10 ms of loading, the training process keeps 0.65 and 0.35 for each tensor."""
    knobs = LoaderKnobs(num_workers=0, batch_tensors=num_tensors, batch_bytes=40_000)
    case = replace(
        loading(10_000).case(),
        metadata=RankMetadata(rank=0, cores=16, cores_used=1.0, loader=knobs),
    )
    (found,) = [each for each in judge(case).findings if each.code == "serial-loader"]
    assert found.predicted_speedup == pytest.approx(gain, rel=0.02)


def test_a_large_batch_takes_a_worker_longer() -> None:
    """92 ms of a worker, and 0.4 for each of 100 MB, and what two tensors take, beside the 11 of
    the training process: over 8 cores."""
    knobs = LoaderKnobs(num_workers=0, batch_tensors=2, batch_bytes=100_000_000)
    case = replace(
        loading(80_000).case(),
        metadata=RankMetadata(rank=0, cores=8, cores_used=1.0, loader=knobs),
    )
    (found,) = [each for each in judge(case).findings if each.code == "serial-loader"]
    assert found.predicted_speedup == pytest.approx(90 / (145 / 8), rel=0.05)


def test_loading_hidden_behind_a_busy_device_is_innocent() -> None:
    run = Run()
    for _ in range(5):
        run.step()
        run.fetch(3_000, SERIAL)
        run.launch(10_000)
    assert run.gain("serial-loader") < 1.02


@pytest.mark.parametrize(
    ("cores_used", "queued_share", "words"),
    [(0.2, 0.0, "may outnumber"), (1.0, 0.0, "at most"), (0.2, 0.75, "at most")],
)
def test_workers_that_wait_for_their_data_need_no_cores_of_their_own(
    cores_used: float, queued_share: float, words: str
) -> None:
    """80 ms of loading and 10 of work on 4 cores: if they idle through the loading, as many workers
    as keep up may wait together. One that waits for a core which others have does not idle."""
    case = replace(
        loading(80_000).case(),
        metadata=RankMetadata(
            rank=0,
            cores=4,
            cores_used=cores_used,
            queued_share=queued_share,
            loader=LoaderKnobs(num_workers=0),
        ),
    )
    said = serial_loader.propose(case)
    assert isinstance(said, Proposal)
    keeps_up = words == "may outnumber"
    assert ("num_workers=8" in said.action) == keeps_up
    assert ("num_workers=4" in said.action) != keeps_up


def test_the_rates_of_several_numbers_are_told() -> None:
    case = replace(
        loading(80_000).case(),
        metadata=RankMetadata(
            rank=0, cores=16, cores_used=1.0, loader=LoaderKnobs(num_workers=0, batch_size=50)
        ),
    )
    said = serial_loader.propose(case)
    assert isinstance(said, Proposal)
    (rates,) = [words for words in said.evidence if "num_workers, reckoned" in words]
    assert "1: 544, 2: 1087, 4: 2174, 8: 4" in rates


def test_a_dataset_without_a_loader_is_told_to_be_given_to_one() -> None:
    run = Run()
    for _ in range(5):
        run.step()
        run.fetch(80_000, "enumerate(IterableDataset)#Stream.__next__")
        run.launch(10_000)
        run.sync()
    for splits, words in ((False, "get_worker_info()"), (True, " keep up, if")):
        loader = LoaderKnobs(num_workers=0, is_iterable=True, is_bare=True, splits_itself=splits)
        metadata = RankMetadata(rank=0, cores=4, cores_used=1.0, loader=loader)
        case = replace(run.case(), metadata=metadata)
        finding = next(one for one in judge(case).findings if one.code == "serial-loader")
        assert finding.action.startswith("DataLoader(dataset, batch_size=None, num_workers=4")
        assert words in finding.action
        assert ("get_worker_info()" in finding.action) != splits


@pytest.mark.parametrize("other_cores", [0.03, 0.8])
def test_what_others_use_leaves_a_worker_for_each_core_that_may_be_had(other_cores: float) -> None:
    """A core less a hair is a core; and where too few are free now to gain by, all of the rank's
    count, with a range that begins near no gain."""
    case = replace(
        loading(80_000, compute_us=1_000).case(),
        metadata=RankMetadata(
            rank=0,
            cores=2,
            cores_used=1.0,
            other_cores=other_cores,
            loader=LoaderKnobs(num_workers=0),
        ),
    )
    said = serial_loader.propose(case)
    assert isinstance(said, Proposal)
    assert "num_workers=2" in said.action
    finding = next(one for one in judge(case).findings if one.code == "serial-loader")
    assert finding.predicted_speedup == pytest.approx(2 / 1.17, rel=0.05)
    assert (finding.predicted_low > 1.1) == (other_cores < 0.5)
