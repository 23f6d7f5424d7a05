"""A machine that others keep busy: it is said, ranges are wider, and nothing is promised where
they had most of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import FIXES
from stepscope.core.run import RankMetadata, RunFacts
from stepscope.pipeline.measure import measure_job
from stepscope.pipeline.recording import Recording
from stepscope.readers.inputs import find_sources
from stepscope.rules.accuracy import is_crowded, widened
from stepscope.rules.judge import Judgement
from stepscope.rules.judge_job import crowded_judgement
from stepscope.rules.proposal import Remark
from stepscope.rules.verdict import diagnose_job
from stepscope.rules.without_trace import busy_note
from tests.live_runs import add_samples, add_steps, row, sample, write_rank, write_run
from tests.rules.test_unanswered import finding
from tests.shared_data import lab_traces
from tests.wording import any_mentions, mentions


def run_of(
    *,
    queued_share: float | None = None,
    held_back_share: float | None = None,
    other_cores: float | None = None,
) -> RunFacts:
    rank = RankMetadata(
        rank=0,
        queued_share=queued_share,
        held_back_share=held_back_share,
        other_cores=other_cores,
    )
    return RunFacts(path="run", command=("train",), exit_code=0, ranks=(rank,))


def test_a_quiet_machine_changes_nothing() -> None:
    assert widened(1.2, 1.6, 1.4, 0.01) == widened(1.2, 1.6, 1.4)
    assert busy_note(run_of(queued_share=0.01)) is None
    assert busy_note(run_of()) is None


def test_time_without_a_core_widens_a_range_by_as_much() -> None:
    low, high = widened(1.2, 1.6, 1.4)
    wide_low, wide_high = widened(1.2, 1.6, 1.4, 0.25)
    assert wide_high == pytest.approx(high / 0.75)
    assert wide_low == pytest.approx(low * 0.75)


def test_a_busy_machine_is_named_with_who_keeps_it_busy() -> None:
    said = busy_note(run_of(queued_share=0.3, other_cores=3.2))
    assert said is not None
    assert mentions(said, "no core for 30%", "3.2 cores")
    throttled = busy_note(run_of(queued_share=0.1, held_back_share=0.4))
    assert throttled is not None
    assert mentions(throttled, "40%", "quota")


def test_a_run_is_crowded_only_where_others_had_most_of_it() -> None:
    assert is_crowded(run_of(queued_share=0.6, other_cores=2.0))
    assert not is_crowded(run_of(queued_share=0.6, other_cores=0.0))
    assert not is_crowded(run_of(queued_share=0.3, other_cores=2.0))
    assert not is_crowded(run_of(held_back_share=0.9))


CROWDED = run_of(queued_share=0.6, other_cores=2.0)


def test_a_large_gain_in_a_crowd_is_told_with_how_to_be_surer() -> None:
    found = (finding("debug-mode", "host", 1.3), finding("gc-pause", "host", 1.05))
    made = crowded_judgement(Judgement(findings=found, ladder=(1.3, 1.36)), CROWDED)
    assert [each.code for each in made.findings] == ["debug-mode"]
    assert mentions(made.findings[0].evidence[-1], "busy machine", "60%")
    assert (made.ladder, made.abstentions) == ((), ())


def test_a_small_gain_in_a_crowd_is_not_told_and_named_all_the_same() -> None:
    found = (finding("debug-mode", "host", 1.08), finding("gc-pause", "host", 1.01))
    made = crowded_judgement(Judgement(findings=found, ladder=(1.08,)), CROWDED)
    assert (made.findings, made.ladder) == ((), ())
    (said,) = made.abstentions
    assert said.code == FIXES
    assert mentions(said.reason, "debug-mode")
    remarked = crowded_judgement(
        Judgement(remarks=(Remark(code="thread-oversubscription", text="24 threads"),)), CROWDED
    )
    assert remarked.remarks
    assert mentions(remarked.abstentions[0].reason, "thread-oversubscription")
    (bare,) = crowded_judgement(Judgement(), CROWDED).abstentions
    assert mentions(bare.reason, "other processes", "cores")
    assert not mentions(bare.reason, "debug-mode")


def test_a_late_rank_in_a_crowd_is_told_of_with_a_wide_range() -> None:
    paths = lab_traces("rank_traces/gloo_late_rank.slow.rank*")
    with find_sources([str(path) for path in paths]) as found:
        job = measure_job(found.sources, step_ns=None)
        busy = replace(job.facts, run=run_of(queued_share=0.6, other_cores=2.0))
        diagnosis = diagnose_job(dataclasses.replace(job, facts=busy))
    late = next(each for each in diagnosis.findings if each.code == "late-rank")
    assert late.predicted_speedup >= 1.1
    assert late.predicted_low <= late.predicted_speedup <= late.predicted_high
    assert any_mentions(late.evidence, "busy machine")


def test_what_other_processes_use_is_the_machines_less_all_ranks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", exit_code=0)
    for rank in (0, 1):
        folder = write_rank(run, rank, host="node", machine={"cpu_count": 8})
        add_steps(folder, [row(step) for step in range(1, 40)])
        told = {
            "cpu_user_cores": 1.0,
            "cpu_sys_cores": 0.5,
            "machine_cpu_share": 0.75,
            "main_thread_queued_share": 0.2,
        }
        add_samples(folder, [sample(at, at, **told) for at in range(1, 5)])
    with Recording([run]) as recording:
        said = recording.diagnosis
    facts = said.facts.run
    assert facts is not None
    assert [rank.other_cores for rank in facts.ranks] == [3.0, 3.0]
    assert facts.ranks[0].held_up_share == pytest.approx(0.2)
    assert any_mentions(said.notes, "machine was busy")
