"""The ways out of memory that ran out."""

from __future__ import annotations

import pytest

from stepscope.analyses.memory.step_needs import chunked_loss_longer
from stepscope.analyses.memory.ways_out import SPARE, out_of_memory, ways_out
from stepscope.core.memory import OutOfMemoryReport, RecordedFailure, WayOut
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.memory import MemoryRecord, MemoryReport, memory_recording
from stepscope.core.run import RunFacts
from tests.wording import mentions

GB, GIB = 10**9, 1 << 30
KINDS = {"weights": 10 * GB, "optimizer": 20 * GB, "activations": 40 * GB, "temporary": 4 * GB}


def failed(**fields: object) -> OutOfMemoryReport:
    values: dict[str, object] = {
        "source": "memory-snapshot",
        "label": "built",
        "asked_bytes": 4 * GB,
        "capacity_bytes": 80 * GB,
        "held_bytes": 74 * GB,
        "cache_bytes": 1 * GB,
        "free_bytes": 1 * GB,
        "kinds": KINDS,
        "phase": "backward",
    }
    return OutOfMemoryReport(**(values | fields))  # type: ignore[arg-type]


def test_the_cheapest_three_each_free_enough() -> None:
    ways = ways_out(failed())
    assert len(ways) == 3
    assert failed().missing_bytes == 2 * GB
    assert all(way.is_enough for way in ways)
    costs = [way.step_longer for way in ways if way.step_longer is not None]
    assert costs == sorted(costs)
    assert "8 bits" in ways[0].action
    assert ways[0].frees_bytes == 15 * GB


def test_as_few_blocks_are_checkpointed_as_it_takes() -> None:
    few = next(way for way in ways_out(failed()) if "checkpoint" in way.action)
    assert "4 of 10 blocks" in few.action
    assert few.frees_bytes is not None
    assert few.frees_bytes >= 2 * GB + SPARE * 76 * GB
    many = ways_out(failed(asked_bytes=36 * GB, kinds={"activations": 40 * GB, "weights": 34 * GB}))
    most = next(way for way in many if "checkpoint" in way.action)
    assert "every block" in most.action
    assert most.step_longer is not None
    assert few.step_longer is not None
    assert most.step_longer == pytest.approx(10 / 4 * few.step_longer)


def test_memory_in_pieces_needs_another_allocator_alone() -> None:
    first = ways_out(failed(cache_bytes=6 * GB))[0]
    assert "expandable_segments" in first.action
    assert first.step_longer == 0


def test_other_processes_are_ended_first() -> None:
    first = ways_out(failed(others_bytes=30 * GB))[0]
    assert "other processes" in first.action


def test_what_is_not_enough_comes_last() -> None:
    ways = ways_out(
        failed(asked_bytes=30 * GB, kinds={"optimizer": 2 * GB, "activations": 70 * GB})
    )
    assert ways[0].is_enough
    assert not ways[-1].is_enough
    assert "8 bits" in ways[-1].action


def test_a_loss_that_asks_for_logits_is_fused() -> None:
    ways = ways_out(failed(where="NllLossBackward0", kinds={"activations": 70 * GB}))
    assert any("logits" in way.action for way in ways)


def test_in_forward_what_comes_after_is_not_known() -> None:
    ways = ways_out(failed(phase="forward"))
    assert {way.is_enough for way in ways} == {None}
    too_little = ways_out(failed(phase="forward", asked_bytes=60 * GB, kinds={"optimizer": GB}))
    assert too_little[-1].is_enough is False


def recorded(**fields: object) -> OutOfMemoryReport:
    """40 GiB for tensors, of which 36 can be filled: 4 of weights and 33 of activations are held,
    and 1 is asked for."""
    values: dict[str, object] = {
        "message": "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
        "40.00 GiB of which 3.00 GiB is free. Including non-PyTorch memory, this process has "
        "37.00 GiB memory in use. Of the allocated memory 37.00 GiB is allocated by PyTorch, and "
        "0 bytes is reserved by PyTorch but unallocated.",
        "phase": "backward",
        "step": 4,
        "sizes": {"weights": 4 * GIB},
        "trained_bytes": 4 * GIB,
        "optimizer": "SGD",
    }
    failure = RecordedFailure(**(values | fields))  # type: ignore[arg-type]
    run = RunFacts(path="run", command=(), exit_code=1, ranks=(), failures=(failure,))
    (report,) = out_of_memory(run, None)
    return report


