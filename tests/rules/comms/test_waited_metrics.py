"""waited-metrics: a few numbers summed over ranks, each waited for before the next."""

from __future__ import annotations

import pytest

from stepscope.core.trace import Trace
from stepscope.rules.comms.waited_metrics import propose_job
from stepscope.rules.job_case import JobCase, JobProposal
from tests.rules.job_cases import Fleet
from tests.rules.on_hosts import on_hosts, one_after_the_other
from tests.wording import mentions


def job_of(trace: Trace) -> JobCase:
    return Fleet().job([trace, trace])


def gain(job: JobCase, said: JobProposal) -> float:
    return job.speedup(said.change(job.job_graph))


def test_numbers_that_are_waited_for_one_after_the_other_cost_the_step() -> None:
    job = job_of(one_after_the_other(10, "[[]]", after_update=True))
    said = propose_job(job)
    assert said is not None
    assert mentions(said.summary, "10 times a step", "10.01 ms")
    # What is done with each number stays: a millisecond of a step of 21.
    assert gain(job, said) == pytest.approx(21.1 / 11.1, rel=0.03)
    assert said.cautious is not None
    assert job.speedup(said.cautious(job.job_graph)) == pytest.approx(21.1 / 12.1, rel=0.03)


def test_one_number_many_bytes_or_gradients_are_no_metrics() -> None:
    assert propose_job(job_of(one_after_the_other(1, "[[]]", after_update=True))) is None
    assert propose_job(job_of(one_after_the_other(10, "[[9000]]", after_update=True))) is None
    assert propose_job(job_of(one_after_the_other(10, "[[8]]", after_update=False))) is None
    assert propose_job(job_of(on_hosts(True, messages=8))) is None


@pytest.mark.parametrize("wrapper", ["FSDP::pre_forward", "DistributedDataParallel.forward"])
def test_what_a_wrapper_sends_is_its_own(wrapper: str) -> None:
    trace = one_after_the_other(10, "[[8]]", after_update=True, inside=wrapper)
    assert propose_job(job_of(trace)) is None


def test_what_is_not_waited_for_costs_nothing() -> None:
    trace = one_after_the_other(2, "[[8]]", after_update=True, is_awaited=False)
    assert propose_job(job_of(trace)) is None
