"""Dumps of PyTorch's flight recorder: the last collectives of each rank, and what a hang among them
is made of."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from stepscope.core.constraints import Count, one_of

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
    """Of the world; None where the dump does not say."""

    @property
    def label(self) -> str:
        return self.desc if self.desc and self.desc != "undefined" else f"group {self.name}"


class FlightCall(Struct, frozen=True, kw_only=True):
    """One collective, or one send or receive, that a rank issued."""

    record: int
    """Its number among all of the rank's."""
    group: int
    """Index into the dump's groups."""
    op: str
    """all_reduce, without the library's name."""
    sequence: int
    """Its number in its group: of collectives, or of sends and receives."""
    is_p2p: bool = False
    ends: tuple[int, int] | None = None
    """Of a send or receive: from and to, as ranks of the group."""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_types: tuple[str, ...] = ()
    state: str = SCHEDULED
    """Of STATES. Only NCCL's get past `scheduled`."""
    is_retired: bool = False
    """The process waits for it no more: it ended, or it failed."""
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    timeout_s: float | None = None
    """After which the watchdog gives it up."""
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
    """In the order in which they were issued; the last ones, where there were more."""
    num_entries: int
    has_stacks: bool
    is_from_start: bool
    """The first that the rank ever issued is among them."""

    def ends_of(self, call: FlightCall) -> tuple[int, int] | None:
        """Of a send or receive, as ranks of the world: from and to. None for a collective."""
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
    """Its collective: the one it is in, else the last one it issued."""
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