def checkpointing(report: OutOfMemoryReport) -> WayOut:
    return next(way for way in report.ways if "checkpoint" in way.action)


def test_in_backward_the_moment_is_the_whole_step() -> None:
    """2 GiB must go, of 28 that blocks could do without."""
    report = recorded()
    assert report.missing_bytes == report.short_bytes == 0
    assert "1 of 10 blocks" in checkpointing(report).action


def test_states_that_the_first_step_makes_are_counted() -> None:
    """Two of the weights' size each, which the second step holds all along: 8 GiB more."""
    report = recorded(step=0, optimizer="AdamW", is_fused=True)
    assert report.short_bytes == 6 * GIB
    assert "5 of 10 blocks" in checkpointing(report).action
    assert any("8 bits" in way.action and not way.is_enough for way in report.ways)


def test_blocks_that_forward_had_not_come_to_are_counted() -> None:
    """It failed in the middle of ten blocks, of which five and a half hold 34 GiB. What the output
    layer makes of 2^18 tokens comes on top: three of 2 GiB each, which no block has."""
    report = recorded(phase="forward", block=5, num_blocks=10)
    assert report.needs is not None
    assert sum(report.needs.values()) == pytest.approx((4 + 34 * 10 / 5.5) * GIB)
    assert "8 of 10 blocks" in checkpointing(report).action
    headed = recorded(
        phase="forward",
        block=5,
        num_blocks=10,
        num_rows=1 << 18,
        element_bytes=2,
        head_features=1 << 12,
    )
    assert headed.needs is not None
    assert sum(headed.needs.values()) - sum(report.needs.values()) == 6 * GIB
    assert "9 of 10 blocks" in checkpointing(headed).action
    assert checkpointing(headed).is_enough


def test_checkpointed_blocks_keep_what_they_were_given() -> None:
    """Ten blocks need 34 * 10 / 5.5 GiB, and hold 1 GiB of it each; backward in one of them holds
    three gradients of that size."""
    report = recorded(phase="forward", block=5, num_blocks=10, input_bytes=GIB)
    assert report.needs is not None
    activations = report.needs["activations"]
    assert report.needs["temporary"] == (1 + 3) * GIB
    way = checkpointing(report)
    assert "7 of 10 blocks" in way.action
    assert way.frees_bytes == pytest.approx(7 / 10 * (activations - 10 * GIB))
    assert way.is_enough
    assert way.step_longer == pytest.approx(7 / 30)


def test_a_loss_in_chunks_costs_what_was_measured() -> None:
    """51.5 of 229 million weights are the output layer's, 8192 rows, 16 chunks: 33.0 ms a step
    became 40.8 (lab/memory/ways_out_second.json)."""
    longer = chunked_loss_longer(206045184 / 916140544, 8192, num_chunks=16)
    assert 40.76 / 33.02 - 1 <= longer < 1.2 * (40.76 / 33.02 - 1)
    assert chunked_loss_longer(0.225, 8192) < 0.5 * longer, "four chunks are what is advised"


def test_what_a_loss_in_chunks_costs_is_said_where_the_output_layer_is_known() -> None:
    known = {"phase": "forward", "operator": "cross_entropy", "trained_bytes": 4 * GIB}
    (way,) = [way for way in recorded(**known).ways if "logits" in way.action]
    assert way.step_longer is None
    more = {"head_features": 32768, "head_weight_bytes": GIB}
    (way,) = [way for way in recorded(**known, **more).ways if "logits" in way.action]
    assert way.step_longer == pytest.approx(0.25 * (1 / 3 + 4 * 450 / 8192))
    assert mentions(way.cost, "at most 14%")


def test_gradients_of_the_micro_batches_before_stay() -> None:
    """38 GiB in backward, of which 34 grow with the batch: two halves hold 17 less, and beside them
    the gradients of the first, as large as the weights."""
    way = next(way for way in recorded().ways if "accumulated" in way.action)
    assert "half" in way.action
    assert way.frees_bytes == (17 - 4) * GIB
    assert way.peak_bytes == (38 - 17 + 4) * GIB
    summed = recorded(sizes={"weights": 4 * GIB, "gradients": 4 * GIB})
    way = next(way for way in summed.ways if "accumulated" in way.action)
    assert way.frees_bytes == 15 * GIB, "a job that accumulates holds them now"


