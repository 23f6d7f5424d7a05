"""What NCCL's log tells: version, links, algorithms, warnings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.nccl import NcclCommunicator, NcclLog
from stepscope.core.recordings.recording import RecordingText, lines_of
from stepscope.report.document.blocks import Facts, Section, shortened
from stepscope.report.words import NBSP, number, plural, shorten

MAX_COMMUNICATORS = 3
MAX_LISTED = 4
MAX_VARIABLES = 8
MAX_WARNINGS = 5
MAX_NOTES = 8
MAX_WORD = 60
NIC = re.compile(r"(?<=[^/])/-?\d{1,6}(?:\(\d{1,9}\))?(?=/|$)")
"""The number of a network device, and of the rank whose device it is: many of them do the same."""


def nccl_section(log: NcclLog) -> Section:
    """A short block; what to think of it comes last."""
    blocks = (Facts(tuple(nccl_lines(log))), *shortened(log.notes, MAX_NOTES, "note"))
    return Section(title=log.library.upper(), aside="from its log", blocks=blocks)


def nccl_recording(log: NcclLog) -> RecordingText:
    """The same as the recordings of other tools are shown."""
    lines = lines_of((label or "more", text) for label, text in nccl_lines(log))
    return RecordingText(format=log.library, paths=log.files, lines=lines, notes=log.notes)


def nccl_lines(log: NcclLog) -> Iterator[tuple[str, str]]:
    """A word and what it is, warnings last; no word where a line goes on from the one before."""
    yield from _entries(log)
    for warning in log.warnings[:MAX_WARNINGS]:
        times = f" ({warning.count}{NBSP}times)" if warning.count > 1 else ""
        yield "warning", f"{warning.text}{times}"
    if len(log.warnings) > MAX_WARNINGS:
        yield "", f"and {plural(len(log.warnings) - MAX_WARNINGS, 'warning')} more"


def _entries(log: NcclLog) -> Iterator[tuple[str, str]]:
    hosts = f", {plural(len(log.hosts), 'host')}" if log.hosts else ""
    yield "version", (log.version or "not logged") + hosts
    for communicator in log.communicators[:MAX_COMMUNICATORS]:
        yield "communicator", _communicator(communicator)
    more = len(log.communicators) - MAX_COMMUNICATORS
    if more > 0:
        yield (
            "",
            (
                f"and {plural(more, 'communicator')} more, the largest of "
                f"{log.communicators[MAX_COMMUNICATORS].num_ranks} ranks"
            ),
        )
    if log.connections:
        num_channels: Counter[str] = Counter()
        for each in log.connections:
            num_channels[NIC.sub("", each.via)] += each.channels
        ways = num_channels.most_common()
        slowest = ""
        if len(log.transports) > 1:
            slowest = f"; the slowest is {_word(log.slowest_transport or '')}"
        yield "connections", _list([f"{_word(way)} {count}" for way, count in ways]) + slowest
    if log.networks or log.interfaces:
        yield "network", _network(log)
    if log.graphs:
        yield (
            "expected",
            _list(
                [
                    f"{g.pattern} {g.num_channels} x {number(g.inter_gb_s)}{NBSP}GB/s"
                    for g in log.graphs
                ]
            ),
        )
    if log.algorithms:
        yield (
            "algorithms",
            _list([_choice(c.function, c.algorithm, c.protocol, c.count) for c in log.algorithms]),
        )
    if log.env:
        pairs = [f"{name}={_word('|'.join(values))}" for name, values in log.env.items()]
        yield "variables", _list(pairs, MAX_VARIABLES)


def _communicator(communicator: NcclCommunicator) -> str:
    words = plural(communicator.num_ranks, "rank")
    if communicator.num_nodes is not None:
        words += f" on {plural(communicator.num_nodes, 'node')}"
    if communicator.num_channels is not None:
        words += f", {plural(communicator.num_channels, 'channel')}"
    if communicator.rings and communicator.num_ranks > 1:
        ring = communicator.rings[0]
        shown = " ".join(str(rank) for rank in ring.ranks[:16])
        words += f", ring {shown}" + ("" if ring.is_whole and len(ring.ranks) <= 16 else " ...")
    if len(communicator.ranks) < communicator.num_ranks:
        words += f" (logged: {shorten(number_ranges(communicator.ranks), MAX_WORD)})"
    return words


def _network(log: NcclLog) -> str:
    words = _list([_word(name) for name in log.networks]) if log.networks else "not logged"
    if log.interfaces:
        words += f", over {_list([_word(name) for name in log.interfaces])}"
    if log.ib_devices is not None:
        words += (
            "; InfiniBand or RoCE: "
            f"{_list([_word(name) for name in log.ib_devices]) or 'none found'}"
        )
    return words


def _choice(function: str | None, algorithm: str, protocol: str | None, count: int) -> str:
    return " ".join(
        word
        for word in (function, f"{algorithm}/{protocol}" if protocol else algorithm, str(count))
        if word
    )


def _list(items: list[str], most: int = MAX_LISTED) -> str:
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest


def _word(text: str) -> str:
    return shorten(text, MAX_WORD)
