"""What the host did during the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.facts import CallRow, CopyRow, Launches, RankFacts
from stepscope.report.document.blocks import Block, Column, Facts, Section, Table, more, numbers
from stepscope.report.words import (
    gigabytes,
    megabytes,
    number,
    per_step,
    percent,
    plural,
    short_time,
)

MAX_CALLS = 3
"""Rows for each kind of call."""
MAX_COPIES = 6


def host_sections(rank: RankFacts) -> Iterator[Section]:
    """Calls that held the host, how far it ran ahead, and copies."""
    num_steps = len(rank.steps.windows)
    if not num_steps:
        return
    blocks = tuple(_host_blocks(rank, num_steps))
    yield Section(title="Host", aside="a step", blocks=blocks, is_folded=True)
    if rank.copies:
        yield _copies_section(rank.copies, num_steps)


def _host_blocks(rank: RankFacts, num_steps: int) -> Iterator[Block]:
    host = rank.host
    kinds = {
        "sync": host.syncs,
        "allocator": host.allocator,
        "loader": host.loader,
        "compile": host.compile,
    }
    rows = [row for kind, calls in kinds.items() for row in _call_rows(kind, calls, num_steps)]
    if rows:
        name = Column(title="call", fit="shorten")
        columns = (Column(tone="quiet"), name, *numbers("calls", "ms", "longest"))
        yield Table(columns=columns, rows=tuple(rows))
    facts = []
    absent = [kind for kind, calls in kinds.items() if not calls]
    if absent:
        facts.append(("not seen", ", ".join(absent)))
    if rank.launches is not None:
        facts += _launch_words(rank.launches, num_steps)
    elif rank.steps.where == "device":
        facts.append(("launches", "not measured"))
    if facts:
        yield Facts(tuple(facts))


def _call_rows(kind: str, calls: Sequence[CallRow], num_steps: int) -> list[tuple[str, ...]]:
    ordered = sorted(calls, key=lambda row: -row.total_ns)
    rows: list[tuple[str, ...]] = [
        (
            kind,
            row.name,
            per_step(row.count, num_steps),
            number(row.total_ns / num_steps / 1e6),
            short_time(row.longest_ns),
        )
        for row in ordered[:MAX_CALLS]
    ]
    rest = ordered[MAX_CALLS:]
    if rest:
        count, total = sum(row.count for row in rest), sum(row.total_ns for row in rest)
        longest = short_time(max(row.longest_ns for row in rest))
        rows.append(
            (
                kind,
                f"{len(rest)} others",
                per_step(count, num_steps),
                number(total / num_steps / 1e6),
                longest,
            )
        )
    return rows


def _launch_words(launches: Launches, num_steps: int) -> list[tuple[str, str]]:
    words = [("launches", _ahead_words(launches))]
    times = []
    if launches.median_call_ns is not None:
        times.append(f"a launch takes the host {short_time(launches.median_call_ns)}")
    if launches.median_kernel_ns is not None:
        times.append(f"a kernel runs {short_time(launches.median_kernel_ns)}")
    if launches.median_delay_ns is not None:
        times.append(f"it begins {short_time(launches.median_delay_ns)} after its launch")
    if times:
        words.append(("medians", ", ".join(times)))
    if launches.num_graph_launches:
        graphs, inside = (
            per_step(launches.num_graph_launches, num_steps),
            per_step(launches.num_in_graphs, num_steps),
        )
        words.append(("CUDA graphs", f"{graphs} launched, with {inside} pieces of work in them"))
    if launches.num_unlinked:
        of_all = percent(
            launches.num_unlinked / max(launches.num_device_events, launches.num_unlinked)
        )
        words.append(
            (
                "without a launch",
                f"{plural(launches.num_unlinked, 'piece')} of device work in all, {of_all}",
            )
        )
    return words


def _ahead_words(launches: Launches) -> str:
    depth, starved = launches.median_queue_depth, launches.starved_share
    if depth is None:
        ahead = "how far the host runs ahead was not measured"
    elif depth < 1:
        ahead = "the host does not run ahead of the device"
    else:
        ahead = f"the host runs {plural(round(depth), 'launch', 'es')} ahead"
    if starved is None:
        return ahead
    return f"{ahead}; {percent(starved)} of launches find the device idle"


def _copies_section(copies: Sequence[CopyRow], num_steps: int) -> Section:
    ordered = sorted(copies, key=lambda row: -row.total_ns)
    rows = tuple(
        (
            row.kind,
            per_step(row.count, num_steps),
            per_step(row.num_blocking, num_steps) if row.num_blocking else "none",
            number(row.total_ns / num_steps / 1e6),
            megabytes(row.bytes / num_steps) if row.bytes is not None else "not known",
            gigabytes(row.bytes_per_s) if row.bytes_per_s is not None else "-",
        )
        for row in ordered[:MAX_COPIES]
    )
    columns = (Column(fit="shorten"), *numbers("copies", "blocking", "ms", "MB", "GB/s"))
    return Section(
        title="Copies",
        aside="a step; blocking: held the host until done",
        blocks=(Table(columns=columns, rows=rows), *more(len(ordered) - MAX_COPIES, "kind")),
        is_folded=True,
    )
