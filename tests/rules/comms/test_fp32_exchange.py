"""fp32-exchange: gradients of 32 bits move half as long in 16; starts, other types and what is no
gradient stay."""

from __future__ import annotations

import pytest

from stepscope.rules.comms.fp32_exchange import propose_job
from tests.rules.job_cases import Fleet, ddp, gain
from tests.wording import mentions

LARGE = 100_000_000


def test_half_the_bytes_take_half_the_time() -> None:
    job = ddp(buckets=[(LARGE, 50_000.0)]).job()
    said = propose_job(job)
    assert said is not None
    assert said.changes_numerics
    assert mentions(said.summary, "100 MB of gradients", "32 bits")
    # 50 ms of bytes become 25, and casting 100 MB on an unknown device takes 1.3.
    after = job.step_interval_ns / gain(job, said)
    assert job.step_interval_ns - after == pytest.approx(25e6 - 1.33e6, rel=0.05)


def test_messages_that_are_all_latency_give_nothing() -> None:
    job = ddp(buckets=[(1 << 14, 1_000.0), (1 << 13, 1_000.0)] * 4).job()
    assert gain(job, propose_job(job)) < 1.02


def test_gradients_of_16_bits_are_left_alone() -> None:
    assert propose_job(ddp(buckets=[(LARGE, 50_000.0)], dtype="BFloat16").job()) is None


def test_exchanges_that_hide_give_nothing() -> None:
    job = ddp(us=2_000, buckets=[(LARGE, 500.0)]).job()
    assert gain(job, propose_job(job)) < 1.02


def test_activations_are_no_gradients() -> None:
    fleet = Fleet()
    for _ in range(4):
        for _ in range(10):
            fleet.compute(100)
            fleet.collective("all_reduce", LARGE, 5_000)
        fleet.step()
    assert propose_job(fleet.job()) is None
