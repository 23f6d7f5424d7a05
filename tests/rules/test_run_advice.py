"""What a run's own counts show without any recorded step."""

from __future__ import annotations

from stepscope.core.run import HostGrowth, RankMetadata, RunFacts
from stepscope.rules.advice import advise_run
from stepscope.rules.shared.loading import memory_words, more_in_memory
from stepscope.rules.without_trace import how_to_record
from tests.wording import mentions


def run_of(*ranks: RankMetadata) -> RunFacts:
    return RunFacts(path="run", command=("python", "train.py"), exit_code=0, ranks=ranks)


def said(*ranks: RankMetadata) -> dict[str, str]:
    return {each.code: f"{each.summary} {each.evidence}" for each in advise_run(run_of(*ranks))}


def test_functions_that_were_given_up_run_eagerly() -> None:
    words = said(RankMetadata(rank=0, num_recompiles=8, num_given_up=1))
    assert mentions(words["recompilation"], "recompile_limit", "eagerly", "8 times")
    assert said(RankMetadata(rank=0, num_recompiles=8, num_given_up=0)) == {}


def test_a_profiler_of_the_jobs_own_that_is_never_off() -> None:
    """Beside a recording that was made it was off for a while."""
    kept_off = RankMetadata(rank=0, num_kept_off=2)
    assert mentions(said(kept_off)["own-profiler"], "profiler of the job's own")
    assert mentions(how_to_record(run_of(kept_off)), "profiler")
    assert not mentions(how_to_record(run_of(kept_off)), "--start-step")
    assert said(RankMetadata(rank=0, num_kept_off=2, num_windows=1)) == {}


def test_memory_of_the_host_that_grows() -> None:
    growth = HostGrowth(
        num_samples=12,
        first_step=10,
        last_step=110,
        first_bytes=4e8,
        last_bytes=9e8,
        bytes_per_step=5e6,
    )
    words = said(RankMetadata(rank=0, growth=growth, memory_available_bytes=5e9))
    assert mentions(words["memory-growth"], "5.0 MB", "0.40 GB", "1,000 more steps")


def test_workers_fit_the_memory_that_one_is_seen_or_known_to_take() -> None:
    seen = RankMetadata(rank=0, worker_bytes=2e9, own_bytes=9e9, memory_available_bytes=20e9)
    assert more_in_memory(seen) == 5
    assert mentions(memory_words(seen, 4), "seen to hold", "2.0 GB", "4 of them 8.0")
    forked = RankMetadata(rank=0, own_bytes=1.7e9, memory_available_bytes=22e9)
    assert more_in_memory(forked) == 6
    assert mentions(memory_words(forked, 6), "as the process does", "1.7 GB")
    assert memory_words(RankMetadata(rank=0, own_bytes=1e8, memory_available_bytes=22e9), 4) == ""
    assert more_in_memory(RankMetadata(rank=0, own_bytes=1.7e9)) is None
