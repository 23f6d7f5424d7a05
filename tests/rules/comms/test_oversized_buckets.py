"""oversized-buckets: one bucket for the whole model stands after the backward pass; default ones,
and a gradient that is itself so large, are no fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepscope.core.run import RankMetadata
from stepscope.rules.comms.oversized_buckets import POLICY, propose_job
from stepscope.rules.job_case import JobCase
from tests.rules.job_cases import ACCUMULATE, NODE, Fleet, gain
from tests.wording import mentions

MIB = 1 << 20


def job_of(
    sizes_mib: Sequence[float],
    *,
    backward_us: float = 1000,
    gb_s: float = 40.0,
    num_gradients: int = 20,
    steps: int = 4,
) -> Fleet:
    """Two ranks: ten kernels forward and ten backward, each of `backward_us`; gradients come evenly
    over the backward pass, and each message goes out when its share of them is there."""
    fleet = Fleet()
    for _ in range(steps):
        for _ in range(10):
            fleet.compute(backward_us / 2)
        num = len(sizes_mib)
        for at in range(10):
            fleet.compute(backward_us, backward=True)
            for _ in range(num_gradients // 10):
                starts = fleet.now
                fleet.host(1)
                fleet.span(ACCUMULATE, starts)
            for size in sizes_mib[at * num // 10 : (at + 1) * num // 10]:
                fleet.collective(
                    "all_reduce",
                    int(size * MIB),
                    20 + size * MIB / gb_s / 1e3,
                    inside=[NODE.format(ACCUMULATE), ACCUMULATE],
                    needed=False,
                )
        fleet.settle()
        fleet.compute(50, name="multi_tensor_apply_kernel")
        fleet.step()
    return fleet


def test_one_bucket_for_all_gradients_is_priced() -> None:
    """250 MiB at 40 GB/s are 6.6 ms after 10 ms of backward; in ten pieces one of them is left."""
    job = job_of([250]).job()
    said = propose_job(job)

    assert said is not None
    assert mentions(said.summary, "262 MB")
    whole, moved, piece = 15_050.0, 20 + 250 * MIB / 40e3, (20 + 250 * MIB / 40e3) / 10
    assert job.step_interval_ns == pytest.approx((whole + moved) * 1e3, rel=0.02)
    assert gain(job, said) == pytest.approx((whole + moved) / (whole + piece), rel=0.03)


def test_the_same_bytes_in_default_buckets_agree_with_the_promise() -> None:
    """What the change promises is what a job with such buckets takes."""
    large, usual = job_of([250]).job(), job_of([25] * 10).job()
    said = propose_job(large)

    assert said is not None
    promised = large.step_interval_ns / gain(large, said)
    assert promised == pytest.approx(usual.step_interval_ns, rel=0.03)
    assert propose_job(usual) is None


def on(job: JobCase, *devices: str) -> JobCase:
    """The same job, each rank on such a device."""
    cases = tuple(
        replace(case, metadata=RankMetadata(rank=at, device_id=device))
        for at, (case, device) in enumerate(zip(job.cases, devices, strict=True))
    )
    return replace(job, cases=cases)


def test_ranks_that_share_a_device_wait_for_their_turn_in_each_piece() -> None:
    """250 MiB are 131 ms. In seven pieces, of three gradients each, 86 of them are hidden; six more
    starts take 27."""
    job = job_of([250], backward_us=10_000, gb_s=2).job()
    alone, shared = propose_job(on(job, "a", "b")), propose_job(on(job, "a", "a"))
    gained = (job.step_interval_ns - job.step_interval_ns / gain(job, alone)) / 1e6
    left = (job.step_interval_ns - job.step_interval_ns / gain(job, shared)) / 1e6
    assert gained == pytest.approx(86, rel=0.02)
    assert gained - left == pytest.approx(6 * 2 * POLICY.turn_ms, rel=0.02)


def test_pieces_are_whole_gradients() -> None:
    """Four gradients of 100 MiB: pieces of 25 are not to be had."""
    job = job_of([400], num_gradients=10, backward_us=10_000).job()
    said = propose_job(job)
    assert said is not None
    whole, moved = 150_050.0, 20 + 400 * MIB / 40e3
    assert gain(job, said) == pytest.approx((whole + moved) / (whole + moved / 10), rel=0.01)


def test_a_slow_link_leaves_what_the_backward_pass_cannot_hide() -> None:
    """250 MiB at 10 GB/s are 26 ms, and the backward pass is 10 ms: 17 stay."""
    large, usual = job_of([250], gb_s=10).job(), job_of([25] * 10, gb_s=10).job()
    said = propose_job(large)

    assert said is not None
    promised = large.step_interval_ns / gain(large, said)
    assert promised == pytest.approx(usual.step_interval_ns, rel=0.05)
    assert gain(large, said) < 1.4


def test_one_gradient_that_is_so_large_cannot_be_split() -> None:
    assert propose_job(job_of([250, 10], num_gradients=0).job()) is None


def test_two_buckets_are_each_split() -> None:
    large, usual = job_of([125, 125]).job(), job_of([25] * 10).job()
    said = propose_job(large)

    assert said is not None
    promised = large.step_interval_ns / gain(large, said)
    assert promised == pytest.approx(usual.step_interval_ns, rel=0.03)


def test_the_cautious_gain_is_smaller() -> None:
    job = job_of([250]).job()
    said = propose_job(job)

    assert said is not None
    assert said.cautious is not None
    assert 1.0 < job.speedup(said.cautious(job.job_graph)) < gain(job, said)
