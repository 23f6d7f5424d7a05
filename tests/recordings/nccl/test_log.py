"""What NCCL and RCCL logs tell, whole, damaged and hostile."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.core.recordings.nccl import (
    NcclConnections,
    NcclGraph,
    NcclLog,
    NcclRing,
    kind_of,
)
from stepscope.core.recordings.nccl_notes import notes_on
from stepscope.errors import StepscopeError
from stepscope.readers.detect import head_of
from stepscope.readers.format import Source
from stepscope.recordings.nccl import tables
from stepscope.recordings.nccl.log import MAX_LINE_BYTES, is_mine
from stepscope.recordings.nccl.log import read as read_nccl_logs
from stepscope.report.diagnosis.nccl import nccl_section
from stepscope.report.document.terminal import to_text
from tests.nccl_logs import info, init, read_text, two_nodes
from tests.shared_data import SAMPLES
from tests.wording import any_mentions

FORMATS = SAMPLES / "formats"


def sample(name: str) -> NcclLog:
    source = Source(path=FORMATS / name, label=name)
    assert is_mine(head_of(source), name)
    return read_nccl_logs([source])


def said(log: NcclLog, *words: str) -> bool:
    return any_mentions(notes_on(log), *words)


def test_two_ranks_over_sockets_are_read_whole() -> None:
    log = sample("nccl_2rank_hosts.txt")
    assert (log.library, log.version, log.hosts, log.world_size) == (
        "nccl",
        "2.28.9+cuda13.0",
        ("node0",),
        2,
    )
    (comm,) = log.communicators
    assert (comm.ranks, comm.num_complete, comm.num_nodes, comm.num_channels) == ((0, 1), 2, 2, 2)
    assert comm.rings == tuple(NcclRing(channel=c, ranks=(0, 1), is_whole=True) for c in (0, 1))
    assert log.transports == {"NET/Socket": 4}
    assert log.connections[0] == NcclConnections(
        communicator=comm.id,
        rank=0,
        peer=1,
        via="NET/Socket/0",
        received_via="NET/Socket/0",
        channels=2,
    )
    assert (log.slowest_transport, log.is_inter_node) == ("NET/Socket", True)
    assert log.env == {
        "NCCL_HOSTID": ("host0", "host1"),
        "NCCL_IB_DISABLE": ("1",),
        "NCCL_SOCKET_IFNAME": ("lo",),
    }
    assert (log.networks, log.interfaces, log.ib_devices) == (
        ("Socket",),
        ("lo:127.0.0.1<0>",),
        None,
    )
    assert said(log, "NCCL_IB_DISABLE=1")
    assert said(log, "loopback")
    assert said(log, "NCCL_HOSTID")
    assert (log.num_unread, log.left_out, log.problems) == (0, {}, ())


def test_one_rank_with_every_subsystem_tells_topology_and_calls() -> None:
    log = sample("nccl_1rank.txt")
    assert (log.communicators[0].num_channels, log.is_inter_node) == (64, False)
    assert log.connections == ()
    assert log.topology is not None
    assert log.topology.lines[-1] == "+ PCI[48.0] - GPU/0-60 (0)"
    ring = NcclGraph(
        pattern="ring",
        num_channels=32,
        intra_gb_s=60.0,
        inter_gb_s=60.0,
        intra_path="LOC",
        inter_path="PIX",
    )
    assert ring in log.graphs
    assert log.calls == {"AllReduce": 17}
    assert (log.ib_devices, log.num_unread) == ((), 0)
    assert not said(log, "NET/Socket is used")


def test_a_failed_start_is_told_with_its_warnings() -> None:
    log = sample("nccl_2rank.txt")
    assert [w.text for w in log.warnings] == [
        f"Duplicate GPU detected : rank {a} and rank {b} both on CUDA device 60"
        for a, b in ((1, 0), (0, 1))
    ]
    assert said(log, "2 of 2 ranks")
    assert said(log, "no connection")


def test_the_last_warning_stands_in_pytorchs_exception(tmp_path: Path) -> None:
    raised = """\
