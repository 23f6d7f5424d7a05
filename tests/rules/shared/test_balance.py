"""Even work: stretch by stretch, and exchanges whose splits say that one rank gets most."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.core.trace import NONE, CollectiveArgs
from stepscope.rules.imbalance.uneven_work import propose_job
from stepscope.rules.shared.balance import balanced_shares, exchange_of, numbered, with_even_work
from tests.rules.job_cases import Fleet, gain
from tests.wording import any_mentions

TO_FIRST = (([96, 0], [96, 96]), ([96, 0], [0, 0]))
BACK = (([96, 96], [96, 0]), ([0, 0], [96, 0]))
EVEN = (([48, 48], [48, 48]), ([48, 48], [48, 48]))


def args(sent: str | None, received: str | None) -> CollectiveArgs:
    return CollectiveArgs(
        name="all_to_allv",
        group="0",
        description=None,
        ranks="[0, 1]",
        group_size=2,
        dtype="Float",
        in_elements=1,
        out_elements=1,
        in_split=sent,
        out_split=received,
        sequence=1,
    )


def experts(*, even: bool) -> Fleet:
    """Tokens travel to the experts, which rank 0 has the most work of, and back; the optimizer is
    everyone's alike."""
    fleet = Fleet()
    for _ in range(4):
        fleet.collective("all_to_all", 64, 20, splits=EVEN)
        for _ in range(3):
            fleet.compute(50)
            fleet.collective("all_to_all", 8 << 20, 200, splits=EVEN if even else TO_FIRST)
            fleet.compute([300, 300] if even else [600, 10], grid=[64, 64] if even else [128, 2])
            fleet.collective("all_to_all", 8 << 20, 200, splits=EVEN if even else BACK)
        fleet.compute(100, name="multi_tensor_apply_kernel")
        fleet.step()
    return fleet


def test_what_a_rank_keeps_does_not_travel() -> None:
    found = exchange_of(args("[96, 4]", "[96, 100]"), own=0)
    assert found is not None
    assert (found.total, found.sent, found.received, found.num_ranks) == (100, 4, 100, 2)


@pytest.mark.parametrize("sent", [None, "", "[]", "[1, 2, 3]", "[1,", '["a", 2]', "{}", "[-1, 2]"])
def test_splits_that_do_not_tell_are_left_alone(sent: str | None) -> None:
    assert exchange_of(args(sent, "[1, 2]"), own=0) is None


def test_a_stretch_is_its_step_and_the_collective_before() -> None:
    shared, step = np.array([NONE, 3, NONE, NONE, 7, NONE]), np.array([0, 0, 0, 1, 1, 1])
    assert numbered(shared, step, 10).tolist() == [0, 4, 4, 14, 18, 18]


def test_all_tokens_to_one_of_two_is_twice_what_an_even_exchange_moves() -> None:
    assert sorted(set(balanced_shares(experts(even=False).job()).tolist())) == [0.5, 1.0]
    assert balanced_shares(experts(even=True).job()).tolist() == [1.0] * 28


def test_only_the_work_that_is_uneven_is_shared_out() -> None:
    job = experts(even=False).job()
    before, after = job.job_graph, with_even_work(job, job.job_graph)
    ours = [part.graph.task_ns for part in before.parts]
    even = [part.graph.task_ns for part in after.parts]
    assert set((even[0][ours[0] == 600e3] / 1e3).round().tolist()) == {305.0}
    assert (even[1][ours[1] == 100e3] == 100e3).all()
    assert (even[1][ours[1] == 50e3] == 50e3).all()


def test_balanced_experts_gain_in_kernels_and_in_bytes() -> None:
    job, fixed = experts(even=False).job(), experts(even=True).job()
    said = propose_job(job)
    assert said is not None
    assert said.ranks == (0,)
    assert any_mentions(said.evidence, "6 all-to-alls", "2.0 times")
    kernels_alone = job.step_interval_ns / fixed.step_interval_ns
    assert kernels_alone * 1.1 < gain(job, said) < kernels_alone * 1.6


def test_even_experts_have_nothing_to_balance() -> None:
    assert propose_job(experts(even=True).job()) is None
