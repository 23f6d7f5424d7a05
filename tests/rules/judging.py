"""A rank judged as a job of one, as the tests of single rules want it."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.diagnosis import Diagnosis, Finding
from stepscope.core.facts import Facts
from stepscope.rules import judge as judging
from stepscope.rules.case import Case
from stepscope.rules.job_case import Job, job_case_of_rank
from stepscope.rules.judge import Judgement, joined
from stepscope.rules.proposal import Proposal
from stepscope.rules.verdict import diagnose_job


def judge(case: Case) -> Judgement:
    return judging.judge(job_case_of_rank(case))


def finding_of(case: Case, proposal: Proposal) -> Finding:
    job = job_case_of_rank(case)
    return judging.finding_of(job, joined(job, {0: proposal}))


def ladder(case: Case, proposals: Sequence[Proposal]) -> tuple[float, ...]:
    job = job_case_of_rank(case)
    return judging.ladder(job, [joined(job, {0: proposal}) for proposal in proposals])


def diagnosed(case: Case, step_ns: int | None = None) -> Diagnosis:
    return diagnose_job(
        Job(
            facts=Facts(ranks=(case.facts,), given_step_ns=step_ns),
            case_of=lambda index, step_ns: case,
        )
    )