[rank1]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/c10d/NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5
[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank1]: Last error:
[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000
"""  # noqa: E501
    assert is_mine(raised.encode(), "job.log")
    (warning,) = read_text(tmp_path, raised).warnings
    assert warning.text == "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
    assert not is_mine(b"see NCCL error in: the manual\n", "job.log")


def test_p2p_and_infiniband_with_both_ends_words(tmp_path: Path) -> None:
    log = read_text(tmp_path, two_nodes())
    assert log.transports == {"P2P": 4, "NET/IB": 4}
    assert (log.slowest_transport, log.is_inter_node, log.hosts) == ("NET/IB", True, ("n0", "n1"))
    assert log.ib_devices == ("mlx5_0:1/IB", "mlx5_1:1/RoCE")
    from_0 = next(c for c in log.connections if (c.rank, c.peer) == (0, 2))
    assert (from_0.via, from_0.received_via) == ("NET/IB/0(1)/GDRDMA/Shared", "NET/IB/1")
    assert not from_0.is_direct
    assert [c.speed_class for c in log.connections if c.kind == "NET/IB"] == [
        "NET staged",
        "NET direct",
        "NET staged",
        "NET direct",
    ]
    assert said(log, "2 of 4 network connections")
    assert {(c.function, c.algorithm, c.protocol) for c in log.algorithms} == {
        ("AllReduce", "Ring", "Simple"), ("AllReduce", "NVLSTree", "LL128"), (None, "Tree", "LL")
    }  # fmt: skip
    assert log.num_unread == 0


def test_files_of_several_ranks_and_gzip_merge(tmp_path: Path) -> None:
    lines = two_nodes().splitlines(keepends=True)
    first = "".join(line for line in lines if line.startswith("n0:"))
    rest = "".join(line for line in lines if line.startswith("n1:"))
    merged, whole = (
        read_text(tmp_path, first, gzip.compress(rest.encode())),
        read_text(tmp_path, two_nodes()),
    )
    assert merged.files == ("nccl.0.log", "nccl.1.log")
    assert (merged.connections, merged.communicators, merged.algorithms) == (
        whole.connections,
        whole.communicators,
        whole.algorithms,
    )
    alone = read_text(tmp_path, first)
    assert said(alone, "rank 0-1 of 4")


def test_shared_memory_and_disabled_p2p(tmp_path: Path) -> None:
    body = info(init(0, 2)) + info("Channel 00 : 0[1000] -> 1[2000] via SHM/direct/direct")
    old = info(init(1, 2), pid=11) + info(
        "Channel 00 : 1[2000] -> 0[1000] via direct shared memory", pid=11
    )
    assert said(read_text(tmp_path, body + old), "2 connections", "shared host memory")
    off = read_text(tmp_path, info("NCCL_P2P_DISABLE set by environment to 1.") + body + old)
    assert off.transports == {"SHM": 2}
    assert said(off, "disabled by NCCL_P2P_DISABLE=1")
    assert not said(off, "shared host memory")


def test_sockets_beside_infiniband_are_a_note(tmp_path: Path) -> None:
    text = info("NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>") + info(init(0, 2))
    text += info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0")
    assert said(read_text(tmp_path, text), "InfiniBand", "mlx5_0:1/RoCE")


def test_plugins_with_spaces_and_collnet(tmp_path: Path) -> None:
    text = info("Using network AWS Libfabric") + info(init(0, 16))
    text += info("Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA")
    text += info("CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA")
    log = read_text(tmp_path, text)
    assert log.transports == {"NET/AWS Libfabric": 1, "COLLNET": 1}
    assert log.slowest_transport == "NET/AWS Libfabric"
    assert "NET/AWS Libfabric/GDRDMA 1" in to_text((nccl_section(log),))


def test_rccl_names_the_communicator_on_its_lines(tmp_path: Path) -> None:
    text = "RCCL version : 2.20.5-HEAD:abc1234\nHIP version  : 6.2\n"
    for ident, pointer in (("0xa", "0x7f01"), ("0xb", "0x7f02")):
        text += info(
            f"ncclCommInitRank comm {pointer} rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId c1000 "
            f"commId {ident} - Init START"
        )
    for pointer in ("0x7f01", "0x7f02"):
        text += info(f"Channel 00/0 : 0[c1000] -> 1[c6000] via P2P/IPC comm {pointer} nRanks 08")
    log = read_text(tmp_path, text)
    assert (log.library, log.version) == ("rccl", "2.20.5-HEAD")
    assert [(c.communicator, c.via) for c in log.connections] == [
        ("0xa", "P2P/IPC"),
        ("0xb", "P2P/IPC"),
    ]
    assert to_text((nccl_section(log),)).startswith("RCCL")


@pytest.mark.parametrize(
    "prefix",
    [
        "[2026-11-15 02:02:21] ",
        "[2026-11-15 02:02:21.123456] ",
        "02:02:21 ",
        "[default0]:",
        "0: ",
        "[rank1]: \x1b[0m",
        "2026-11-15T02:02:21Z stdout F ",
    ],
)
def test_what_stands_before_the_writer_does_not_matter(tmp_path: Path, prefix: str) -> None:
    line = prefix + info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0")
    assert is_mine(line.encode(), "")
    log = read_text(
        tmp_path, line + "\n" + prefix + "n0:10:10 [0] net.cc:12 (connect) NCCL WARN no route\n"
    )
    assert (log.hosts[-1][-2:], log.transports, [w.text for w in log.warnings]) == (
        "n0",
        {"NET/Socket": 1},
        ["no route"],
    )


def test_lines_written_into_one_another_are_taken_apart_or_counted(tmp_path: Path) -> None:
    text = info("Using network IB").rstrip("\n") + info(
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0", pid=11
    )
    text += info("Channel 00/0 : 0[0] -> 1[").rstrip("\n") + info(
        "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0", pid=11
    )
    log = read_text(tmp_path, text)
    assert (log.networks, [c.channels for c in log.connections], log.num_unread) == (
        ("IB",),
        [2],
        1,
    )
    assert said(log, "1 lines were cut")


def test_words_about_nccl_are_not_nccls(tmp_path: Path) -> None:
    text = (
        "print: look for NCCL WARN in the log\nNCCL error in: x.cpp:93, NCCL version "
        "2.1.0\n[rank0]: see NCCL INFO Channel\n"
    )
    log = read_text(tmp_path, text)
    assert (log.num_messages, log.versions, log.warnings) == (0, (), ())
    assert not is_mine(text.encode(), "")


@pytest.mark.parametrize(
    "head",
    [
        b'{"a": "n0:1:1 [0] NCCL INFO x"}',
        b'[{"a": "\nn0:1:1 [0] NCCL INFO x"}]',
        b"",
        b"[\n  [",
        b"NCCL",
    ],
)
def test_json_and_nothing_are_no_logs(head: bytes) -> None:
    assert not is_mine(head, "")


def test_ranks_of_different_versions_and_repeated_warnings_are_told(tmp_path: Path) -> None:
    warning = "\nn0:1:1 [0] misc/socket.cc:58 NCCL WARN Connect failed\n"
    log = read_text(
        tmp_path,
        "NCCL version 2.20.5+cuda12.4\n" + info("NCCL version 2.19.3+cuda12.3") + warning * 3,
    )
    assert said(log, "different versions: 2.20.5+cuda12.4, 2.19.3+cuda12.3")
    assert [(w.text, w.count) for w in log.warnings] == [("Connect failed", 3)]


def test_versions_that_name_no_communicator_are_read_too(tmp_path: Path) -> None:
    text = info("Channel 00/02 :    0   1") + info(
        "Channel 00 : 0[1000] -> 1[2000] via P2P/IPC/read"
    )
    text += info("2 coll channels, 4 p2p channels, 2 p2p channels per peer")
    text += info("comm 0x7f rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE")
    log = read_text(tmp_path, text)
    assert [(c.id, c.num_ranks, c.ranks, c.num_complete) for c in log.communicators] == [
        (None, 2, (0,), 1)
    ]
    assert (log.transports, log.num_unread) == ({"P2P": 1}, 0)


def test_a_subgroups_line_is_not_put_into_a_group_without_that_rank(tmp_path: Path) -> None:
    text = info(init(0, 2)) + info("Channel 00/0 : 0[0] -> 5[0] via P2P/IPC")
    assert read_text(tmp_path, text).connections[0].communicator is None


def test_too_much_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for what in ("connections", "warnings", "communicators", "ranks", "rings", "variables"):
        monkeypatch.setitem(tables.MAX_KEPT, what, 3)
    text = "".join(info(f"Channel 00/0 : {i}[0] -> 1[0] via P2P/IPC") for i in range(10))
    text += "".join(info(init(i, 50)) for i in range(5)) + "".join(
        info(init(0, 9, ident=f"0x{i}")) for i in range(5)
    )
    text += "".join(f"n0:1:1 [0] a.cc:1 NCCL WARN number {i}\n" for i in range(5))
    text += "".join(info(f"NCCL_V{i} set by environment to 1.") for i in range(4))
    log = read_text(tmp_path, text)
    assert (len(log.connections), len(log.warnings), len(log.communicators)) == (3, 3, 3)
    assert (log.left_out["connections"], log.left_out["warnings"], log.left_out["variables"]) == (
        7,
        2,
        1,
    )
    assert log.left_out["ranks"] >= 2
    assert said(log, "7 connections", "left out")


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    log = read_text(tmp_path, info("Using network " + "x" * (3 << 20)) + info("Using network IB"))
    assert log.networks[1] == "IB"
    assert len(log.networks[0]) < MAX_LINE_BYTES
    assert list(log.left_out.values()) == [1]


def test_a_damaged_file_and_a_missing_one_are_problems_not_errors(tmp_path: Path) -> None:
    packed = gzip.compress(two_nodes().encode() * 50)
    log = read_text(tmp_path, packed[: len(packed) // 2])
    assert log.problems
    missing = read_nccl_logs([Source(path=tmp_path / "gone.log", label="gone.log")])
    assert "gone.log" in missing.problems[0]


@pytest.mark.parametrize(
    ("via", "kind"),
    [
        ("P2P/direct pointer/read", "P2P"),
        ("SHM/direct", "SHM"),
        ("NET/IB/0/GDRDMA(PCI)", "NET/IB"),
        ("direct shared memory", "SHM"),
    ],
)
def test_kinds(via: str, kind: str) -> None:
    assert kind_of(via) == kind


PIECES = [
    *two_nodes().splitlines(keepends=True),
    "n0:1:1 [0] NCCL INFO ", "NCCL WARN ", "Channel 00/0 : ", " via ", "NET/", ("comm 0x1 rank 0 "
"nranks 1 "), " - Init START",
    " nNodes ", "Trees [0] ", ("=== System : maxBw 1 "
"totalBw 2 ==="), "9" * 30, "\n", "\r", "\x00", "\u202e",
    "[", "]", ":", "-1/", "\ud800",
    "Pattern 4, crossNic 0, nChannels 2, bw 1.0/1.0, type LOC/PIX", " Bytes -> Algo ",
    "NCCL_X set by environment to ", "NCCL version 2.1", "\u0664",
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=40),
    tail=st.binary(max_size=40),
)
def test_any_text_is_read_or_refused_in_words(
    tmp_path: Path, parts: list[str], tail: bytes
) -> None:
    text = "".join(parts).encode("utf-8", "surrogatepass") + tail
    is_mine(text, "")
    try:
        log = read_text(tmp_path, text)
    except StepscopeError:
        return
    assert sum(log.transports.values()) == len(log.connections)
    assert all(line.isprintable() for line in to_text((nccl_section(log),)).splitlines())


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "nccl-log", "nccl.log", two_nodes().encode()
