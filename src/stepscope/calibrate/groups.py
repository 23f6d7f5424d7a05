"""The ranks of a job, and the groups whose links are measured.

All of them, those of a node, one of each node.
"""

from __future__ import annotations

import importlib
import os
import socket
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct

from stepscope.calibrate.device import Device, first_line
from stepscope.errors import UsageError

PATIENCE = timedelta(minutes=30)
"""Rank 0 measures its device first; the others wait for it."""


def in_job(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun, or another launcher like it, has started this process as one of several."""
    return all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def number(name: str, otherwise: int = 0) -> int:
    """One of the launcher's numbers in the environment."""
    text = os.environ.get(name, str(otherwise))
    if not text.isdigit():
        raise UsageError(
            f"{name} is {text[:40]!r} in the environment, and should be a number: start the ranks "
            "with torchrun"
        )
    return int(text)


class Group(Struct, frozen=True, kw_only=True):
    """Ranks that talk to one another. `handle` is torch's; None is all ranks."""

    tier: str
    ranks: tuple[int, ...]
    """Ranks of the group that this rank is in; of the first such group where it is in none."""
    is_member: bool
    handle: Any


class World(Struct, frozen=True, kw_only=True):
    """All ranks, and what they agree on."""

    device: Device
    dist: Any
    backend: str
    rank: int
    size: int
    nodes: tuple[tuple[int, ...], ...]
    """Ranks by node, in the order of their first rank."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """Each value's largest over all ranks; every rank gets the same."""
        torch = self.device.torch
        reduced = torch.tensor(list(values), dtype=torch.float64, device=self.device.torch_device)
        self.dist.all_reduce(reduced, op=self.dist.ReduceOp.MAX)
        return [float(value) for value in reduced.tolist()]

    def smallest(self, value: float) -> float:
        return -self.largest([-value])[0]

    def meet(self) -> None:
        """No rank goes on before all are here."""
        self.largest([0.0])

    @property
    def ranks_share_a_device(self) -> bool | None:
        """None on CPUs, whose cores all ranks of a node share anyway."""
        if self.device.kind != "cuda":
            return None
        return max(len(node) for node in self.nodes) > int(self.device.torch.cuda.device_count())


def join(device: Device) -> World:
    """Meets the other ranks: NCCL (or RCCL) on GPUs, gloo on CPUs."""
    dist: Any = importlib.import_module("torch.distributed")
    if not dist.is_available():
        raise UsageError(
            "this PyTorch was built without torch.distributed: collectives cannot be measured. "
            "Leave out --ranks"
        )
    backend = "nccl" if device.kind == "cuda" else "gloo"
    if device.kind == "cuda" and _is_shared(device):
        _let_share()
    try:
        dist.init_process_group(backend, timeout=PATIENCE)
        rank, size = int(dist.get_rank()), int(dist.get_world_size())
        nodes = _nodes(device, dist, size)
    except (RuntimeError, ValueError) as problem:
        raise UsageError(
            f"the ranks could not meet through {backend}: {first_line(problem)}. "
            "NCCL_DEBUG=WARN says more; --device cpu measures with gloo"
        ) from problem
    return World(device=device, dist=dist, backend=backend, rank=rank, size=size, nodes=nodes)


def groups_of(world: World) -> list[Group]:
    """Every rank calls this, and makes the same groups in the same order."""
    everyone = tuple(range(world.size))
    if len(world.nodes) == 1:
        return [Group(tier="node", ranks=everyone, is_member=True, handle=None)]
    groups = [Group(tier="world", ranks=everyone, is_member=True, handle=None)]
    if len({len(node) for node in world.nodes}) == 1 and len(world.nodes[0]) > 1:
        groups.append(_one_of(world, "node", world.nodes))
        groups.append(_one_of(world, "across", [tuple(node[0] for node in world.nodes)]))
    return groups


def _one_of(world: World, tier: str, members: Sequence[tuple[int, ...]]) -> Group:
    """The group that this rank is in, of several that are measured at once."""
    handles = [world.dist.new_group(list(ranks)) for ranks in members]
    mine = next((index for index, ranks in enumerate(members) if world.rank in ranks), None)
    return Group(
        tier=tier,
        ranks=members[mine or 0],
        is_member=mine is not None,
        handle=None if mine is None else handles[mine],
    )


def _nodes(device: Device, dist: Any, size: int) -> tuple[tuple[int, ...], ...]:
    """Ranks that say the same host name are on one node.

    Only a checksum of the name leaves the process.
    """
    torch = device.torch
    mine = torch.tensor(
        [zlib.crc32(socket.gethostname().encode())], dtype=torch.int64, device=device.torch_device
    )
    checksums = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(checksums, mine)
    nodes: dict[int, list[int]] = {}
    for rank, name in enumerate(checksums):
        nodes.setdefault(int(name.item()), []).append(rank)
    return tuple(tuple(ranks) for ranks in nodes.values())


def _is_shared(device: Device) -> bool:
    """Whether ranks of this node outnumber its GPUs."""
    return number("LOCAL_WORLD_SIZE", 1) > int(device.torch.cuda.device_count())


def _let_share() -> None:
    """Makes NCCL take each rank for another host: two ranks of one host may not share a GPU.

    They talk over sockets then.
    """
    os.environ.setdefault("NCCL_HOSTID", f"stepscope-{number('RANK')}")
    if number("LOCAL_WORLD_SIZE", 1) == number("WORLD_SIZE", 1):
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_IB_DISABLE", "1")
