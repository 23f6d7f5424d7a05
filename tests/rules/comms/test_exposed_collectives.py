"""exposed-collectives: exchanges after the compute that could hide them; hidden ones say
nothing."""

from __future__ import annotations

from stepscope.rules.comms.exposed_collectives import propose_job
from tests.rules.job_cases import Fleet, ddp, gain


def test_an_exchange_after_backward_could_hide_in_it() -> None:
    fleet = Fleet()
    for _ in range(4):
        for _ in range(10):
            fleet.compute(100)
        for _ in range(10):
            fleet.compute(100, backward=True)
        fleet.collective("all_reduce", 25_000_000, 800)
        fleet.compute(20, name="multi_tensor_apply_kernel")
        fleet.step()
    job = fleet.job()
    said = propose_job(job)
    assert said is not None
    assert said.ranks == (), "the job's, which is all of them"
    assert 1.15 < gain(job, said) < 1.45


def test_an_exchange_beside_backward_is_hidden() -> None:
    job = ddp(us=200, buckets=[(25_000_000, 300.0), (1 << 20, 20.0)]).job()
    assert gain(job, propose_job(job)) < 1.1


def test_waiting_for_a_late_rank_is_no_exposed_exchange() -> None:
    fleet = Fleet()
    for _ in range(4):
        fleet.host([10, 5000])
        for _ in range(10):
            fleet.compute(100)
        fleet.collective("all_reduce", 1 << 10, 5)
        fleet.step()
    assert propose_job(fleet.job()) is None
