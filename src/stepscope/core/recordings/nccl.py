"""NcclLog: what NCCL (or RCCL) wrote about itself: which links it chose, and what it complained
about.

A rank's number is the one inside its communicator. Bandwidths are NCCL's own estimates in GB/s, not
measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

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


class NcclTree(Struct, frozen=True, kw_only=True):
    """One rank's position in the tree of one channel."""

    communicator: str | None
    channel: int
    rank: int
    parent: int | None
    children: tuple[int, ...]


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


class NcclConnection(Struct, frozen=True, kw_only=True):
    """One channel from a rank to a peer."""

    communicator: str | None
    """By the thread that wrote the line: NCCL does not name it there (RCCL does)."""
    rank: int
    peer: int | None
    """None for in-network reductions (COLLNET)."""
    channel: int
    via: str
    """As written: P2P/CUMEM/read, SHM/direct/direct, NET/IB/0/GDRDMA, NET/Socket/0. The sender's
    word where it is known."""
    received_via: str | None = None
    """The receiver's word, where that was logged too."""

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
    """Everything understood in the logs of one job."""

    library: str
    """nccl or rccl."""
    files: tuple[str, ...]
    versions: tuple[str, ...]
    """The most common first; more than one means that ranks differ."""
    hosts: tuple[str, ...]
    communicators: tuple[NcclCommunicator, ...] = ()
    """The largest first."""
    connections: tuple[NcclConnection, ...] = ()
    trees: tuple[NcclTree, ...] = ()
    topology: NcclTopology | None = None
    graphs: tuple[NcclGraph, ...] = ()
    networks: tuple[str, ...] = ()
    """Network plugins in use: IB, Socket, AWS Libfabric, ..."""
    ib_devices: tuple[str, ...] | None = None
    """InfiniBand or RoCE devices found; empty when NCCL looked and found none, None when it did not
    say."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces that sockets may use."""
    staged_devices: tuple[str, ...] = ()
    """Network devices that cannot reach device memory."""
    algorithms: tuple[NcclChoice, ...] = ()
    calls: Mapping[str, int] = field(default_factory=dict)
    """Collectives enqueued, by name, over all the ranks that logged them."""
    env: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variables that were set, each with the different values seen."""
    warnings: tuple[NcclWarning, ...] = ()
    remarks: tuple[NcclWarning, ...] = ()
    """Complaints NCCL files under information."""
    num_messages: int = 0
    num_unread: int = 0
    """Lines that begin like one we know and go on otherwise: cut, or two written into one
    another."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """What was too much to keep, by what it is."""
    problems: tuple[str, ...] = ()
    """Files that could not be read, or not to their end."""

    @property
    def version(self) -> str | None:
        return self.versions[0] if self.versions else None

    @property
    def world_size(self) -> int | None:
        """The ranks of the largest communicator."""
        return self.communicators[0].num_ranks if self.communicators else None

    @property
    def transports(self) -> Counter[str]:
        """Connections by kind, the most common first."""
        return Counter(
            dict(Counter(connection.kind for connection in self.connections).most_common())
        )

    @property
    def slowest_transport(self) -> str | None:
        """The kind whose usual rate is the lowest; None when no connection was logged."""
        slowest = min(
            self.connections, key=lambda c: SLOW_TO_FAST.index(c.speed_class), default=None
        )
        return None if slowest is None else slowest.kind

    @property
    def is_inter_node(self) -> bool | None:
        """Whether a communicator spans what NCCL takes for several nodes; None when no line
        says."""
        nodes = [c.num_nodes for c in self.communicators if c.num_nodes is not None]
        return max(nodes) > 1 if nodes else None


def kind_of(via: str) -> str:
    """P2P, SHM, COLLNET, or NET/ and the network's name."""
    head, _, rest = via.partition("/")
    if head == "NET":
        return f"NET/{rest.partition('/')[0]}"
    return "SHM" if "shared memory" in head else head
