"""pipeline-bubble: stages that wait for one another as the formula says; data-parallel waiting and
full pipelines do not."""

from __future__ import annotations

from stepscope.rules.comms.pipeline_bubble import propose_job
from tests.rules.job_cases import Fleet, gain


def one_f_one_b(micro: int, us: float, steps: int = 4) -> Fleet:
    """1F1B on two stages: forward takes `us`, backward as long; each hand-over is a round that both
    take part in."""
    fleet = Fleet()
    for _ in range(steps):
        fleet.compute([us, 0])
        fleet.collective("sendrecv", 1 << 20, 10, told=False)
        for at in range(micro):
            # The last stage does this micro-batch while the first does the next one's forward and
            # the last one's backward.
            fleet.compute([us if at + 1 < micro else 0, us])
            fleet.compute([0, us], backward=True)
            fleet.collective("sendrecv", 1 << 20, 10, told=False)
            fleet.compute([us, 0], backward=True)
        fleet.step()
    return fleet


def test_a_short_pipeline_waits_and_is_found() -> None:
    job = one_f_one_b(2, 5000).job()
    said = propose_job(job)
    assert said is not None
    assert "2 stages with 2 micro-batches" in said.summary
    assert "(p - 1) / (m + p - 1) makes 33%" in said.summary, "(2 - 1) / (2 + 2 - 1)"
    assert 1.1 < gain(job, said) < 1.4


def test_more_micro_batches_leave_less_to_gain() -> None:
    few, many = one_f_one_b(2, 5000).job(), one_f_one_b(16, 625).job()
    assert gain(many, propose_job(many)) < gain(few, propose_job(few))


def test_launches_of_smaller_micro_batches_count() -> None:
    """A host that takes as long as the device: four times the launches make it slower, not
    faster."""
    fleet = Fleet()
    for _ in range(4):
        for at in range(2):
            fleet.compute([100, 0] if at else [0, 100], host_us=90)
            fleet.collective("sendrecv", 1 << 20, 10, told=False)
            fleet.compute([0, 100] if at else [100, 0], host_us=90, backward=True)
            fleet.collective("sendrecv", 1 << 20, 10, told=False)
        fleet.step()
    job = fleet.job()
    assert gain(job, propose_job(job)) < 1.02


def test_waiting_in_all_reduces_is_no_bubble() -> None:
    fleet = Fleet()
    for step in range(4):
        fleet.compute([100, 500] if step % 2 else [500, 100])
        fleet.collective("all_reduce", 1 << 20, 10)
        fleet.step()
    assert propose_job(fleet.job()) is None
