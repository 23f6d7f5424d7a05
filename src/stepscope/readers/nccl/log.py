"""Logs of NCCL and RCCL (NCCL_DEBUG=INFO), one or many, into one NcclLog.

    [2026-11-15 02:02:21] node0:410:432 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0
    time, if asked for    host:pid:tid [device]       message

Several processes often share one file, with their own output between: a message is found by its
mark, wherever it stands in a line, and two of them written into one line are taken apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice

from stepscope.core.recordings.nccl import (
    NcclCommunicator,
    NcclConnection,
    NcclLog,
    NcclTopology,
    NcclWarning,
)
from stepscope.errors import InputError
from stepscope.readers.container_log import opened
from stepscope.readers.nccl.messages import take, take_version
from stepscope.readers.nccl.parser import CommDraft, Draft, Writer
from stepscope.readers.source import Source

MAX_LINE_BYTES = 8192
"""NCCL's own lines are below 2 KiB."""
MAX_PREFIX_WORDS = 8
MAX_MESSAGES = 16
"""In one line: more are no accident of processes that share a file."""
MAX_FILES_NAMED = 1000

MARK = re.compile(r"NCCL (INFO|WARN) ?")
WRITER = re.compile(r"(?:.*[:\[\]])?([^:\[\]]{1,255}):(\d{1,10}):(\d{1,10})")
LOG_LINE = re.compile(
    rb"^[^\n{\"]{0,400}:\d{1,10}:\d{1,10} \[\d{1,6}\] [^\n\"]{0,400}?NCCL (?:INFO|WARN) |^[NR]CCL "
    rb"version",
    re.MULTILINE,
)
LOG_MARKS = (b"NCCL INFO ", b"NCCL WARN ", b"CCL version")
"""One of them is in whatever LOG_LINE finds; they are sought faster."""
JSON_START = re.compile(rb"[\s\xef\xbb\xbf]*(?:\{|\[\s*(?:[\[\]{]|\Z))")
COLOR = re.compile(r"\x1b\[[0-9;]{0,20}m")
NOBODY = Writer("", 0, 0)


def is_mine(head: bytes, _name: str) -> bool:
    """Whether a text begins like the output of a job that NCCL writes into."""
    return JSON_START.match(head) is None and is_in(head)


def is_in(text: bytes) -> bool:
    """Whether a line of NCCL's is somewhere in a text."""
    return any(mark in text for mark in LOG_MARKS) and LOG_LINE.search(text) is not None


def read(sources: Sequence[Source]) -> NcclLog:
    """All logs of one job, merged. A file that cannot be read is a problem told in the result."""
    draft, problems = Draft(), []
    for source in sources:
        stream = opened(source)
        try:
            with closing(stream.blocks()) as blocks:
                for line, is_whole in _lines(blocks):
                    draft.left_out["ends of long lines"] += not is_whole
                    if "CCL " in line:
                        _take_line(draft, line)
        except InputError as problem:
            problems.append(str(problem))
        if stream.problem:
            problems.append(f"{source.label}: {stream.problem}")
    return _finished(draft, [source.label for source in sources], problems)


def _lines(blocks: Iterator[bytes]) -> Iterator[tuple[str, bool]]:
    """Lines as text, none longer than the limit; and whether each is whole."""
    rest, is_whole = b"", True
    for block in blocks:
        first, *others = block.split(b"\n")
        is_whole = is_whole and len(rest) + len(first) <= MAX_LINE_BYTES
        rest = (rest + first[:MAX_LINE_BYTES])[:MAX_LINE_BYTES]
        for part in others:
            yield rest.decode("utf-8", "replace"), is_whole
            rest, is_whole = part[:MAX_LINE_BYTES], len(part) <= MAX_LINE_BYTES
    if rest:
        yield rest.decode("utf-8", "replace"), is_whole


