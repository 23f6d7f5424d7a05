"""tiny-buckets: many small gradient messages cost their latency; default buckets and
tensor-parallel exchanges do not count."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.rules.comms.tiny_buckets import propose_job
from stepscope.rules.shared.messages import cost_of
from tests.rules.job_cases import Fleet, ddp, gain
from tests.rules.on_hosts import on_hosts, one_after_the_other
from tests.wording import mentions

SMALL = 1 << 18


def test_many_small_messages_are_merged() -> None:
    job = ddp(buckets=[(SMALL, 500.0)] * 40).job()
    said = propose_job(job)
    assert said is not None
    assert mentions(said.evidence[0], "40 messages", "where 1")
    # Twenty kernels and the update stay; one message of 10.5 MB comes after them.
    assert gain(job, said) == pytest.approx(job.step_interval_ns / 10.9e6, rel=0.2)


def test_messages_larger_than_a_bucket_do_not_hide_small_ones() -> None:
    large = (64 << 20, 36_000.0)
    job = ddp(buckets=[large, *[(4 << 20, 4_500.0)] * 12, *[(1 << 20, 3_800.0)] * 12, large]).job()
    said = propose_job(job)
    assert said is not None
    assert "bucket_cap_mb=25" in said.action
    assert not said.alternative_to
    assert gain(job, said) > 1.3


def test_larger_buckets_than_the_default_are_an_alternative_alone() -> None:
    buckets = [(1 << 20, 200.0), (25 << 20, 2000.0), (25 << 20, 2000.0), (4 << 20, 500.0)]
    said = propose_job(ddp(buckets=buckets).job())
    assert said is not None
    assert "bucket_cap_mb=100" in said.action
    assert "exposed-collectives" in said.alternative_to


def test_default_buckets_of_a_link_without_latency_are_left_alone() -> None:
    buckets = [(1 << 20, 80.0), (25 << 20, 2000.0), (25 << 20, 2000.0), (4 << 20, 320.0)]
    job = ddp(buckets=buckets).job()
    assert gain(job, propose_job(job)) < 1.02


def test_small_messages_that_hide_promise_nothing() -> None:
    job = ddp(us=2000, buckets=[(SMALL, 20.0)] * 40).job()
    assert gain(job, propose_job(job)) < 1.03


def test_exchanges_that_the_next_layer_needs_are_no_buckets() -> None:
    fleet = Fleet()
    for _ in range(4):
        for _ in range(20):
            fleet.compute(100)
            fleet.collective("all_reduce", SMALL, 300)
        for _ in range(20):
            fleet.compute(100, backward=True)
            fleet.collective(
                "all_reduce",
                SMALL,
                300,
                inside=["autograd::engine::evaluate_function: ReduceBackward"],
            )
        fleet.step()
    assert propose_job(fleet.job()) is None


def test_messages_of_hosts_are_merged_with_what_handing_them_over_takes() -> None:
    job = Fleet().job([on_hosts(True, messages=8)] * 2)
    said = propose_job(job)
    assert said is not None
    assert mentions(said.evidence[0], "8 messages a step where 2")
    # Of 4 MB in 8 ms at 1.25 GB/s at least, so that 24 and 8 MB take 24 and 11.2; each takes the
    # host half a millisecond more.
    assert gain(job, said) == pytest.approx(76 / (12 + 35.2 - 3), rel=0.05)
    assert propose_job(Fleet().job([on_hosts(*[True] * 8)] * 2)) is None


def test_gradients_summed_by_hand_one_after_the_other_fit_into_one_message() -> None:
    trace = one_after_the_other(20, "[[8]]", after_update=False)
    job = Fleet().job([trace, trace])
    said = propose_job(job)
    assert said is not None
    assert mentions(said.action, "DistributedDataParallel", "all_reduce of each")
    # Nineteen waits of a millisecond go; what is done with each gradient stays.
    assert gain(job, said) == pytest.approx(32.1 / 13.1, rel=0.03)
    after = one_after_the_other(20, "[[8]]", after_update=True)
    assert propose_job(Fleet().job([after, after])) is None


def test_cost_is_fitted_where_messages_are_large_enough_to_tell() -> None:
    size = np.array([1e3, 1e5, 1e6, 1e7, 1e8])
    cost = cost_of(size, 20e3 + size / 10.0)
    assert cost is not None
    assert cost.measured
    assert (cost.alpha_ns, cost.beta_bytes_per_ns) == pytest.approx((20e3, 10.0), rel=0.01)


def test_cost_of_small_messages_alone_assumes_no_fast_link() -> None:
    cost = cost_of(np.array([1e5, 1e5]), np.array([4e6, 4e6]))
    assert cost is not None
    assert not cost.measured
    assert cost.beta_bytes_per_ns == 1.25
    shown = cost_of(np.array([1e5, 1e5]), np.array([1e4, 1e4]))
    assert shown is not None
    assert shown.beta_bytes_per_ns == pytest.approx(10.0)
    assert cost_of(np.array([0.0]), np.array([1.0])) is None
