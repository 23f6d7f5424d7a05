"""All fixes at once: never less than the best of them, never more than they allow."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from stepscope.replay.changes import with_task_ns, without_host_parts
from stepscope.replay.graph import Graph
from stepscope.rules import judge as judging
from stepscope.rules.host import small_batch
from stepscope.rules.job_case import JobChange, JobProposal
from stepscope.rules.judge import Judgement
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Answer
from tests.rules.job_cases import ddp
from tests.rules.judging import ladder
from tests.rules.recorder import Recorder
from tests.wording import mentions


def proposal(change: object) -> Proposal:
    assert callable(change)
    return Proposal(code="x-y", bound="host", summary="", action="", evidence=(), change=change)


def longer(graph: Graph) -> Graph:
    """A change that does harm once the host is out of the way."""
    return replace(graph, task_ns=graph.task_ns * 3)


def test_a_fix_with_nothing_left_to_give_does_not_spoil_the_rest() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(20):
            run.launch("aten::mm", kernel_us=20, host_us=30)
        run.step(number, start)
    case = run.case(600_000)
    free = proposal(lambda graph: without_host_parts(graph, "work"))
    short = proposal(
        lambda graph: with_task_ns(
            graph, np.ones(len(graph), np.bool_), np.full(len(graph), 5000.0)
        )
    )
    (alone,) = ladder(case, [free])
    assert alone > 1.1
    assert ladder(case, [free, proposal(longer)]) == (alone, alone)
    first, both = ladder(case, [free, short])
    assert first == alone
    assert both > alone
    first, second, third = ladder(case, [free, proposal(longer), short])
    assert (first, second, third) == (alone, alone, both), (
        "what did harm is left out of what follows"
    )


def named(code: str, change: object = None, **fields: object) -> JobProposal:
    return JobProposal(
        code=code,
        bound="comms",
        summary="",
        action=f"do {code}",
        evidence=(),
        ranks=(0, 1),
        change=change or shorter(0.5),  # type: ignore[arg-type]
        **fields,  # type: ignore[arg-type]
    )


def shorter(share: float) -> JobChange:
    return lambda job_graph: dataclasses.replace(job_graph, moving_ns=job_graph.moving_ns * share)


def judged(monkeypatch: pytest.MonkeyPatch, *proposals: JobProposal) -> Judgement:
    monkeypatch.setattr(judging, "_about_all", lambda job: list(proposals))
    monkeypatch.setattr(judging, "rank_rules", lambda case: ())
    return judging.judge(ddp(buckets=[(100_000_000, 20_000.0)]).job())


def test_fixes_that_exclude_one_another_are_marked_and_never_combined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judgement = judged(monkeypatch, named("small-batch"), named("pipeline-bubble"))
    first, second = judgement.findings
    assert (first.excludes, second.excludes) == (("pipeline-bubble",), ("small-batch",))
    assert judgement.ladder[1] == judgement.ladder[0] == first.predicted_speedup


def test_fixes_that_go_together_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = judged(monkeypatch, named("slow-link"), named("pipeline-bubble"))
    assert judgement.findings[0].excludes == ()
    assert judgement.ladder[1] > judgement.ladder[0]


def test_an_alternative_is_said_with_the_finding_it_could_replace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = named("exchange-each-batch", shorter(0.1), alternative_to=("gone", "slow-link"))
    judgement = judged(monkeypatch, named("slow-link"), other)
    (finding,) = judgement.findings
    (alternative,) = finding.alternatives
    assert (alternative.code, alternative.action) == (other.code, other.action)
    assert alternative.predicted_speedup > finding.predicted_speedup == judgement.ladder[-1]
    finding.self_check()


def test_an_alternative_to_nothing_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    other = named("exchange-each-batch", alternative_to=("slow-link",))
    judgement = judged(monkeypatch, other)
    assert [finding.code for finding in judgement.findings] == [other.code]


@pytest.mark.parametrize(("share", "first"), [(0.6, "slow-link"), (0.95, "unfused-pointwise")])
def test_the_fix_of_one_fault_stands_before_a_change_of_the_model_that_gives_little_more(
    monkeypatch: pytest.MonkeyPatch, share: float, first: str
) -> None:
    judgement = judged(
        monkeypatch, named("unfused-pointwise", shorter(0.5)), named("slow-link", shorter(share))
    )
    gains = {finding.code: finding.predicted_speedup for finding in judgement.findings}
    assert gains["unfused-pointwise"] > gains["slow-link"] > 1.0
    assert judgement.findings[0].code == first


def test_a_larger_batch_is_of_all_ranks_and_in_the_jobs_own_figures() -> None:
    job = ddp().job()
    half = Proposal(
        code=small_batch.CODE,
        summary="the rank's own words",
        action="",
        evidence=("batch x 4: 9 times the samples a second", "room"),
        change=lambda graph: replace(graph, task_ns=graph.task_ns / 2),
        samples_times=4.0,
    )
    answers: list[list[Answer]] = [[half] for _ in job.cases]
    (whole,) = judging._about_ranks(job, answers)
    finding = judging.finding_of(job, whole)
    longer = 4 / finding.predicted_speedup
    assert mentions(finding.summary, "4 times as large", f"{longer:.1f} times as long")
    assert finding.evidence == ("room",)
    assert judging._about_ranks(job, [[half], *([] for _ in job.cases[1:])]) == []


@pytest.mark.parametrize("share", [0.05, 0.95])
def test_what_changes_the_training_stands_last_however_much_it_gives(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    judgement = judged(
        monkeypatch,
        named("slow-link", shorter(share)),
        named("small-batch", shorter(0.01), changes_training=True),
    )
    assert [finding.code for finding in judgement.findings] == ["slow-link", "small-batch"]
    assert [finding.changes_training for finding in judgement.findings] == [False, True]


def test_a_larger_batch_that_stands_first_gives_as_much_together_as_one_that_stands_last() -> None:
    job = ddp(buckets=[(100_000_000, 20_000.0)]).job()
    quick = job.job_graph.moving_ns / 2
    at_rate = named("slow-link", lambda graph: dataclasses.replace(graph, moving_ns=quick))
    batch = named("small-batch", shorter(0.25), samples_times=4.0)
    first, last = (judging.ladder(job, each) for each in ([batch, at_rate], [at_rate, batch]))
    assert first[-1] == last[-1] > first[0]
