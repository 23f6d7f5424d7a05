"""Logs of NCCL and RCCL (NCCL_DEBUG=INFO), one or many, into one NcclLog.

    [2026-11-15 02:02:21] node0:410:432 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via NET/Socket/0
    time, if asked for    host:pid:tid [device]       message

Several processes often share one file, with their own output between: a message is found by its
mark, wherever it stands in a line, and two of them written into one line are taken apart.

Without NCCL_DEBUG its last warning still stands in the exception that PyTorch raises:

    [rank1]: torch.distributed.DistBackendError: NCCL error in: .../NCCLUtils.cpp:77, invalid usage
             (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5
    [rank1]: Last error:
    [rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import islice

from msgspec.structs import replace

from stepscope.api import InputError, NcclLog, Reader, Source
from stepscope.core.recordings.nccl import (
    NcclCommunicator,
    NcclConnections,
    NcclTopology,
    NcclWarning,
)
from stepscope.core.recordings.nccl_notes import notes_on
from stepscope.readers.text_lines import bounded_lines, opened
from stepscope.recordings.nccl.messages import take, take_version
from stepscope.recordings.nccl.tables import NcclTables, PartialCommunicator, Writer

MAX_LINE_BYTES = 8192
"""NCCL's own lines are below 2 KiB."""
MAX_PREFIX_WORDS = 8
MAX_MESSAGES = 16
"""Messages in one line: more are no accident of processes that share a file."""
MAX_FILES_NAMED = 1000

MARK = re.compile(r"NCCL (INFO|WARN) ?")
WRITER = re.compile(r"(?:.*[:\[\]])?([^:\[\]]{1,255}):(\d{1,10}):(\d{1,10})")
LOG_LINE = re.compile(
    rb"^[^\n{\"]{0,400}:\d{1,10}:\d{1,10} \[\d{1,6}\] [^\n\"]{0,400}?NCCL (?:INFO|WARN) |^[NR]CCL "
    rb"version|^(?:\[[^\]\n]{0,40}\]:?)?\s{0,20}nccl[A-Z][A-Za-z]{4,30}: [^\n]{0,400}\n"
    rb"(?:[^\n]{0,400}\n){0,20}?[^\n]{0,60}Last error:",
    re.MULTILINE,
)
LOG_MARKS = (b"NCCL INFO ", b"NCCL WARN ", b"CCL version", b"Last error:")
"""One of them is in whatever LOG_LINE finds; they are sought faster."""
JSON_START = re.compile(rb"[\s\xef\xbb\xbf]*(?:\{|\[\s*(?:[\[\]{]|\Z))")
LAST_ERROR = re.compile(r"(?:\[[^\]]{0,40}\]:?)?\s{0,20}Last error:\s*$")
RANK_PREFIX = re.compile(r"^\[[^\]]{0,40}\]:?\s")
COLOR = re.compile(r"\x1b\[[0-9;]{0,20}m")
NOBODY = Writer("", 0, 0)


def is_mine(head: bytes, _name: str) -> bool:
    """Whether a text begins like the output of a job that NCCL writes into."""
    return JSON_START.match(head) is None and is_in(head)


def is_in(text: bytes) -> bool:
    """Whether a line of NCCL's is somewhere in a text."""
    return any(mark in text for mark in LOG_MARKS) and LOG_LINE.search(text) is not None


def read(sources: Sequence[Source]) -> NcclLog:
    """All logs of one job, merged. A file that cannot be read is a problem named in the result."""
    tables, problems = NcclTables(), []
    for source in sources:
        stream, is_error = opened(source), False
        try:
            with closing(stream.blocks()) as blocks:
                for line, is_whole in bounded_lines(blocks, MAX_LINE_BYTES):
                    tables.left_out["ends of long lines"] += not is_whole
                    if is_error:
                        _take_error(tables, line)
                    elif "CCL " in line:
                        _take_line(tables, line)
                    is_error = "Last error:" in line and LAST_ERROR.match(line) is not None
        except InputError as problem:
            problems.append(str(problem))
        if stream.problem:
            problems.append(f"{source.label}: {stream.problem}")
    return _finished(tables, [source.label for source in sources], problems)


def _take_line(tables: NcclTables, line: str) -> None:
    """Every message in a line: from its mark to where the next one's writer is named."""
    line = COLOR.sub("", line)
    marks = list(islice(MARK.finditer(line), MAX_MESSAGES))
    if not marks:
        take_version(tables, line)
    writers = [_writer(line, mark.start()) for mark in marks]
    for i in range(1, len(writers)):
        writers[i] = _unglued(*writers[i], writers[0][0].host, tables.hosts)
    for i, (mark, (writer, _)) in enumerate(zip(marks, writers, strict=True)):
        if writer is NOBODY and line[: mark.start()].strip():
            continue  # Someone's words about NCCL, not NCCL's own.
        end = next((start for other, start in writers[i + 1 :] if other is not NOBODY), len(line))
        text = line[mark.end() : end].rstrip("\r\n")
        if mark[1] == "WARN":
            tables.num_messages += 1
            tables.count(tables.warnings, text, "warnings")
        else:
            take(tables, writer, text)