def test_what_the_loss_holds_is_in_no_block() -> None:
    """4 GiB are asked for at once: twice that is taken to be of the output layer."""
    report = recorded(
        message="CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of "
        "40.00 GiB of which 3.00 GiB is free. Including non-PyTorch memory, this process has "
        "37.00 GiB memory in use. Of the allocated memory 37.00 GiB is allocated by PyTorch, and "
        "0 bytes is reserved by PyTorch but unallocated."
    )
    assert report.needs is not None
    assert report.needs["activations"] == 25 * GIB
    assert report.needs["temporary"] == 12 * GIB
    assert "3 of 10 blocks" in checkpointing(report).action


def test_a_process_that_limits_itself_has_nothing_of_the_others() -> None:
    failure = RecordedFailure(
        message="CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "80.00 GiB of which 30.00 GiB is free. Process 7 has 30.00 GiB memory in use. Including "
        "non-PyTorch memory, this process has 20.00 GiB memory in use. 20.00 GiB allowed; Of the "
        "allocated memory 19.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch "
        "but unallocated.",
        phase="backward",
        sizes={"weights": GIB},
    )
    run = RunFacts(path="run", command=(), exit_code=1, ranks=(), failures=(failure,))
    (report,) = out_of_memory(run, None)
    assert report.others_bytes is None
    assert all("other processes" not in way.action for way in report.ways)


def test_an_update_that_does_not_fit_is_not_helped_by_a_smaller_batch() -> None:
    """35 GiB of weights, gradients, states and one temporary, of which 27 fit: fused, it is 28."""
    report = recorded(
        phase="optimizer",
        step=0,
        optimizer="AdamW",
        is_fused=False,
        most_held_bytes=10 * GIB,
        message="CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of "
        "30.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has "
        "29.00 GiB memory in use. Of the allocated memory 29.00 GiB is allocated by PyTorch, and "
        "0 bytes is reserved by PyTorch but unallocated.",
        sizes={"weights": 7 * GIB, "gradients": 7 * GIB, "optimizer": 14 * GIB},
        trained_bytes=7 * GIB,
    )
    assert report.short_bytes == 5 * GIB
    assert [way.is_enough for way in report.ways] == [True, False]
    assert "8 bits" in report.ways[0].action
    assert "fused" in report.ways[1].action


def test_a_later_update_is_not_asked_for_passes_that_went_well() -> None:
    """The most that was held may be of the update itself: fused, the 28 GiB of 33 fit."""
    values = {
        "phase": "optimizer",
        "optimizer": "AdamW",
        "is_fused": False,
        "most_held_bytes": 32 * GIB,
        "message": "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of "
        "33.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has "
        "32.00 GiB memory in use. Of the allocated memory 32.00 GiB is allocated by PyTorch, and "
        "0 bytes is reserved by PyTorch but unallocated.",
        "sizes": {"weights": 7 * GIB, "gradients": 7 * GIB, "optimizer": 14 * GIB},
        "trained_bytes": 7 * GIB,
    }
    fused = next(way for way in recorded(step=3, **values).ways if "fused" in way.action)
    assert (fused.peak_bytes, fused.is_enough) == (28 * GIB, True)
    first = recorded(step=0, **values)
    assert first.needs is not None
    assert "activations" in first.needs, "the second step's passes have the states beside them"
    first = recorded(step=0, passed_bytes=10 * GIB, **values)
    assert first.needs is not None
    assert sum(first.needs.values()) == 35 * GIB, "of 10 GiB beside 14 the update is the highest"


def test_states_in_eight_bits_are_updated_without_copies() -> None:
    report = recorded(
        phase="optimizer",
        optimizer="AdamW",
        is_fused=False,
        sizes={"weights": 7 * GIB, "gradients": 7 * GIB, "optimizer": 14 * GIB},
        trained_bytes=7 * GIB,
    )
    way = next(way for way in report.ways if "8 bits" in way.action)
    assert way.peak_bytes == (7 + 7 + 14 / 4) * GIB


