"""What the messages of an NCCL log have said so far, in tables with a limit each: a log is a
stranger's file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TypeVar

from msgspec import Struct, field

from stepscope.core.recordings.nccl import NcclChoice, NcclGraph, NcclRing, kind_of

MAX_KEPT = {
    "connections": 50_000, "communicators": 4096, "ranks": 100_000, "threads": 200_000,
    "hosts": 20_000, "rings": 4096, "graphs": 64, "algorithms": 256, "collectives": 64,
    "variables": 512, "values of variables": 8, "warnings": 100, "remarks": 20, "versions": 16,
    "networks": 64,
}  # fmt: skip
"""Entries that each table keeps; "values of variables" are of one variable, as some are different
on every rank. What does not fit is counted."""
MAX_TEXT = 400
MAX_VIA = 120

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Writer(Struct, frozen=True):
    """Writer of a line."""

    host: str
    pid: int
    tid: int


class PartialCommunicator(Struct):
    """A communicator as far as its ranks have described it."""

    id: str | None
    num_ranks: int
    ranks: dict[int, bool] = field(default_factory=dict)
    """Each with whether it has reported the end of its initialisation."""
    num_nodes: int | None = None
    channels: tuple[int, int | None, int] | None = None
    """Channels of collectives, of NVLS, of point-to-point."""
    rings: dict[int, NcclRing] = field(default_factory=dict)


class NcclTables:
    """The tables, and which communicator a thread speaks of."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.num_messages = self.num_unread = 0
        self.is_rccl = False
        self.versions: Counter[str] = Counter()
        self.hosts: dict[str, None] = {}
        self.comms: dict[tuple[str | None, int], PartialCommunicator] = {}
        self.vias: dict[tuple[str | None, int, int | None, int, str], dict[str, str]] = {}
        """Words of the sender and of the receiver of each connection."""
        self.graphs: dict[NcclGraph, None] = {}
        self.system: tuple[float, float] | None = None
        self.system_lines: list[str] = []
        self.drawing: Writer | None = None
        """The thread that is writing the topology, line by line."""
        self.networks: dict[str, None] = {}
        self.ib_devices: dict[str, None] | None = None
        self.interfaces: dict[str, None] = {}
        self.staged: dict[str, None] = {}
        self.choices: dict[tuple[str | None, str, str | None], NcclChoice] = {}
        self.calls: Counter[str] = Counter()
        self.env: dict[str, dict[str, None]] = {}
        self.warnings: Counter[str] = Counter()
        self.remarks: Counter[str] = Counter()
        self._comm_of: dict[tuple[str, int, int | str], PartialCommunicator] = {}
        self._num_ranks = self._num_rings = 0

    def keep(
        self, table: dict[Key, Value], key: Key, value: Value, what: str, *, replace: bool = False
    ) -> None:
        """Put it in unless the table is full, and count it if so."""
        if key in table:
            if replace:
                table[key] = value
        elif len(table) < MAX_KEPT[what]:
            table[key] = value
        else:
            self.left_out[what] += 1

    def count(self, table: Counter[str], text: str, what: str) -> None:
        text = text.strip()[:MAX_TEXT]
        self.keep(table, text, 0, what)
        if text in table:
            table[text] += 1

    def communicator(
        self, writer: Writer, pointer: str, ident: str | None, num_ranks: int
    ) -> PartialCommunicator | None:
        """The communicator at this address of a process; the thread is taken to speak of it from
        here on."""
        comm = self._comm_of.get((writer.host, writer.pid, pointer))
        if comm is None or comm.num_ranks != num_ranks or (ident is not None and comm.id != ident):
            key = (ident, num_ranks)
            if key not in self.comms:
                self.keep(self.comms, key, PartialCommunicator(ident, num_ranks), "communicators")
            comm = self.comms.get(key)
        if comm is not None:
            for name in (pointer, writer.tid, ""):
                self.keep(
                    self._comm_of, (writer.host, writer.pid, name), comm, "threads", replace=True
                )
        return comm

    def current(
        self, writer: Writer, highest_rank: int = 0, pointer: str | None = None
    ) -> PartialCommunicator | None:
        """The communicator a line is of, by its address, else by its thread; None when that one has
        no such rank."""
        names: tuple[int | str, ...] = (pointer,) if pointer else (writer.tid, "")
        comms = (self._comm_of.get((writer.host, writer.pid, name)) for name in names)
        comm = next((comm for comm in comms if comm is not None), None)
        return comm if comm is not None and highest_rank < comm.num_ranks else None

    def rank(self, comm: PartialCommunicator, rank: int, *, is_complete: bool) -> None:
        if rank not in comm.ranks:
            if self._num_ranks >= MAX_KEPT["ranks"]:
                self.left_out["ranks"] += 1
                return
            self._num_ranks += 1
        comm.ranks[rank] = comm.ranks.get(rank, False) or is_complete

    def ring(self, comm: PartialCommunicator, ring: NcclRing) -> None:
        if ring.channel not in comm.rings:
            if self._num_rings >= MAX_KEPT["rings"]:
                self.left_out["rings"] += 1
                return
            self._num_rings += 1
        comm.rings[ring.channel] = ring

    def connect(
        self,
        comm: PartialCommunicator | None,
        ends: tuple[int, int | None, int],
        way: str,
        via: str,
    ) -> None:
        """A connection from one rank to another on a channel, by the word of its sender or its
        receiver."""
        via = via[:MAX_VIA]
        key = (None if comm is None else comm.id, *ends, kind_of(via))
        self.keep(self.vias, key, {}, "connections")
        if key in self.vias:
            self.vias[key][way] = via

    def chosen(self, function: str | None, algorithm: str, protocol: str | None, size: int) -> None:
        key = (function, algorithm, protocol)
        before = self.choices.get(key)
        choice = NcclChoice(
            function=function,
            algorithm=algorithm,
            protocol=protocol,
            count=before.count + 1 if before else 1,
            min_bytes=min(size, before.min_bytes) if before else size,
            max_bytes=max(size, before.max_bytes) if before else size,
        )
        self.keep(self.choices, key, choice, "algorithms", replace=True)
