"""Collectives by size, in each group of ranks.

All ranks meet before each sample, a sample is several calls, and a call's time is the slowest
rank's: what a rank is late by is spread over the sample and does not look like the link's. Sizes
count as in nccl-tests: the whole buffer of a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.calibrate.groups import Group, World, groups_of
from stepscope.calibrate.sweep import Sweep
from stepscope.calibrate.timer import MIN_REPEATS, timing
from stepscope.core.calibrated import CollectivePoint
from stepscope.core.timings import counted, followed_together

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")
ELEMENT_BYTES = 4
SAMPLE_S = 2e-3
"""A sample is made of calls enough to last this long:
ranks do not leave a meeting at the same moment."""
NUM_PILOTS = 3
MAX_INNER = 40
MAX_REPEATS = 15
QUEUE_S = 30e-6
"""What the host needs to queue one collective on a GPU, about."""
Note = Callable[[str], None]


def measure_collectives(
    world: World, sweep: Sweep, note: Note, report: Note
) -> list[CollectivePoint]:
    """Called by every rank; every rank gets the same points."""
    points: list[CollectivePoint] = []
    groups = groups_of(world)
    with followed_together("measuring", len(groups) * len(KINDS) * len(sweep.collectives)):
        for group in groups:
            for kind in KINDS:
                report(f"{kind} of {len(group.ranks)} ranks ({group.tier})")
                points += _measure(world, group, kind, sweep, note)
    return points


def _measure(
    world: World, group: Group, kind: str, sweep: Sweep, note: Note
) -> list[CollectivePoint]:
    points: list[CollectivePoint] = []
    what = f"{kind} of {len(group.ranks)} ranks ({group.tier})"
    spent_s = 0.0
    sharing = 1
    if world.device.kind == "cpu" or world.ranks_share_a_device:
        sharing = max(len(node) for node in world.nodes)
    room = world.smallest(world.device.free_bytes() / sharing / 4)
    for wanted_size in counted(kind, sweep.collectives, len(sweep.collectives)):
        # The size that splits evenly among the ranks, at least one element each.
        unit = ELEMENT_BYTES * len(group.ranks)
        size = max(wanted_size // unit, 1) * unit
        if size > room:
            note(f"{what}: sizes from {size} bytes on left out, not enough free memory")
            break
        if points and spent_s + _least_s(points[-1], size) > sweep.collective_s:
            note(f"{what}: sizes from {size} bytes on left out, out of time")
            break
        call = _prepared(world, group, kind, size)
        if world.largest([0.0 if call else 1.0])[0]:
            note(f"{what}: not supported by {world.backend}")
            break
        point, took_s = _point(world, group, kind, size, call, sweep)
        spent_s += took_s
        points.append(point)
    return points


def _point(
    world: World,
    group: Group,
    kind: str,
    size: int,
    call: Callable[[], object] | None,
    sweep: Sweep,
) -> tuple[CollectivePoint, float]:
    # From what all agree on: ranks that counted by their own clocks would not make the same calls.
    pilots = world.largest([_sample(world, group, call, 1) for _ in range(NUM_PILOTS)])
    inner = min(max(int(SAMPLE_S / min(pilots)), 1), MAX_INNER)
    repeats = min(max(int(sweep.point_s / (inner * min(pilots))), MIN_REPEATS), MAX_REPEATS)
    samples = world.largest([_sample(world, group, call, inner) for _ in range(repeats)])
    point = CollectivePoint(
        kind=kind,
        backend=world.backend,
        tier=group.tier,
        group_size=len(group.ranks),
        size_bytes=size,
        time=timing(samples),
    )
    return point, inner * sum(samples) + sum(pilots)


def _sample(world: World, group: Group, call: Callable[[], object] | None, inner: int) -> float:
    world.meet()
    if call is None or not group.is_member:
        return 0.0
    return world.device.timer.sample(call, inner, QUEUE_S)


def _prepared(world: World, group: Group, kind: str, size: int) -> Callable[[], object] | None:
    """The call, tried twice; None where the backend has none such.

    A rank outside the group has nothing to try.
    """
    if not group.is_member:
        return lambda: None
    try:
        call = _call(world, group, kind, size)
        call()
        call()
        if world.device.kind == "cuda":
            world.device.torch.cuda.synchronize()
    except (RuntimeError, NotImplementedError, ValueError):
        return None
    return call


def _call(world: World, group: Group, kind: str, size: int) -> Callable[[], object]:
    torch, dist, handle, ranks = world.device.torch, world.dist, group.handle, group.ranks

    def buffer(parts: int = 1) -> Any:
        return torch.zeros(
            size // ELEMENT_BYTES // parts, dtype=torch.float32, device=world.device.torch_device
        )

    whole = buffer()
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=handle)
    if kind == "broadcast":
        return _rotating_broadcast(world, group, whole)
    if kind == "all_gather":
        part = buffer(len(ranks))
        # The same call; newer releases have renamed it and warn of the older name.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return lambda: gather(whole, part, group=handle)
    if kind == "reduce_scatter":
        part = buffer(len(ranks))
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return lambda: scatter(part, whole, group=handle)
    other = buffer()
    if kind == "all_to_all":
        return lambda: dist.all_to_all_single(other, whole, group=handle)
    assert kind == "send_recv", kind
    index = ranks.index(world.rank)
    after, before = ranks[(index + 1) % len(ranks)], ranks[index - 1]

    def shift() -> None:
        """Each rank sends to the next and receives from the one before,
        as nccl-tests' sendrecv does."""
        sent = dist.P2POp(dist.isend, whole, after, handle)
        got = dist.P2POp(dist.irecv, other, before, handle)
        for work in dist.batch_isend_irecv([sent, got]):
            work.wait()

    return shift


def _rotating_broadcast(world: World, group: Group, whole: Any) -> Callable[[], object]:
    """Broadcast from another rank each time.

    A root that stays the same runs ahead, and several are under way at once.
    """
    turn = 0

    def call() -> object:
        nonlocal turn
        turn += 1
        return world.dist.broadcast(
            whole, src=group.ranks[turn % len(group.ranks)], group=group.handle
        )

    return call


def _least_s(last: CollectivePoint, size: int) -> float:
    """What the next size will take at least.

    Two tries, three pilots and three samples, if time grows with size.
    """
    return 8 * last.time.seconds * size / last.size_bytes
