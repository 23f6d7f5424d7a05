"""exchange-each-batch: three steps of four without the exchange; nothing where it hides, or where
one rank alone was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.replay.simulate_job import play_job
from stepscope.rules.comms.exchange_each_batch import propose_job
from stepscope.rules.shared.messages import gradient_messages, with_times_ns
from tests.rules.job_cases import Fleet, ddp, gain
from tests.rules.on_hosts import on_hosts


def test_the_gain_is_the_mean_of_steps_with_and_without() -> None:
    job = ddp(buckets=[(100_000_000, 20_000.0)]).job()
    said = propose_job(job)
    assert said is not None
    assert said.changes_numerics
    sent = [gradient_messages(job, index) for index in range(2)]
    free = play_job(with_times_ns(job.job_graph, sent, lambda _, ns: ns * 0)).step_interval_ns
    mean = (3 * free + job.step_interval_ns) / 4
    assert gain(job, said) == pytest.approx(job.step_interval_ns / mean, rel=0.02)


def test_an_exchange_that_hides_gives_nothing() -> None:
    job = ddp(us=2_000, buckets=[(25_000_000, 2_000.0)]).job()
    assert gain(job, propose_job(job)) < 1.02


def test_one_rank_alone_says_nothing() -> None:
    job = ddp(buckets=[(100_000_000, 20_000.0)]).job()
    assert propose_job(replace(job, cases=job.cases[:1])) is None


def test_gradients_that_hosts_exchange_are_paid_for_once_in_four_batches_too() -> None:
    job = Fleet().job([on_hosts(True)] * 2)
    said = propose_job(job)
    assert said is not None
    assert gain(job, said) == pytest.approx(13 / (13 - 8 * 3 / 4), rel=0.1)
    assert propose_job(Fleet().job([on_hosts(True, True)] * 2)) is None
