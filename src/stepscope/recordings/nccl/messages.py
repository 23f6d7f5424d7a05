"""What each message of NCCL and RCCL says.

The forms are those in the sources of NCCL 2.10, 2.18, 2.22 to 2.24 and 2.30, and of RCCL 2.21.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stepscope.core.recordings.nccl import NcclGraph, NcclRing
from stepscope.recordings.nccl.tables import MAX_TEXT, NcclTables, Writer

MAX_RING_RANKS = 256
"""NCCL itself cuts the line at 128 characters, RCCL at 20 ranks."""
MAX_TOPOLOGY_LINES = 256
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
"""Protocols in the order of their numbers, which versions before 2.24 write instead."""
PATTERNS = {
    1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "NVLS", 6: "CollNet direct",
}  # fmt: skip

INT = r"(\d{1,9})"
ADDRESS = r"(0x[0-9a-f]{1,16})"
GB_S = r"(\d{1,9}(?:\.\d{1,9})?)"
OF_COMM = rf"(?: comm {ADDRESS} nRanks \d{{1,9}})?$"
INIT = re.compile(rf"comm {ADDRESS} rank {INT} nranks {INT} ")
COMM_ID = re.compile(rf" commId {ADDRESS} ")
NODES = re.compile(rf"comm {ADDRESS} rank {INT} nRanks {INT} nNodes {INT} ")
GPU = r"\[[0-9a-f]{1,16}\]"
VIA = re.compile(
    rf"Channel {INT}(?:/\d{{1,3}})? ?: {INT}{GPU} -> {INT}{GPU} (?:\[(send|receive)\] )?via "
    rf"(\S.*?){OF_COMM}"
)
COLLNET = re.compile(rf"CollNet {INT}/\d : {INT} \[(send|receive)\] via (COLLNET/\S.*?){OF_COMM}")
TRANSPORT = re.compile(r"P2P/\w|SHM/\w|NET/[^/]{1,60}/-?\d|direct shared memory")
RING = re.compile(rf"Channel {INT}/{INT} ?:((?: +\d{{1,9}})+)[ .]*$")
TREE = re.compile(r"\[(\d{1,4})\] ((?:-?\d{1,9}/){0,15}-?\d{1,9})->(\d{1,9})->(-?\d{1,9})")
CHANNELS = re.compile(
    rf"{INT} coll channels, (?:{INT} collnet channels, )?(?:{INT} nvls channels, )?{INT} p2p "
    r"channels"
)
GRAPH = re.compile(
    rf"Pattern {INT}, crossNic \d, nChannels {INT}, bw {GB_S}/{GB_S}, type (\w{{1,8}})/(\w{{1,8}})"
)
SYSTEM = re.compile(rf"=== System : maxBw {GB_S} totalBw {GB_S}")
CHOICE = re.compile(r"(?:([A-Za-z]{1,40}): )?(\d{1,18}) Bytes -> Algo (\w{1,24}) proto (\w{1,24})")
OTHER_KERNEL = re.compile(
    r"([A-Za-z]{1,40}) \[(Symmetric|Copy Engine|Hierarchical CE)\]: (\d{1,18}) Bytes -> "
)
CALL = re.compile(r"([A-Za-z]{1,40}): opCount ")
SET = re.compile(r"((?:NCCL|RCCL)_\w{1,80}) set (?:by environment )?to (.*)$")
VERSION = re.compile(r"\s{0,9}(NCCL|RCCL) version ?:? ?(\d{1,4}\.\d{1,4}[\w.+~-]{0,60})")
DEVICE = re.compile(r"\[\d{1,4}\](\S{1,120})")
STAGED = re.compile(r"NET/([^:]{1,60}) : GPU Direct RDMA Disabled for HCA \d{1,6} '([^']{1,80})'")


def take(tables: NcclTables, writer: Writer, text: str) -> None:
    """One message. What it is follows from its first word, or from words that only one form has."""
    tables.num_messages += 1
    tables.keep(tables.hosts, writer.host, None, "hosts")
    text = text.rstrip()
    if _is_drawing(tables, writer, text):
        return
    handler = BY_WORD.get(text.partition(" ")[0]) or next(
        (handler for mark, handler in BY_WORDS if mark in text), None
    )
    if handler is not None:
        tables.num_unread += not handler(tables, writer, text)


def take_version(tables: NcclTables, text: str) -> None:
    """The version, which may also stand on a line of its own."""
    match = VERSION.match(text)
    if match is not None:
        tables.is_rccl = tables.is_rccl or match[1] == "RCCL"
        tables.count(tables.versions, match[2], "versions")


def _version(tables: NcclTables, _writer: Writer, text: str) -> bool:
    take_version(tables, text)
    return True


def _init(tables: NcclTables, writer: Writer, text: str) -> bool:
    match, ident = INIT.search(text), COMM_ID.search(text)
    if match is None:
        return " comm " not in text
    comm = tables.communicator(writer, match[1], None if ident is None else ident[1], int(match[3]))
    if comm is not None:
        tables.rank(comm, int(match[2]), is_complete="Init COMPLETE" in text)
    return True


def _nodes(tables: NcclTables, writer: Writer, text: str) -> bool:
    match = NODES.search(text)
    if match is None:
        return False
    comm = tables.communicator(writer, match[1], None, int(match[3]))
    if comm is not None:
        tables.rank(comm, int(match[2]), is_complete=False)
        comm.num_nodes = int(match[4])
    return True


def _channel(tables: NcclTables, writer: Writer, text: str) -> bool:
    """A connection, or the order of a ring."""
    match = VIA.match(text)
    if match is not None:
        if TRANSPORT.match(match[5]):
            rank, peer = int(match[2]), int(match[3])
            comm = tables.current(writer, max(rank, peer), match[6])
            tables.connect(comm, (rank, peer, int(match[1])), match[4] or "send", match[5])
        return TRANSPORT.match(match[5]) is not None
    ring = RING.match(text)
    comm = tables.current(writer)
    if ring is not None and comm is not None:
        ranks = tuple(int(rank) for rank in ring[3].split()[:MAX_RING_RANKS])
        tables.ring(
            comm, NcclRing(channel=int(ring[1]), ranks=ranks, is_whole=len(ranks) == comm.num_ranks)
        )
    return ring is not None


def _collnet(tables: NcclTables, writer: Writer, text: str) -> bool:
    match = COLLNET.match(text)
    if match is not None:
        comm = tables.current(writer, int(match[2]), match[5])
        tables.connect(comm, (int(match[2]), None, int(match[1])), match[3], match[4])
    return match is not None


def _trees(_tables: NcclTables, _writer: Writer, text: str) -> bool:
    """Known, and of no use: rings and connections tell the links."""
    return TREE.search(text) is not None


def _channels(tables: NcclTables, writer: Writer, text: str) -> bool:
    match, comm = CHANNELS.search(text), tables.current(writer)
    if match is not None and comm is not None:
        comm.channels = (int(match[1]), int(match[3]) if match[3] else None, int(match[4]))
    return match is not None


def _graph(tables: NcclTables, _writer: Writer, text: str) -> bool:
    match = GRAPH.match(text)
    if match is not None:
        graph = NcclGraph(
            pattern=PATTERNS.get(int(match[1]), f"pattern {match[1]}"),
            num_channels=int(match[2]),
            intra_gb_s=float(match[3]),
            inter_gb_s=float(match[4]),
            intra_path=match[5],
            inter_path=match[6],
        )
        tables.keep(tables.graphs, graph, None, "graphs")
    return match is not None


def _system(tables: NcclTables, writer: Writer, text: str) -> bool:
    match = SYSTEM.match(text)
    if match is not None and tables.system is None:
        tables.system, tables.drawing = (float(match[1]), float(match[2])), writer
    return match is not None


def _is_drawing(tables: NcclTables, writer: Writer, text: str) -> bool:
    """Takes a line of the drawing that one thread has begun; a line of equals signs ends it."""
    if writer != tables.drawing:
        return False
    if text.startswith("=====") or len(tables.system_lines) >= MAX_TOPOLOGY_LINES:
        tables.drawing = None
        return text.startswith("=====")
    tables.system_lines.append(text[:MAX_TEXT])
    return True


def _choice(tables: NcclTables, _writer: Writer, text: str) -> bool:
    match, kernel = CHOICE.search(text), OTHER_KERNEL.search(text)
    if match is not None:
        tables.chosen(
            match[1], _named(match[3], ALGORITHMS), _named(match[4], PROTOCOLS), int(match[2])
        )
    elif kernel is not None:
        tables.chosen(kernel[1], kernel[2], None, int(kernel[3]))
    return match is not None or kernel is not None


def _named(word: str, names: tuple[str, ...]) -> str:
    """A number, or a name in capitals, as the name that people use."""
    if word.isascii() and word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    plain = word.replace("_", "").lower()
    return next((name for name in names if name.lower() == plain), word)


def _call(tables: NcclTables, _writer: Writer, text: str) -> bool:
    match = CALL.match(text)
    if match is not None:
        tables.count(tables.calls, match[1], "collectives")
    return match is not None


def _set(tables: NcclTables, _writer: Writer, text: str) -> bool:
    match = SET.match(text)
    if match is not None:
        value = match[2].removesuffix(".")[:MAX_TEXT]
        tables.keep(tables.env, match[1], {}, "variables")
        tables.keep(tables.env.get(match[1], {}), value, None, "values of variables")
    return match is not None


def _ib(tables: NcclTables, _writer: Writer, text: str) -> bool:
    if ": Using" in text or "No device found" in text:
        tables.ib_devices = {} if tables.ib_devices is None else tables.ib_devices
        for device in DEVICE.findall(text.partition("; OOB")[0]):
            tables.keep(tables.ib_devices, device, None, "networks")
    return True


def _socket(tables: NcclTables, _writer: Writer, text: str) -> bool:
    if " : Using" in text:
        for interface in DEVICE.findall(text):
            tables.keep(tables.interfaces, interface, None, "networks")
    return True


def _staged(tables: NcclTables, _writer: Writer, text: str) -> bool:
    match = STAGED.match(text)
    if match is not None and match[1] != "Socket":
        tables.keep(tables.staged, match[2], None, "networks")
    return True


def _network(tables: NcclTables, _writer: Writer, text: str) -> bool:
    if text.startswith("Using network "):
        tables.keep(tables.networks, text[14:].strip()[:MAX_TEXT], None, "networks")
    return True


def _remark(tables: NcclTables, _writer: Writer, text: str) -> bool:
    tables.count(tables.remarks, text, "remarks")
    return True


Handler = Callable[[NcclTables, Writer, str], bool]
"""Says whether it understood the message."""
BY_WORD: dict[str, Handler] = {
    "Channel": _channel, "CollNet": _collnet, "Trees": _trees, "Pattern": _graph, "===": _system,
    "Using": _network, "NCCL": _version, "RCCL": _version,
}  # fmt: skip
BY_WORDS: tuple[tuple[str, Handler], ...] = (
    (": opCount ", _call), (" Bytes -> ", _choice), (" - Init ", _init), (" nNodes ", _nodes),
    (" coll channels", _channels), ("GPU Direct RDMA Disabled", _staged), ("NET/IB :", _ib),
    ("NET/Socket :", _socket), (" set by environment to ", _set),
    ("NCCL_SOCKET_IFNAME set to ", _set), ("P2P is disabled between", _remark),
    ("Could not get speed from ", _remark),
)  # fmt: skip
