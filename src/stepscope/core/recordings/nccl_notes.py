"""Notes on an NCCL log: slow links and their causes, and what the log does not show."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.nccl import SOCKET, NcclLog

LOOPBACK = ("lo", "lo0")
VIRTUAL = (
    "docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "tun", "tap", "tailscale", "wg",
)  # fmt: skip
"""How names of interfaces begin that lead to containers and virtual machines, or through a
tunnel."""


def notes_on(log: NcclLog) -> tuple[str, ...]:
    """Notes, the ones on slow links first."""
    return (*slow_links(log), *_on_the_job(log), *_on_the_log(log))


def slow_links(log: NcclLog) -> tuple[str, ...]:
    """Where it fell back to a slower way than machines have, and why."""
    return (*_on_network(log), *_inside_the_node(log))


def _on_network(log: NcclLog) -> Iterator[str]:
    sockets = log.transports.get(SOCKET, 0) > 0 or (
        not log.connections and "Socket" in log.networks and log.is_inter_node is True
    )
    if sockets:
        inside = [name for name in map(_name, log.interfaces) if name.startswith(VIRTUAL)]
        if inside:
            yield (
                f"sockets use {', '.join(inside[:4])}, which is no network card but a bridge or "
                "tunnel of this machine: NCCL_SOCKET_IFNAME names the card, as eth0"
            )
        yield _why_sockets(log)
        if log.interfaces and all(_name(interface) in LOOPBACK for interface in log.interfaces):
            yield (
                "sockets use the loopback interface: these ranks share a machine, or "
                "NCCL_SOCKET_IFNAME is wrong"
            )
    staged = sum(
        each.channels
        for each in log.connections
        if each.speed_class == "NET staged" and each.peer is not None
    )
    networked = sum(
        each.channels
        for each in log.connections
        if each.kind.startswith("NET/") and each.kind != SOCKET
    )
    if staged:
        yield (
            f"{staged} of {networked} network connections go through host memory (no GDRDMA): "
            "look at nvidia-peermem or DMA-BUF, and NCCL_NET_GDR_LEVEL"
        )
    elif log.staged_devices and not sockets:
        yield f"no GPU Direct RDMA on {', '.join(log.staged_devices[:4])}"


def _why_sockets(log: NcclLog) -> str:
    if _is_on(log, "NCCL_IB_DISABLE"):
        return "NET/Socket is used: NCCL_IB_DISABLE=1 switches InfiniBand and RoCE off"
    if log.env.get("NCCL_NET") == ("Socket",):
        return "NET/Socket is used: NCCL_NET=Socket asks for it"
    if log.ib_devices:
        devices = ", ".join(log.ib_devices[:4])
        return f"NET/Socket is used although InfiniBand or RoCE devices were found ({devices})"
    if log.ib_devices == ():
        return (
            "NET/Socket is used: NCCL found no InfiniBand or RoCE device and no other network "
            "plugin"
        )
    return "NET/Socket is used: the slowest transport there is"


def _inside_the_node(log: NcclLog) -> Iterator[str]:
    off = [
        f"{name}={log.env[name][0]}"
        for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
        if _switches_off(log, name)
    ]
    if off:
        yield f"P2P between devices is disabled by {' and '.join(off)}"
    elif log.transports.get("SHM"):
        yield (
            f"{log.transports['SHM']} connections go through shared host memory: the devices have "
            "no P2P path that NCCL would take (topology, ACS or IOMMU, containers)"
        )
    if _is_on(log, "NCCL_SHM_DISABLE"):
        yield "NCCL_SHM_DISABLE=1: ranks of one node without P2P talk over the network"
    if "NCCL_HOSTID" in log.env and log.transports:
        yield (
            "NCCL_HOSTID is set: ranks with different values are taken for different nodes and "
            "talk over the network"
        )


def _on_the_job(log: NcclLog) -> Iterator[str]:
    if len(log.versions) > 1:
        yield f"ranks run different versions: {', '.join(log.versions[:4])}"
    for communicator in log.communicators:
        missing = len(communicator.ranks) - communicator.num_complete
        if missing > 0:
            of = len(communicator.ranks)
            yield (
                f"{missing} of {of} ranks did not log the end of their initialisation: it failed, "
                "or the log was cut"
            )
            break
    for remark in log.remarks:
        yield remark.text if remark.count == 1 else f"{remark.text} ({remark.count} times)"


def _on_the_log(log: NcclLog) -> Iterator[str]:
    world = log.communicators[0] if log.communicators else None
    if world is not None and len(world.ranks) < world.num_ranks:
        yield (
            f"the logs are of rank {number_ranges(world.ranks)} of {world.num_ranks}; the others' "
            "links are not known"
        )
    if world is not None and world.num_ranks > 1 and not log.connections:
        yield "no connection was logged: none was made, or NCCL_DEBUG_SUBSYS leaves INIT out"
    if log.num_messages and not log.communicators and not log.connections:
        yield (
            "no communicator was logged: record with NCCL_DEBUG=INFO, and INIT among "
            "NCCL_DEBUG_SUBSYS"
        )
    if log.num_unread:
        yield f"{log.num_unread} lines were cut or written into one another, and not understood"
    for what, count in log.left_out.items():
        yield f"{count} {what} were left out: there are too many"
    yield from log.problems


def _is_on(log: NcclLog, name: str) -> bool:
    return log.env.get(name, ("0",))[0] not in ("0", "")


def _switches_off(log: NcclLog, name: str) -> bool:
    if name.endswith("LEVEL"):
        return log.env.get(name, ("",))[0] in ("LOC", "0")
    return _is_on(log, name)


def _name(interface: str) -> str:
    return interface.partition(":")[0]