def _take_error(tables: NcclTables, line: str) -> None:
    """NCCL's last warning as PyTorch repeats it; one that its log has too is known already."""
    text = RANK_PREFIX.sub("", COLOR.sub("", line)).strip()
    if text and text not in tables.warnings:
        tables.num_messages += 1
        tables.count(tables.warnings, text, "warnings")


def _writer(line: str, end: int) -> tuple[Writer, int]:
    """Writer of what stands at `end`, and where that is said."""
    start = end
    for word in reversed(line[max(0, end - 1024) : end].split(" ")[-MAX_PREFIX_WORDS:]):
        match = WRITER.fullmatch(word) if word else None
        start -= len(word)
        if match is not None:
            return Writer(match[1], int(match[2]), int(match[3])), start + match.start(1)
        start -= 1
    return NOBODY, end


def _unglued(
    writer: Writer, position: int, first: str, hosts: dict[str, None]
) -> tuple[Writer, int]:
    """A writer's host without the end of the message that was written into it: `IBnode0` where
    `node0` is known."""
    host = writer.host
    start = next((i for i in range(len(host)) if host[i:] == first or host[i:] in hosts), 0)
    if start:
        return (Writer(host[start:], writer.pid, writer.tid), position + start)
    return (writer, position)


def _finished(tables: NcclTables, files: list[str], problems: list[str]) -> NcclLog:
    system = tables.system
    comms = sorted(tables.comms.values(), key=lambda comm: (-comm.num_ranks, comm.id or ""))
    log = NcclLog(
        library="rccl" if tables.is_rccl else "nccl",
        files=tuple(files[:MAX_FILES_NAMED]),
        versions=tuple(version for version, _ in tables.versions.most_common()),
        hosts=tuple(sorted(host for host in tables.hosts if host)),
        communicators=tuple(_communicator(comm) for comm in comms),
        connections=_connections(tables),
        topology=None
        if system is None
        else NcclTopology(
            max_gb_s=system[0], total_gb_s=system[1], lines=tuple(tables.system_lines)
        ),
        graphs=tuple(tables.graphs),
        networks=tuple(tables.networks),
        ib_devices=None if tables.ib_devices is None else tuple(tables.ib_devices),
        interfaces=tuple(tables.interfaces),
        staged_devices=tuple(tables.staged),
        algorithms=tuple(sorted(tables.choices.values(), key=lambda choice: -choice.count)),
        calls=dict(tables.calls.most_common()),
        env={name: tuple(values) for name, values in sorted(tables.env.items())},
        warnings=_counted(tables.warnings.most_common()),
        remarks=_counted(tables.remarks.most_common()),
        num_messages=tables.num_messages,
        num_unread=tables.num_unread,
        left_out={what: count for what, count in tables.left_out.items() if count},
        problems=tuple(problems),
    )
    return replace(log, notes=notes_on(log))


def _communicator(comm: PartialCommunicator) -> NcclCommunicator:
    channels = comm.channels or (None, None, None)
    return NcclCommunicator(
        id=comm.id,
        num_ranks=comm.num_ranks,
        ranks=tuple(sorted(comm.ranks)),
        num_complete=sum(comm.ranks.values()),
        num_nodes=comm.num_nodes,
        num_channels=channels[0],
        num_nvls_channels=channels[1],
        num_p2p_channels=channels[2],
        rings=tuple(comm.rings[channel] for channel in sorted(comm.rings)),
    )


def _connections(tables: NcclTables) -> tuple[NcclConnections, ...]:
    """Connections by rank, peer and channel; channels that go the same way are counted."""
    ordered = sorted(
        tables.vias.items(),
        key=lambda via: (
            via[0][0] or "",
            via[0][1],
            -1 if via[0][2] is None else via[0][2],
            via[0][3],
            via[1].get("send") or via[1]["receive"],
        ),
    )
    num_channels = Counter(
        (
            ident,
            rank,
            peer,
            ways.get("send") or ways["receive"],
            ways.get("receive") if "send" in ways else None,
        )
        for (ident, rank, peer, _, _), ways in ordered
    )
    return tuple(
        NcclConnections(
            communicator=ident, rank=rank, peer=peer, via=via, received_via=back, channels=num
        )
        for (ident, rank, peer, via, back), num in num_channels.items()
    )


def _counted(counts: list[tuple[str, int]]) -> tuple[NcclWarning, ...]:
    return tuple(NcclWarning(text=text, count=count) for text, count in counts)


READER = Reader(is_mine=is_mine, read_together=read, is_in=is_in)
