"""Collectives of two real gloo ranks, and groups of ranks on nodes that are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.calibrate.collectives import KINDS, measure_collectives
from stepscope.calibrate.device import find_device
from stepscope.calibrate.groups import World, groups_of, in_job, number
from stepscope.calibrate.sweep import CPU_QUICK
from stepscope.core.calibrated import Timing, bus_factor, ring_steps
from stepscope.errors import UsageError
from stepscope.readers.hardware_file import read_hardware
from tests.capture.jobs import LIGHT
from tests.followed_loops import followed_loops
from tests.ports import free_port
from tests.waiting import LONGEST_S
from tests.wording import mentions

RANK = """
import os, sys
from msgspec.structs import replace
from pathlib import Path
from stepscope.calibrate.device import find_device
from stepscope.calibrate.sweep import CPU_QUICK
from stepscope.calibrate.groups import join
from stepscope.calibrate.hardware_file import save
from stepscope.calibrate.measure import measure_links
other = os.fork()
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if other else "1"
job = join(find_device("cpu"))
sweep = replace(CPU_QUICK, collectives=(1024, 4096, 10001, 65536), point_s=0.0)
links = measure_links(job, sweep, "test", lambda _: None)
save(links, Path(sys.argv[1]) / f"rank-{job.rank}.json")
job.dist.destroy_process_group()
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""
"""Two ranks, of one process that has imported torch."""


def test_two_ranks_agree_on_what_they_measured(tmp_path: Path) -> None:
    told = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", LIGHT + RANK, str(tmp_path)]
    subprocess.run(command, env=told, timeout=LONGEST_S, check=True)
    first, second = (read_hardware(tmp_path / f"rank-{rank}.json") for rank in range(2))
    assert first.collectives == second.collectives, "every rank has the slowest rank's times"
    assert first.machine.num_ranks == 2
    assert first.machine.num_nodes == 1
    assert first.machine.ranks_share_a_device is None
    unsupported = {note.split()[0] for note in first.notes if "not supported by gloo" in note}
    measured = {point.kind for point in first.collectives}
    assert measured | unsupported == set(KINDS)
    assert not measured & unsupported
    assert {"all_reduce", "all_gather", "send_recv", "broadcast"} <= measured
    sizes = [point.size_bytes for point in first.collectives if point.kind == "all_gather"]
    assert sizes == [1024, 4096, 10000, 65536], (
        "10001 bytes do not part evenly among two ranks of four-byte numbers"
    )
    assert {(fit.kind, fit.tier, fit.group_size) for fit in first.collective_fits} == {
        (kind, "node", 2) for kind in measured
    }


class FakeWork:
    def wait(self) -> None:
        return None


class FakeDist:
    """One rank's view of a job whose other ranks say the same as it does."""

    class ReduceOp:
        MAX = "max"

    def __init__(self, missing: str = "") -> None:
        self.groups: list[list[int]] = []
        self.calls: list[str] = []
        self.missing = missing

    isend = irecv = None

    def new_group(self, ranks: list[int]) -> str:
        self.groups.append(ranks)
        return f"group {len(self.groups)}"

    def _made(self, name: str) -> None:
        if name == self.missing:
            raise RuntimeError("ProcessGroupGloo does not support this")
        self.calls.append(name)

    def all_reduce(self, value: Any, op: str = "", group: Any = None) -> None:
        if not op:
            self._made("all_reduce")

    def all_gather_into_tensor(self, out: Any, part: Any, group: Any = None) -> None:
        assert out.numel() % part.numel() == 0
        self._made("all_gather")

    def reduce_scatter_tensor(self, part: Any, whole: Any, group: Any = None) -> None:
        self._made("reduce_scatter")

    def all_to_all_single(self, out: Any, into: Any, group: Any = None) -> None:
        self._made("all_to_all")

    def broadcast(self, value: Any, src: int, group: Any = None) -> None:
        self._made(f"broadcast from {src}")

    def P2POp(self, way: Any, value: Any, peer: int, group: Any) -> int:  # noqa: N802
        return peer

    def batch_isend_irecv(self, peers: list[int]) -> list[FakeWork]:
        self._made(f"shift {peers}")
        return [FakeWork()]


