"""What each message of NCCL and RCCL says.

The forms are those in the sources of NCCL 2.10, 2.18, 2.22 to 2.24 and 2.30, and of RCCL 2.21.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stepscope.core.recordings.nccl import NcclGraph, NcclRing, NcclTree
from stepscope.readers.nccl.parser import MAX_TEXT, Draft, Writer

MAX_RING_RANKS = 256
"""NCCL itself cuts the line at 128 characters, RCCL at 20 ranks."""
MAX_TOPOLOGY_LINES = 256
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
"""In the order of their numbers, which versions before 2.24 write instead."""
PATTERNS = {
    1: "balanced tree",
    2: "split tree",
    3: "tree",
    4: "ring",
    5: "NVLS",
    6: "CollNet direct",
}

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


def take(draft: Draft, writer: Writer, text: str) -> None:
    """One message. What it is follows from its first word, or from words that only one form has."""
    draft.num_messages += 1
    draft.keep(draft.hosts, writer.host, None, "hosts")
    text = text.rstrip()
    if _is_drawing(draft, writer, text):
        return
    handler = BY_WORD.get(text.partition(" ")[0]) or next(
        (handler for mark, handler in BY_WORDS if mark in text), None
    )
    if handler is not None:
        draft.num_unread += not handler(draft, writer, text)


def take_version(draft: Draft, text: str) -> None:
    """The version, which may also stand on a line of its own."""
    told = VERSION.match(text)
    if told is not None:
        draft.is_rccl = draft.is_rccl or told[1] == "RCCL"
        draft.count(draft.versions, told[2], "versions")


def _version(draft: Draft, _writer: Writer, text: str) -> bool:
    take_version(draft, text)
    return True


def _init(draft: Draft, writer: Writer, text: str) -> bool:
    told, ident = INIT.search(text), COMM_ID.search(text)
    if told is None:
        return " comm " not in text
    comm = draft.communicator(writer, told[1], None if ident is None else ident[1], int(told[3]))
    if comm is not None:
        draft.rank(comm, int(told[2]), is_complete="Init COMPLETE" in text)
    return True


def _nodes(draft: Draft, writer: Writer, text: str) -> bool:
    told = NODES.search(text)
    if told is None:
        return False
    comm = draft.communicator(writer, told[1], None, int(told[3]))
    if comm is not None:
        draft.rank(comm, int(told[2]), is_complete=False)
        comm.num_nodes = int(told[4])
    return True


def _channel(draft: Draft, writer: Writer, text: str) -> bool:
    """A connection, or the order of a ring."""
    told = VIA.match(text)
    if told is not None:
        if TRANSPORT.match(told[5]):
            rank, peer = int(told[2]), int(told[3])
            comm = draft.current(writer, max(rank, peer), told[6])
            draft.connect(comm, (rank, peer, int(told[1])), told[4] or "send", told[5])
        return TRANSPORT.match(told[5]) is not None
    ring = RING.match(text)
    comm = draft.current(writer)
    if ring is not None and comm is not None:
        ranks = tuple(int(rank) for rank in ring[3].split()[:MAX_RING_RANKS])
        draft.ring(
            comm, NcclRing(channel=int(ring[1]), ranks=ranks, is_whole=len(ranks) == comm.num_ranks)
        )
    return ring is not None


def _collnet(draft: Draft, writer: Writer, text: str) -> bool:
    told = COLLNET.match(text)
    if told is not None:
        comm = draft.current(writer, int(told[2]), told[5])
        draft.connect(comm, (int(told[2]), None, int(told[1])), told[3], told[4])
    return told is not None


def _trees(draft: Draft, writer: Writer, text: str) -> bool:
    comm, found = draft.current(writer), TREE.findall(text)
    ident = None if comm is None else comm.id
    for channel, children, rank, parent in found:
        tree = NcclTree(
            communicator=ident,
            channel=int(channel),
            rank=int(rank),
            parent=None if parent.startswith("-") else int(parent),
            children=tuple(
                int(child) for child in children.split("/") if not child.startswith("-")
            ),
        )
        draft.keep(draft.trees, (ident, tree.channel, tree.rank), tree, "trees")
    return bool(found)


def _channels(draft: Draft, writer: Writer, text: str) -> bool:
    told, comm = CHANNELS.search(text), draft.current(writer)
    if told is not None and comm is not None:
        comm.channels = (int(told[1]), int(told[3]) if told[3] else None, int(told[4]))
    return told is not None


def _graph(draft: Draft, _writer: Writer, text: str) -> bool:
    told = GRAPH.match(text)
    if told is not None:
        graph = NcclGraph(
            pattern=PATTERNS.get(int(told[1]), f"pattern {told[1]}"),
            num_channels=int(told[2]),
            intra_gb_s=float(told[3]),
            inter_gb_s=float(told[4]),
            intra_path=told[5],
            inter_path=told[6],
        )
        draft.keep(draft.graphs, graph, None, "graphs")
    return told is not None


def _system(draft: Draft, writer: Writer, text: str) -> bool:
    told = SYSTEM.match(text)
    if told is not None and draft.system is None:
        draft.system, draft.drawing = (float(told[1]), float(told[2])), writer
    return told is not None


def _is_drawing(draft: Draft, writer: Writer, text: str) -> bool:
    """Takes a line of the drawing that one thread has begun; a line of equals signs ends it."""
    if writer != draft.drawing:
        return False
    if text.startswith("=====") or len(draft.system_lines) >= MAX_TOPOLOGY_LINES:
        draft.drawing = None
        return text.startswith("=====")
    draft.system_lines.append(text[:MAX_TEXT])
    return True


def _choice(draft: Draft, _writer: Writer, text: str) -> bool:
    told, kernel = CHOICE.search(text), OTHER_KERNEL.search(text)
    if told is not None:
        draft.chosen(told[1], _named(told[3], ALGORITHMS), _named(told[4], PROTOCOLS), int(told[2]))
    elif kernel is not None:
        draft.chosen(kernel[1], kernel[2], None, int(kernel[3]))
    return told is not None or kernel is not None


def _named(word: str, names: tuple[str, ...]) -> str:
    """A number, or a name in capitals, as the name that people use."""
    if word.isascii() and word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    plain = word.replace("_", "").lower()
    return next((name for name in names if name.lower() == plain), word)


def _call(draft: Draft, _writer: Writer, text: str) -> bool:
    told = CALL.match(text)
    if told is not None:
        draft.count(draft.calls, told[1], "collectives")
    return told is not None


def _set(draft: Draft, _writer: Writer, text: str) -> bool:
    told = SET.match(text)
    if told is not None:
        value = told[2].removesuffix(".")[:MAX_TEXT]
        draft.keep(draft.env, told[1], {}, "variables")
        draft.keep(draft.env.get(told[1], {}), value, None, "values of variables")
    return told is not None


def _ib(draft: Draft, _writer: Writer, text: str) -> bool:
    if ": Using" in text or "No device found" in text:
        draft.ib_devices = {} if draft.ib_devices is None else draft.ib_devices
        for device in DEVICE.findall(text.partition("; OOB")[0]):
            draft.keep(draft.ib_devices, device, None, "networks")
    return True


def _socket(draft: Draft, _writer: Writer, text: str) -> bool:
    if " : Using" in text:
        for interface in DEVICE.findall(text):
            draft.keep(draft.interfaces, interface, None, "networks")
    return True


def _staged(draft: Draft, _writer: Writer, text: str) -> bool:
    told = STAGED.match(text)
    if told is not None and told[1] != "Socket":
        draft.keep(draft.staged, told[2], None, "networks")
    return True


def _network(draft: Draft, _writer: Writer, text: str) -> bool:
    if text.startswith("Using network "):
        draft.keep(draft.networks, text[14:].strip()[:MAX_TEXT], None, "networks")
    return True


def _remark(draft: Draft, _writer: Writer, text: str) -> bool:
    draft.count(draft.remarks, text, "remarks")
    return True


Handler = Callable[[Draft, Writer, str], bool]
"""Says whether it understood the message."""
BY_WORD: dict[str, Handler] = {
    "Channel": _channel,
    "CollNet": _collnet,
    "Trees": _trees,
    "Pattern": _graph,
    "===": _system,
    "Using": _network,
    "NCCL": _version,
    "RCCL": _version,
}
BY_WORDS: tuple[tuple[str, Handler], ...] = (
    (": opCount ", _call),
    (" Bytes -> ", _choice),
    (" - Init ", _init),
    (" nNodes ", _nodes),
    (" coll channels", _channels),
    ("GPU Direct RDMA Disabled", _staged),
    ("NET/IB :", _ib),
    ("NET/Socket :", _socket),
    (" set by environment to ", _set),
    ("NCCL_SOCKET_IFNAME set to ", _set),
    ("P2P is disabled between", _remark),
    ("Could not get speed from ", _remark),
)
