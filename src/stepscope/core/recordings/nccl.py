"""NcclLog: what NCCL (or RCCL) wrote about itself: which links it chose, and what it complained
about.

A rank's number is the one inside its communicator. Bandwidths are NCCL's own estimates in GB/s, not
measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from stepscope.core.constraints import Count, one_of

SOCKET = "NET/Socket"
SLOW_TO_FAST = ("NET/Socket", "NET staged", "SHM", "NET direct", "COLLNET", "P2P")
"""The usual order of rates between two ranks; a network is direct when it reads device memory
itself (GDRDMA)."""


class NcclRing(Struct, frozen=True, kw_only=True):
    """The order of ranks on one channel."""

    channel: int
    ranks: tuple[int, ...]
    is_whole: bool
    """NCCL cuts a long line off: then only its beginning is known."""


class NcclCommunicator(Struct, frozen=True, kw_only=True):
    """A group of ranks. What no line says is None."""

    id: str | None
    """NCCL's commId, the same on every rank; None where the version does not write it."""
    num_ranks: int
    ranks: tuple[int, ...]
    """Those that wrote into these logs."""
    num_complete: int
    """How many of them reported the end of their initialisation."""
    num_nodes: int | None = None
    num_channels: int | None = None
    num_p2p_channels: int | None = None
    num_nvls_channels: int | None = None
    rings: tuple[NcclRing, ...] = ()


class NcclConnections(Struct, frozen=True, kw_only=True):
    """The channels from a rank to a peer that go the same way."""

    communicator: str | None
    """By the thread that wrote the line: NCCL does not name it there (RCCL does)."""
    rank: int
    peer: int | None
    """None for in-network reductions (COLLNET)."""
    via: str
    """As written: P2P/CUMEM/read, SHM/direct/direct, NET/IB/0/GDRDMA, NET/Socket/0. The sender's
    word where it is known."""
    received_via: str | None = None
    """The receiver's word, where that was logged too."""
    channels: Annotated[int, Meta(ge=1)]

    @property
    def kind(self) -> str:
        return kind_of(self.via)

    @property
    def is_direct(self) -> bool:
        """Whether the network reaches device memory at both ends that are known."""
        return all("GDRDMA" in via for via in (self.via, self.received_via) if via is not None)

    @property
    def speed_class(self) -> str:
        """One of SLOW_TO_FAST."""
        kind = self.kind
        if kind == SOCKET or not kind.startswith("NET/"):
            return kind if kind in SLOW_TO_FAST else "NET staged"
        return "NET direct" if self.is_direct else "NET staged"


class NcclGraph(Struct, frozen=True, kw_only=True):
    """A pattern NCCL found in the topology, with the bandwidth of one channel that it counts on."""

    pattern: str
    num_channels: int
    intra_gb_s: float
    inter_gb_s: float
    intra_path: str
    inter_path: str


class NcclTopology(Struct, frozen=True, kw_only=True):
    """The first host's hardware as NCCL drew it."""

    max_gb_s: float
    total_gb_s: float
    lines: tuple[str, ...]


class NcclChoice(Struct, frozen=True, kw_only=True):
    """An algorithm and protocol that was chosen for a collective, and for which sizes."""

    function: str | None
    algorithm: str
    protocol: str | None
    count: int
    min_bytes: int
    max_bytes: int


class NcclWarning(Struct, frozen=True, kw_only=True):
    """A complaint and how often it was made."""

    text: str
    count: int


class NcclLog(Struct, frozen=True, kw_only=True):
    """What NCCL (or RCCL) wrote about itself, in all logs of one job."""

    library: Annotated[str, one_of("nccl", "rccl")]
    version: str | None = None
    """The most common one."""
    versions: tuple[str, ...]
    """The most common first; more than one means that ranks differ."""
    files: tuple[str, ...]
    hosts: tuple[str, ...]
    world_size: int | None = None
    """The ranks of the largest communicator."""
    is_inter_node: bool | None = None
    """Whether a communicator spans what NCCL takes for several nodes; None when no line says."""
    transports: Mapping[str, Count] = field(default_factory=dict)
    """Connections by kind, the most common first."""
    slowest_transport: str | None = None
    """The kind whose usual rate is the lowest; None when no connection was logged."""
    communicators: tuple[NcclCommunicator, ...] = ()
    """The largest first."""
    connections: tuple[NcclConnections, ...] = ()
    networks: tuple[str, ...] = ()
    """Network plugins in use: IB, Socket, AWS Libfabric, ..."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces that sockets may use."""
    ib_devices: tuple[str, ...] | None = None
    """InfiniBand or RoCE devices found; empty when NCCL looked and found none, None when it did not
    say."""
    staged_devices: tuple[str, ...] = ()
    """Network devices that cannot reach device memory."""
    topology: NcclTopology | None = None
    graphs: tuple[NcclGraph, ...] = ()
    algorithms: tuple[NcclChoice, ...] = ()
    calls: Mapping[str, Count] = field(default_factory=dict)
    """Collectives enqueued, by name, over all the ranks that logged them."""
    env: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variables that were set, each with the different values seen."""
    warnings: tuple[NcclWarning, ...] = ()
    remarks: tuple[NcclWarning, ...] = ()
    """Complaints NCCL files under information."""
    num_messages: Count = 0
    num_unread: Count = 0
    """Lines that begin like one we know and go on otherwise: cut, or two written into one
    another."""
    left_out: Mapping[str, Count] = field(default_factory=dict)
    """What was too much to keep, by what it is."""
    problems: tuple[str, ...] = ()
    """Files that could not be read, or not to their end."""
    notes: tuple[str, ...] = ()
    """Slow links and their causes, and what the logs do not show."""

    def __post_init__(self) -> None:
        if self.versions:
            force_setattr(self, "version", self.versions[0])
        if self.communicators:
            force_setattr(self, "world_size", self.communicators[0].num_ranks)
        nodes = [c.num_nodes for c in self.communicators if c.num_nodes is not None]
        if nodes:
            force_setattr(self, "is_inter_node", max(nodes) > 1)
        if self.connections:
            by_kind: Counter[str] = Counter()
            for each in self.connections:
                by_kind[each.kind] += each.channels
            slowest = min(self.connections, key=lambda c: SLOW_TO_FAST.index(c.speed_class))
            force_setattr(self, "transports", dict(by_kind.most_common()))
            force_setattr(self, "slowest_transport", slowest.kind)


def kind_of(via: str) -> str:
    """P2P, SHM, COLLNET, or NET/ and the network's name."""
    head, _, rest = via.partition("/")
    if head == "NET":
        return f"NET/{rest.partition('/')[0]}"
    return "SHM" if "shared memory" in head else head
