"""Late and uneven ranks by the lengths of their unprofiled steps alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from stepscope.core.facts import Facts
from stepscope.core.run import OwnTime, RankMetadata, RunFacts
from stepscope.pipeline.recording import Recording
from stepscope.rules.imbalance import late_rank, uneven_work
from stepscope.rules.job_case import Job
from stepscope.rules.verdict import diagnose_job
from stepscope.rules.without_trace import diagnose_without_trace, run_notes
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.rules.recorded import Run
from tests.rules.timed import timed_steps
from tests.wording import mentions

MS = 1_000_000


def own(own_ms: float, *, longest: float, spread: float = 0.2, loader_ms: float = 1) -> OwnTime:
    return OwnTime(
        num_steps=50,
        step_ns=40 * MS,
        own_ns=round(own_ms * MS),
        loader_ns=round(loader_ms * MS),
        backward_ns=5 * MS,
        share_longest=longest,
        spread=spread,
    )


def run_of(*ranks: RankMetadata) -> RunFacts:
    return RunFacts(path="run", command=("train",), exit_code=0, ranks=ranks)


def hosts(*times: OwnTime) -> RunFacts:
    return run_of(*(RankMetadata(rank=rank, own=each) for rank, each in enumerate(times)))


def test_the_rank_with_the_longest_own_time_is_named_with_what_it_does_more_of() -> None:
    said = late_rank.advise_run(hosts(own(10, longest=0), own(40, longest=1, loader_ms=31)))
    assert said is not None
    assert said.ranks == (1,)
    assert said.weight == pytest.approx(0.75)
    assert mentions(said.action, "30.0 ms", "more", "loader")
    assert uneven_work.advise_run(hosts(own(10, longest=0), own(40, longest=1))) is None


def test_a_last_rank_that_changes_is_uneven_work_and_not_late() -> None:
    run = hosts(own(30, longest=0.45), own(36, longest=0.55))
    assert late_rank.advise_run(run) is None
    said = uneven_work.advise_run(run)
    assert said is not None
    assert said.ranks == ()


def test_on_a_busy_machine_uneven_times_are_said_and_not_judged() -> None:
    run = hosts(own(30, longest=0.45), own(36, longest=0.55))
    assert not any("uneven-work" in note for note in run_notes(run))
    busy = structs.replace(run.ranks[0], queued_share=0.4)
    run = run_of(busy, run.ranks[1])
    assert uneven_work.advise_run(run) is None
    (note,) = [note for note in run_notes(run) if "uneven-work" in note]
    assert "20% of the step" in note
    little = run_of(structs.replace(busy, queued_share=0.1), run.ranks[1])
    assert uneven_work.advise_run(little) is not None, "a tenth of the step is not 20 % of it"
    assert not any("uneven-work" in note for note in run_notes(little))


def test_even_ranks_are_neither() -> None:
    run = hosts(own(39, longest=0.4, spread=0.02), own(40, longest=0.6, spread=0.02))
    assert late_rank.advise_run(run) is None
    assert uneven_work.advise_run(run) is None


def on_device(rank: int, wait_ms: int, host_ms: int | None) -> RankMetadata:
    host_ns = None if host_ms is None else host_ms * MS
    timed = timed_steps(80, wait_ms=wait_ms, on_device=True, host_ns=host_ns)
    return RankMetadata(rank=rank, steps=timed, has_device=True)


def test_with_a_device_a_loader_that_one_rank_waits_for_is_named() -> None:
    said = late_rank.advise_run(run_of(on_device(0, 2, 20), on_device(1, 60, None)))
    assert said is not None
    assert said.ranks == (1,)


def test_with_a_device_a_wait_that_the_host_runs_ahead_of_is_nobodys_loss() -> None:
    assert late_rank.advise_run(run_of(on_device(0, 2, 20), on_device(1, 60, 65))) is None


def test_a_run_folder_without_a_trace_names_the_rank_that_holds_the_others_up(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", exit_code=0)
    for rank, backward in ((0, 34), (1, 4)):
        folder = write_rank(run, rank, world_size=2, ddp=[{"bucket_cap_mb": 25}])
        lines = [
            row(step, 40.0, backward_ns=backward * MS, num_backwards=1) for step in range(1, 41)
        ]
        add_steps(folder, lines)
    with Recording([run]) as recording:
        said = recording.diagnosis
    said.self_check()
    assert said.verdict.bound == "imbalance"
    assert said.verdict.shares["imbalance"] == pytest.approx(0.75)
    assert said.holding_up == ((1, "late-rank"),)


def test_the_verdict_of_recorded_steps_names_the_rank_that_timed_ones_wait_for() -> None:
    recorded = Run()
    for _ in range(4):
        recorded.step()
        recorded.launch(9_000)
        recorded.sync()
    case = recorded.case()
    for own_ms, is_named in ((26.0, True), (38.0, False)):
        timed = timed_steps(40, num_batches=0)
        ranks = [
            RankMetadata(rank=0, own=own(own_ms, longest=0), steps=timed),
            RankMetadata(rank=1, own=own(40, longest=1), steps=timed),
        ]
        facts = Facts(ranks=(case.facts,), run=run_of(*ranks))
        said = diagnose_job(Job(facts=facts, case_of=lambda index, step_ns: case)).verdict
        assert said.bound == "compute"
        assert mentions(said.summary, "without the profiler", "35%", "for rank 1") == is_named


def test_ranks_in_step_that_wait_little_are_not_called_uneven() -> None:
    run = hosts(own(39, longest=0.5, spread=0.03), own(39, longest=0.5, spread=0.03))
    assert diagnose_without_trace(run).advice == ()
