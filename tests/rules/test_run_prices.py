"""What following a run's advice gives, less what stays."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepscope.core.run import (
    LoaderKnobs,
    RankMetadata,
    RunFacts,
    RunPart,
    RunPrice,
    Saves,
    WholeRun,
)
from stepscope.rules.run_prices import POLICY, price_of_kept_workers, price_of_saves
from stepscope.rules.whole_run import advised
from tests.rules.timed import timed_steps

MS = 1_000_000
PART = RunPart(what="saves", seconds=1, share=0.1, num=10)
RUN = WholeRun(
    rank=0,
    seconds=10,
    productive_share=0.9,
    parts=(PART,),
    step_ms=50,
    num_clean_steps=90,
    num_steps=100,
)
SAVES = Saves(num=10, once_ns=100 * MS, cpu_ns=50 * MS, size_bytes=50_000_000)
ROOMY = RankMetadata(rank=0, cores=4, cores_used=1.0, other_cores=0.0, saves=SAVES)


def price(mine: RankMetadata, run: WholeRun = RUN) -> RunPrice:
    found = price_of_saves(run, PART, mine)
    assert found is not None
    assert 0 <= found.low_seconds <= found.seconds <= found.high_seconds <= PART.seconds
    return found


def test_with_a_free_core_only_the_copy_stays() -> None:
    copied_ns = POLICY.copy_ns + SAVES.size_bytes / POLICY.copy
    assert price(ROOMY).seconds == pytest.approx(PART.seconds - 10 * copied_ns / 1e9)


def test_with_no_free_core_the_writer_takes_from_the_steps() -> None:
    full = replace(ROOMY, cores_used=4.0)
    taken_ns = 10 * (POLICY.writer_ns + SAVES.cpu_ns) / 4
    assert price(full).seconds == pytest.approx(price(ROOMY).seconds - taken_ns / 1e9)
    assert price(full).high_seconds == price(ROOMY).high_seconds


def test_a_thread_that_waits_for_its_core_copies_longer() -> None:
    assert price(replace(ROOMY, queued_share=0.5)).seconds < price(ROOMY).seconds


def test_what_does_not_fit_between_two_saves_is_waited_for() -> None:
    often = replace(RUN, num_steps=10)
    assert price(ROOMY, often).seconds == pytest.approx(price(ROOMY).seconds - 0.5)


def test_without_the_sizes_or_the_cores_there_is_no_price() -> None:
    assert price_of_saves(RUN, PART, replace(ROOMY, saves=None)) is None
    assert price_of_saves(RUN, PART, replace(ROOMY, cores_used=None)) is None
    assert price_of_saves(RUN, PART, None) is None


def test_the_first_batch_stays_of_an_epoch_start() -> None:
    mine = RankMetadata(
        rank=0, steps=timed_steps(20), loader=LoaderKnobs(num_workers=2), children_cores=0.5
    )
    found = price_of_kept_workers(PART, mine)
    assert found == RunPrice(seconds=0.9, low_seconds=0.6, high_seconds=1)
    unseen = price_of_kept_workers(PART, replace(mine, children_cores=None))
    assert unseen is not None
    assert unseen.seconds == 0.8


def test_saves_that_a_full_machine_has_no_core_for_are_to_be_fewer() -> None:
    for cores_used, is_beside in ((1.0, True), (4.0, False)):
        # A save that is all on a core: its writer takes as much of the steps, and more.
        saves = replace(SAVES, once_ns=100 * MS, cpu_ns=390 * MS)
        mine = replace(ROOMY, cores_used=cores_used, saves=saves)
        facts = RunFacts(path="run", command=("train",), exit_code=0, ranks=(mine,))
        whole = advised(RUN, facts)
        (advice,) = whole.advice
        assert ("async_save" in advice.action, advice.likely is not None) == (is_beside, is_beside)
        assert "less often" in advice.action
        assert advice.seconds == PART.seconds
