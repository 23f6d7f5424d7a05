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

from stepscope.core.codec import Count, one_of

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
    """Ranks that wrote into these logs."""
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
    """Communicator by the thread that wrote the line: NCCL does not name it there (RCCL does)."""
    rank: int
    peer: int | None
    """None for in-network reductions (COLLNET)."""
    via: str
    """Transport as written: P2P/CUMEM/read, SHM/direct/direct, NET/IB/0/GDRDMA, NET/Socket/0. The
    sender's word where it is known."""
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
    """Counts of what was too much to keep, by what it is."""
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


COMPLETED, STARTED, SCHEDULED = "completed", "started", "scheduled"
STATES = (SCHEDULED, STARTED, COMPLETED)
MISSING, DIFFERENT, SIZES, TYPES, ORDER, PEER, NO_DUMP, DEVICE, LINK = (
    "missing",
    "different",
    "sizes",
    "types",
    "order",
    "peer",
    "no-dump",
    "device",
    "link",
)
HANG_KINDS = (MISSING, DIFFERENT, SIZES, TYPES, ORDER, PEER, NO_DUMP, DEVICE, LINK)


class FlightFrame(Struct, frozen=True):
    """One call in the code that issued a collective."""

    name: str
    file: str
    line: int

    @property
    def words(self) -> str:
        return f"{self.name}, {self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"


class FlightGroup(Struct, frozen=True):
    """A process group as a rank's dump names it."""

    name: str
    desc: str
    ranks: tuple[int, ...] | None
    """Ranks of the world; None where the dump does not say."""

    @property
    def label(self) -> str:
        return self.desc if self.desc and self.desc != "undefined" else f"group {self.name}"


class FlightCall(Struct, frozen=True, kw_only=True):
    """One collective, or one send or receive, that a rank issued."""

    record: int
    """Number of the call among all of the rank's."""
    group: int
    """Index into the dump's groups."""
    op: str
    """all_reduce, without the library's name."""
    sequence: int
    """Number of the call in its group: of collectives, or of sends and receives."""
    is_p2p: bool = False
    ends: tuple[int, int] | None = None
    """Ends of a send or receive: from and to, as ranks of the group."""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_types: tuple[str, ...] = ()
    state: str = SCHEDULED
    """One of STATES. Only NCCL's get past `scheduled`."""
    is_retired: bool = False
    """The process waits for it no more: it ended, or it failed."""
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    timeout_s: float | None = None
    """Seconds after which the watchdog gives it up."""
    where: tuple[FlightFrame, ...] = ()
    """The training code that issued it, the innermost call first; of a library's where no other is
    in it; empty where no stack was dumped."""
    is_backward: bool = False
    """Autograd's own thread issued it, which has no Python stack: a gradient's exchange."""

    @property
    def where_words(self) -> str | None:
        """`exchange, train.py:66`; None where the dump does not tell."""
        if self.where:
            return self.where[0].words
        return "in backward, on autograd's thread" if self.is_backward else None


class FlightDump(Struct, frozen=True, kw_only=True):
    """What one rank's recorder held."""

    path: str
    rank: int
    backend: str
    """nccl, gloo, ...; empty without a call."""
    groups: tuple[FlightGroup, ...]
    calls: tuple[FlightCall, ...]
    """Calls in the order in which they were issued; the last ones, where there were more."""
    num_entries: int
    has_stacks: bool
    is_from_start: bool
    """The first that the rank ever issued is among them."""

    def ends_of(self, call: FlightCall) -> tuple[int, int] | None:
        """Ends of a send or receive, as ranks of the world: from and to. None for a collective."""
        ranks = self.groups[call.group].ranks
        if call.ends is None or ranks is None or max(call.ends) >= len(ranks):
            return call.ends
        return ranks[call.ends[0]], ranks[call.ends[1]]

    def is_to_itself(self, call: FlightCall) -> bool:
        """Whether the other side would be this rank: then the number in the file's name, which is
        all that tells the rank, is not the rank's."""
        ends = self.ends_of(call)
        peers = {"send": 1, "recv": 0}
        return ends is not None and call.op in peers and ends[peers[call.op]] == self.rank


class HangRank(Struct, frozen=True, kw_only=True):
    """Where one rank stands."""

    rank: Count
    state: Annotated[str, one_of("waits", "not there", "elsewhere", "no dump", "through")]
    """waits: in the collective, for others; not there: it has not come to it; elsewhere: in another
    one, or in the same one with another size or type; through: no collective of its own is open."""
    op: str | None = None
    """Collective of the rank: the one it is in, else the last one it issued."""
    sequence: int | None = None
    group: str | None = None
    where: str | None = None
    """`exchange, train.py:66`: the line that issued it; null where no stack was dumped."""


class Hang(Struct, frozen=True, kw_only=True):
    """Why the ranks of a job stand still, from their flight recorders' dumps."""

    kind: Annotated[str, one_of(*HANG_KINDS)]
    """missing: a rank did not come; different: ranks are in different collectives; sizes, types: in
    one, with tensors that differ; order: they enter groups in different order; peer: a send without
    its receive, or the reverse; no-dump: the rank waited for left none; device: a rank's device has
    not begun it; link: all are in it and agree."""
    summary: str
    action: str
    group: str
    op: str
    sequence: int
    where: str | None
    """The line of those that wait."""
    at_fault: tuple[Count, ...]
    """Ranks to look at first; empty where the dumps do not tell whose fault it is."""
    waiting: tuple[Count, ...]
    ranks: tuple[HangRank, ...]
    waited_s: float | None = None
    """How long it had been open at least, by the clock of the rank that waited longest; null where
    the dumps do not tell."""
    details: tuple[str, ...] = ()
