"""What following a run's advice gives, less what stays."""

from __future__ import annotations

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
from stepscope.rules.whole_run import with_whole_run
from stepscope.rules.without_trace import diagnose_without_trace
from tests.rules.timed import timed_steps

MS = 1_000_000
PART = RunPart(what="saves", dur_ns=1000 * MS, num=10)
RUN = WholeRun(
    rank=0, dur_ns=10_000 * MS, parts=(PART,), step_ns=50 * MS, num_clean=90, num_steps=100
)
SAVES = Saves(num=10, once_ns=100 * MS, cpu_ns=50 * MS, size_bytes=50_000_000)
ROOMY = RankMetadata(rank=0, cores=4, cores_used=1.0, other_cores=0.0, saves=SAVES)


def price(mine: RankMetadata, run: WholeRun = RUN) -> RunPrice:
    found = price_of_saves(run, PART, mine)
    assert found is not None
    assert 0 <= found.low_ns <= found.dur_ns <= found.high_ns <= PART.dur_ns
    return found


def test_with_a_free_core_only_the_copy_stays() -> None:
    copied_ns = POLICY.copy_ns + SAVES.size_bytes / POLICY.copy
    assert price(ROOMY).dur_ns == PART.dur_ns - round(10 * copied_ns)


def test_with_no_free_core_the_writer_takes_from_the_steps() -> None:
    full = replace(ROOMY, cores_used=4.0)
    taken_ns = 10 * (POLICY.writer_ns + SAVES.cpu_ns) / 4
    assert price(full).dur_ns == price(ROOMY).dur_ns - round(taken_ns)
    assert price(full).high_ns == price(ROOMY).high_ns


def test_a_thread_that_waits_for_its_core_copies_longer() -> None:
    assert price(replace(ROOMY, queued_share=0.5)).dur_ns < price(ROOMY).dur_ns


def test_what_does_not_fit_between_two_saves_is_waited_for() -> None:
    often = replace(RUN, num_steps=10)
    assert price(ROOMY, often).dur_ns == price(ROOMY).dur_ns - 10 * 50 * MS


def test_without_the_sizes_or_the_cores_there_is_no_price() -> None:
    assert price_of_saves(RUN, PART, replace(ROOMY, saves=None)) is None
    assert price_of_saves(RUN, PART, replace(ROOMY, cores_used=None)) is None
    assert price_of_saves(RUN, PART, None) is None


def test_the_first_batch_stays_of_an_epoch_start() -> None:
    mine = RankMetadata(
        rank=0, steps=timed_steps(20), loader=LoaderKnobs(num_workers=2), children_cores=0.5
    )
    found = price_of_kept_workers(PART, mine)
    assert found == RunPrice(dur_ns=900 * MS, low_ns=600 * MS, high_ns=1000 * MS)
    unseen = price_of_kept_workers(PART, replace(mine, children_cores=None))
    assert unseen is not None
    assert unseen.dur_ns == 800 * MS


def test_saves_that_a_full_machine_has_no_core_for_are_to_be_fewer() -> None:
    for cores_used, is_beside in ((1.0, True), (4.0, False)):
        # A save that is all on a core: its writer takes as much of the steps, and more.
        saves = replace(SAVES, once_ns=100 * MS, cpu_ns=390 * MS)
        mine = replace(ROOMY, cores_used=cores_used, saves=saves)
        facts = RunFacts(path="run", command=("train",), exit_code=0, ranks=(mine,))
        whole = with_whole_run(diagnose_without_trace(facts), RUN).facts.whole_run
        assert whole is not None
        (advice,) = whole.advice
        assert ("async_save" in advice.action, advice.likely is not None) == (is_beside, is_beside)
        assert "less often" in advice.action
        assert advice.dur_ns == PART.dur_ns
