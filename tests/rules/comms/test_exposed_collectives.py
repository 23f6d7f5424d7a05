"""exposed-collectives: exchanges after the compute that could hide them; hidden ones say
nothing."""

from __future__ import annotations

import pytest

from stepscope.rules.comms.exposed_collectives import propose_job
from tests.rules.job_cases import Fleet, ddp, gain
from tests.wording import mentions


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


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("all_reduce", ("gradient_as_bucket_view", "no_sync")),
        ("sendrecv", ("micro-batches", "schedule")),
        ("all_to_all", ("tokens", "expert groups")),
        ("all_gather", ("prefetch", "sequence parallel")),
    ],
)
def test_what_to_do_is_of_what_is_exchanged(op: str, words: tuple[str, ...]) -> None:
    """Pipelines and experts have no gradient buckets."""
    fleet = Fleet()
    for _ in range(4):
        for _ in range(10):
            fleet.compute(100)
        fleet.collective(op, 25_000_000, 800)
        fleet.collective("all_reduce", 1 << 10, 5)
        fleet.step()
    said = propose_job(fleet.job())
    assert said is not None
    assert mentions(said.action, *words)
    assert mentions(said.action, "buckets") == (op == "all_reduce")