def _take_line(draft: Draft, line: str) -> None:
    """Every message in a line: from its mark to where the next one's writer is named."""
    line = COLOR.sub("", line)
    marks = list(islice(MARK.finditer(line), MAX_MESSAGES))
    if not marks:
        take_version(draft, line)
    writers = [_writer(line, mark.start()) for mark in marks]
    for i in range(1, len(writers)):
        writers[i] = _unglued(*writers[i], writers[0][0].host, draft.hosts)
    for i, (mark, (writer, _)) in enumerate(zip(marks, writers, strict=True)):
        if writer is NOBODY and line[: mark.start()].strip():
            continue  # Someone's words about NCCL, not NCCL's own.
        end = next((at for other, at in writers[i + 1 :] if other is not NOBODY), len(line))
        text = line[mark.end() : end].rstrip("\r\n")
        if mark[1] == "WARN":
            draft.num_messages += 1
            draft.count(draft.warnings, text, "warnings")
        else:
            take(draft, writer, text)


def _writer(line: str, end: int) -> tuple[Writer, int]:
    """Who wrote what stands at `end`, and where that is said."""
    at = end
    for word in reversed(line[max(0, end - 1024) : end].split(" ")[-MAX_PREFIX_WORDS:]):
        told = WRITER.fullmatch(word) if word else None
        at -= len(word)
        if told is not None:
            return Writer(told[1], int(told[2]), int(told[3])), at + told.start(1)
        at -= 1
    return NOBODY, end


def _unglued(writer: Writer, at: int, first: str, hosts: dict[str, None]) -> tuple[Writer, int]:
    """A writer's host without the end of the message that was written into it: `IBnode0` where
    `node0` is known."""
    host = writer.host
    start = next((i for i in range(len(host)) if host[i:] == first or host[i:] in hosts), 0)
    return (Writer(host[start:], writer.pid, writer.tid), at + start) if start else (writer, at)


def _finished(draft: Draft, files: list[str], problems: list[str]) -> NcclLog:
    system = draft.system
    comms = sorted(draft.comms.values(), key=lambda comm: (-comm.num_ranks, comm.id or ""))
    return NcclLog(
        library="rccl" if draft.is_rccl else "nccl",
        files=tuple(files[:MAX_FILES_NAMED]),
        versions=tuple(version for version, _ in draft.versions.most_common()),
        hosts=tuple(sorted(host for host in draft.hosts if host)),
        communicators=tuple(_communicator(comm) for comm in comms),
        connections=_connections(draft),
        trees=tuple(
            draft.trees[key]
            for key in sorted(draft.trees, key=lambda key: (key[0] or "", *key[1:]))
        ),
        topology=None
        if system is None
        else NcclTopology(
            max_gb_s=system[0], total_gb_s=system[1], lines=tuple(draft.system_lines)
        ),
        graphs=tuple(draft.graphs),
        networks=tuple(draft.networks),
        ib_devices=None if draft.ib_devices is None else tuple(draft.ib_devices),
        interfaces=tuple(draft.interfaces),
        staged_devices=tuple(draft.staged),
        algorithms=tuple(sorted(draft.choices.values(), key=lambda choice: -choice.count)),
        calls=dict(draft.calls.most_common()),
        env={name: tuple(values) for name, values in sorted(draft.env.items())},
        warnings=_counted(draft.warnings.most_common()),
        remarks=_counted(draft.remarks.most_common()),
        num_messages=draft.num_messages,
        num_unread=draft.num_unread,
        left_out={what: count for what, count in draft.left_out.items() if count},
        problems=tuple(problems),
    )


def _communicator(comm: CommDraft) -> NcclCommunicator:
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


def _connections(draft: Draft) -> tuple[NcclConnection, ...]:
    made = [
        NcclConnection(
            communicator=ident,
            rank=rank,
            peer=peer,
            channel=channel,
            via=ways.get("send") or ways["receive"],
            received_via=ways.get("receive") if "send" in ways else None,
        )
        for (ident, rank, peer, channel, _), ways in draft.vias.items()
    ]
    return tuple(
        sorted(
            made,
            key=lambda c: (
                c.communicator or "",
                c.rank,
                -1 if c.peer is None else c.peer,
                c.channel,
                c.via,
            ),
        )
    )


def _counted(counts: list[tuple[str, int]]) -> tuple[NcclWarning, ...]:
    return tuple(NcclWarning(text=text, count=count) for text, count in counts)