class FixedTimer:
    def time(self, call: Callable[[], object], budget_s: float) -> Timing:
        raise AssertionError("collectives are sampled by what the ranks agree on")

    def sustained(self, call: Callable[[], object], warm_s: float, for_s: float) -> Timing:
        raise AssertionError("collectives are not sustained")

    def sample(self, call: Callable[[], object], inner: int, queue_s: float = 0.0) -> float:
        call()
        return 1e-3


def job(rank: int, nodes: tuple[tuple[int, ...], ...], missing: str = "") -> World:
    size = sum(map(len, nodes))
    device = replace(find_device("cpu"), timer=FixedTimer())
    return World(
        device=device, dist=FakeDist(missing), backend="gloo", rank=rank, size=size, nodes=nodes
    )


@pytest.mark.parametrize(("rank", "node", "is_across"), [(0, (0, 1), True), (3, (2, 3), False)])
def test_several_nodes_are_three_tiers(rank: int, node: tuple[int, ...], is_across: bool) -> None:
    made = job(rank, ((0, 1), (2, 3)))
    world, inside, across = groups_of(made)
    assert (world.tier, world.ranks, world.is_member) == ("world", (0, 1, 2, 3), True)
    assert (inside.tier, inside.ranks, inside.is_member) == ("node", node, True)
    assert (across.tier, across.ranks, across.is_member) == ("across", (0, 2), is_across)
    assert made.dist.groups == [[0, 1], [2, 3], [0, 2]], (
        "every rank makes every group, in one order"
    )


def test_one_rank_a_node_has_no_tier_within() -> None:
    assert [group.tier for group in groups_of(job(0, ((0,), (1,))))] == ["world"]


def test_what_the_backend_lacks_is_said_and_never_zero() -> None:
    notes: list[str] = []
    made = job(1, ((0, 1, 2),), missing="reduce_scatter")
    with followed_loops() as loops:
        points = measure_collectives(
            made, replace(CPU_QUICK, collectives=(1000, 6000)), notes.append, lambda _: None
        )
    (loop,) = loops
    assert loop.total == 2 * len(KINDS)
    assert list(dict.fromkeys(loop.done)) == [1, 2, 3, 4, *range(6, loop.total + 1)], (
        "what is left out is done at once"
    )
    assert {point.kind for point in points} == set(KINDS) - {"reduce_scatter"}
    (note,) = notes
    assert mentions(note, "reduce_scatter of 3 ranks (node)", "not supported", "gloo")
    assert {point.size_bytes for point in points} == {996, 6000}
    assert {call for call in made.dist.calls if call.startswith("broadcast")} == {
        f"broadcast from {n}" for n in range(3)
    }
    assert "shift [2, 0]" in made.dist.calls


def test_sizes_end_when_the_time_is_up() -> None:
    notes: list[str] = []
    sizes = (1000, 10_000, 100_000)
    points = measure_collectives(
        job(0, ((0, 1),)),
        replace(CPU_QUICK, collectives=sizes, collective_s=0.07),
        notes.append,
        lambda _: None,
    )
    assert {point.size_bytes for point in points} == {1000}, (
        "eight calls of ten times 1 ms, beside what the first size took"
    )
    assert len(notes) == len(KINDS)
    assert mentions(notes[0], "sizes from 10000 bytes", "out of time")


def test_numbers_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_job({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x"})
    assert not in_job({"RANK": "0", "WORLD_SIZE": "2"})
    monkeypatch.setenv("LOCAL_RANK", "three")
    with pytest.raises(UsageError, match="LOCAL_RANK is 'three'"):
        number("LOCAL_RANK")


def test_steps_and_volumes_are_the_papers() -> None:
    assert [
        ring_steps(kind, 8) for kind in ("all_reduce", "all_gather", "broadcast", "send_recv")
    ] == [14, 7, 7, 1]
    assert bus_factor("all_reduce", 8) == pytest.approx(1.75)
    assert bus_factor("all_to_all", 8) == pytest.approx(0.875)
    assert bus_factor("broadcast", 8) == bus_factor("send_recv", 8) == 1
