"""Hung, slow or running, and the rank that stands elsewhere: on stacks written down."""

from __future__ import annotations

from stepscope.live.shapes.triage import Frame, Stood
from stepscope.live.stacks_compare import compare, standing
from tests.wording import mentions

TORCH = "/opt/venv/lib/python3.11/site-packages/torch/"
TRAIN = Frame(name="train", file="/home/me/train.py", line=40)
MAIN = Frame(name="<module>", file="/home/me/train.py", line=90)
READ = Frame(name="read_shard", file="/home/me/data.py", line=12)
HOOK = Frame(
    name="now",
    file="/opt/venv/lib/python3.11/site-packages/stepscope/capture/hooks/patches.py",
    line=46,
)
ALL_REDUCE = (
    Frame(name="all_reduce", file=TORCH + "distributed/distributed_c10d.py", line=2900),
    Frame(name="wrapper", file=TORCH + "distributed/c10d_logger.py", line=81),
)
BACKWARD = (
    Frame(name="_engine_run_backward", file=TORCH + "autograd/graph.py", line=823),
    Frame(name="backward", file=TORCH + "autograd/__init__.py", line=347),
    Frame(name="backward", file=TORCH + "_tensor.py", line=581),
)
USER = (TRAIN, MAIN)


def stood(rank: int, *stacks: tuple[Frame, ...], cpu: float | None = 0.0) -> Stood:
    return Stood(
        pid=100 + rank, rank=rank, stacks=stacks * 3 if len(stacks) == 1 else stacks, cpu_share=cpu
    )


def test_the_same_place_without_cpu_is_hung_and_with_it_slow() -> None:
    assert standing(stood(0, (READ, *USER))).state == "hung"
    assert standing(stood(0, (READ, *USER), cpu=0.9)).state == "slow"
    assert standing(stood(0, (READ, *USER), USER, cpu=0.0)).state == "running"


def test_the_place_is_the_training_code_and_what_it_called() -> None:
    one = standing(stood(0, (*ALL_REDUCE, HOOK, *USER)))
    assert one.where == USER
    assert one.inside == "wrapper (torch/distributed/c10d_logger.py)"
    assert one.collective == "all_reduce"


def test_the_rank_outside_the_collective_is_the_one_waited_for() -> None:
    found = compare(
        [stood(0, (*ALL_REDUCE, *USER)), stood(1, (READ, *USER)), stood(2, (*ALL_REDUCE, *USER))]
    )
    assert mentions(found.summary, "rank 1", "elsewhere", "2 of 3 ranks", "all_reduce")
    assert [one.is_elsewhere for one in found.ranks] == [False, True, False]


def test_a_majority_outside_is_still_what_the_few_inside_wait_for() -> None:
    found = compare(
        [stood(0, (*BACKWARD, *USER)), stood(1, (READ, *USER)), stood(2, (READ, *USER))]
    )
    assert mentions(found.summary, "ranks 1-2", "elsewhere", "1 of 3 ranks", "backward")


def test_all_in_one_collective_points_beyond_this_machine() -> None:
    found = compare([stood(rank, (*ALL_REDUCE, *USER)) for rank in range(4)])
    assert mentions(found.summary, "all 4 ranks", "all_reduce", "not on", "this machine")
    assert not any(one.is_elsewhere for one in found.ranks)


def test_without_collectives_the_minority_stands_elsewhere() -> None:
    found = compare([stood(0, USER), stood(1, USER), stood(2, (READ, *USER))])
    assert mentions(found.summary, "rank 2", "elsewhere")


def test_a_process_that_cannot_be_seen_does_not_spoil_the_rest() -> None:
    gone = Stood(pid=9, rank=None, stacks=(), cpu_share=None, problem="it ended")
    found = compare([gone, stood(0, USER)])
    assert [one.state for one in found.ranks] == ["hung", "unknown"]
    assert "stands still" in found.summary
    assert mentions(compare([gone]).summary, "nothing")