@pytest.mark.parametrize(("num_blocks", "freed"), [(4, 0.75), (10, 0.9)])
def test_one_of_the_checkpointed_blocks_is_held_again(num_blocks: int, freed: float) -> None:
    """Half of the first has 34 GiB: too much, even with every block checkpointed."""
    report = recorded(phase="forward", block=0, num_blocks=num_blocks)
    assert report.needs is not None
    way = checkpointing(report)
    assert "every block" in way.action
    kept = 0.85 * freed * report.needs["activations"]
    assert way.frees_bytes == pytest.approx(kept + report.needs["temporary"])


def test_a_loss_that_forward_failed_in_holds_three_of_what_was_asked_for() -> None:
    """37 GiB are held, 1 of them the output layer's result; 1 is asked for, and a third comes."""
    report = recorded(phase="forward", operator="cross_entropy", trained_bytes=4 * GIB)
    assert report.needs == {"weights": 4 * GIB, "activations": 32 * GIB, "temporary": 3 * GIB}
    assert any("logits" in way.action for way in report.ways)


def test_in_forward_pieces_alone_are_not_known_to_be_the_reason() -> None:
    first = ways_out(failed(cache_bytes=6 * GB, phase="forward"))[0]
    assert "expandable_segments" in first.action
    assert first.is_enough is None


def test_without_kinds_nothing_is_said_to_be_freed() -> None:
    ways = ways_out(failed(kinds=None))
    assert {way.frees_bytes for way in ways} == {None}
    assert {way.is_enough for way in ways} == {None}


def test_what_the_capture_wrote_is_explained() -> None:
    failure = RecordedFailure(
        rank=3,
        message="CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "80.00 GiB of which 1.00 GiB is free.",
        where="forward (job/model.py:35)",
        phase="forward",
        step=0,
        capacity_bytes=80 << 30,
        held_bytes=70 << 30,
        reserved_bytes=78 << 30,
        sizes={"weights": 10 << 30, "optimizer": 20 << 30},
    )
    run = RunFacts(path="run", command=(), exit_code=1, ranks=(), failures=(failure,))
    (report,) = out_of_memory(run, None)
    assert report.asked_bytes == 2 << 30
    assert report.kinds == {
        "weights": 10 << 30,
        "optimizer": 20 << 30,
        "activations": 40 << 30,
    }
    assert (report.cache_bytes, report.free_bytes, report.rank) == (8 << 30, 1 << 30, 3)


def test_what_torch_says_of_the_moment_outweighs_what_was_held_later() -> None:
    """Of a job on an H200: when the exception was seen, the failed backward pass had let 3.2 GiB
    go, and it looked as if pieces that were too small had been the reason."""
    failure = RecordedFailure(
        message="CUDA out of memory. Tried to allocate 2.93 GiB. GPU 0 has a total capacity of "
        "139.80 GiB of which 119.64 GiB is free. Including non-PyTorch memory, this process has "
        "20.15 GiB memory in use. 20.97 GiB allowed; Of the allocated memory 18.89 GiB is "
        "allocated by PyTorch, and 531.53 MiB is reserved by PyTorch but unallocated.",
        phase="backward",
        capacity_bytes=150109880320,
        held_bytes=17136317952,
        reserved_bytes=20839399424,
        sizes={"weights": 866890752, "optimizer": 1733782092},
    )
    run = RunFacts(path="run", command=(), exit_code=1, ranks=(), failures=(failure,))
    (report,) = out_of_memory(run, None)
    gib = 1 << 30
    assert report.held_bytes == round(18.89 * gib)
    assert report.cache_bytes == round(531.53 * (1 << 20))
    assert report.missing_bytes is not None
    assert abs(report.missing_bytes - (2.93 - (20.97 - 18.89)) * gib) < 0.01 * gib
    assert all("expandable" not in way.action for way in report.ways)


def test_a_limit_of_the_process_is_seen_where_the_driver_had_enough() -> None:
    record = MemoryRecord(
        format="memory-snapshot",
        label="built",
        peak_bytes=10 * GB,
        num_ooms=1,
        oom_bytes=3 * GB,
        oom_free_bytes=1 * GB,
        oom_held={"activations": 10 * GB},
        capacity_bytes=140 * GB,
    )
    memory = MemoryReport(recordings=(memory_recording(record),))
    (report,) = out_of_memory(None, Auxiliary(memory=memory))
    assert (report.capacity_bytes, report.free_bytes) == (11 * GB, 0)
    assert report.missing_bytes == 2 * GB
