"""A job's collectives: by operation, group and size, the links fitted to them, and the shape they
tell."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.comms import Buckets, CollectiveRow, CommsFacts, Dimension, Gathers, LinkFit
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.numbers import number_ranges
from stepscope.core.predicted_steps import is_of_rare_steps
from stepscope.report.document.blocks import (
    Block,
    Column,
    Facts,
    Prose,
    Section,
    Table,
    more,
    numbers,
)
from stepscope.report.words import (
    NBSP,
    gigabytes,
    in_column,
    megabytes,
    ms,
    number,
    percent,
    plural,
    short_time,
)

MAX_ROWS = 8
MAX_FITS = 4
MAX_DIMENSIONS = 6
MAX_BUCKETS = 6
MAX_NAMED = 4
SLOW = 0.7
"""A group's bus bandwidth over its row's, below which it is named."""
COLUMNS = (
    Column(fit="shorten", most=24),
    Column(title="ranks", fit="shorten", most=24),
    *numbers("MB", "calls", "ms", "waits", "exposed", "GB/s"),
)


def comms_sections(comms: CommsFacts) -> Iterator[Section]:
    """The table, then what it adds up to."""
    if comms.rows:
        yield Section(
            title="Collectives",
            aside="a step on one rank; GB/s: over the bus, once all ranks have come",
            blocks=tuple(_blocks(comms)),
            is_folded=True,
        )


def _blocks(comms: CommsFacts) -> Iterator[Block]:
    waits = all(row.includes_waits for row in comms.rows)
    shown, hidden = comms.rows[:MAX_ROWS], comms.rows[MAX_ROWS:]
    rows = tuple(_row(row, comms.world_size, "" if waits else "*") for row in shown)
    of_link = tuple(_of_link(row, comms) for row in shown)
    if any(share != "-" for share in of_link):
        rows = tuple((*row, share) for row, share in zip(rows, of_link, strict=True))
        yield Table(columns=(*COLUMNS, *numbers("of link")), rows=rows)
    else:
        yield Table(columns=COLUMNS, rows=rows)
    hidden_ns = sum(row.ns_per_step or 0 for row in hidden)
    rest = f", {ms(hidden_ns)}" if hidden_ns else ""
    yield from more(len(hidden) + comms.num_rows_left_out, "kind", rest)
    if waits:
        words = "Times and rates include waiting for the other ranks, whose traces were not read."
        yield Prose(words, "quiet")
    elif any(row.includes_waits for row in shown):
        yield Prose("* includes waiting for ranks whose part was not found", "quiet")
    facts = tuple(_entries(comms))
    if facts:
        yield Facts(facts)


def _row(row: CollectiveRow, world_size: int | None, mark: str) -> tuple[str, ...]:
    op = row.op + (f" {row.dtype}" if row.dtype else "")
    count = "-" if row.count_per_step is None else _count(row.count_per_step)
    rate = row.busbw_bytes_per_s
    return (
        op if row.on_device else f"{op} (host)",
        _group(row.group, row.num_ranks, row.num_groups, world_size),
        "-" if row.bytes is None else megabytes(row.bytes),
        count,
        "-" if row.ns_per_step is None else number(row.ns_per_step / 1e6),
        "-" if row.wait_ns_per_step is None else number(row.wait_ns_per_step / 1e6),
        "-" if row.exposed_share is None else percent(row.exposed_share),
        "-" if rate is None else gigabytes(rate) + (mark if row.includes_waits else ""),
    )


def _of_link(row: CollectiveRow, comms: CommsFacts) -> str:
    """Share of the datasheet's rate one way; nothing where the group may run over another link, or
    its times hold waits."""
    rate = row.busbw_bytes_per_s
    if comms.link is None or rate is None or not row.on_device:
        return "-"
    if row.crosses_nodes is not False or row.includes_waits:
        return "-"
    return percent(rate / comms.link.bytes_per_s)


def _group(name: str, num_ranks: int | None, num_groups: int, world_size: int | None) -> str:
    """all 4; mesh_tp 64 x 8."""
    if num_ranks is None:
        return name or "not recorded"
    if num_ranks == world_size:
        return f"all {num_ranks}"
    many = f"{num_groups} x " if num_groups > 1 else ""
    named = f"{name} " if name and not name.isdecimal() else ""
    return f"{named}{many}{num_ranks}"


def _entries(comms: CommsFacts) -> Iterator[tuple[str, str]]:
    for dimension in comms.shape[:MAX_DIMENSIONS]:
        yield "shape", _dimension(dimension)
    if not comms.shape:
        yield "shape", "not known from these groups and collectives"
    for fit in comms.fits[:MAX_FITS]:
        yield "link, fitted", _fit(fit, comms.world_size)
    if comms.link is not None:
        link = comms.link
        yield (
            "link, datasheet",
            (
                f"{link.name} {gigabytes(link.bytes_per_s)}{NBSP}GB/s one way, if these "
                "collectives run over it"
            ),
        )
    crossing = {row.crosses_nodes for row in comms.rows}
    if crossing != {None}:
        yield (
            "nodes",
            "some groups span several" if True in crossing else "all groups stay within one",
        )
    yield from _slow_groups(comms)
    uneven = [row.imbalance for row in comms.rows if row.imbalance is not None]
    if uneven:
        yield "all-to-all", f"the largest part is {number(max(uneven))} times the mean"
    if comms.buckets is not None:
        yield "DDP buckets", _buckets(comms.buckets)
    for gathers in comms.gathers:
        yield "FSDP gathers", _gathers(gathers)
    efficiency = sorted(
        rank.overlap_efficiency for rank in comms.ranks if rank.overlap_efficiency is not None
    )
    if efficiency:
        low, high = percent(efficiency[0]), percent(efficiency[-1])
        words = low if low == high else f"{low} to {high}"
        yield "overlap", f"{words} of what compute and communication could hide of each other"


def _dimension(dimension: Dimension) -> str:
    kind = "not known" if dimension.kind == "not known" else f"{dimension.kind} parallel"
    size = ""
    if dimension.size is not None:
        size = f" over {_group('', dimension.size, dimension.num_groups, None)} ranks"
    return (
        f"{kind}{size}{f': {dimension.scheme}' if dimension.scheme else ''} ({dimension.because})"
    )


def _fit(fit: LinkFit, world_size: int | None) -> str:
    group = _group(fit.group, fit.num_ranks, 1, world_size)
    alpha = short_time(fit.alpha_ns) if fit.alpha_ns else "none seen"
    sizes = (
        f"{fit.num_sizes} sizes, {megabytes(fit.min_bytes)} to {megabytes(fit.max_bytes)}{NBSP}MB"
    )
    off = f"off by {percent(fit.worst)} at most"
    return (
        f"{fit.op} among {group} ranks: alpha {alpha}, beta "
        f"{gigabytes(fit.beta_bytes_per_s)}{NBSP}GB/s ({sizes}; {off})"
    )


def _slow_groups(comms: CommsFacts) -> Iterator[tuple[str, str]]:
    """Groups that are much slower than their like, by name."""
    by_group: dict[str, str] = {}
    for row in comms.rows:
        slow, rate = row.slowest_busbw_bytes_per_s, row.busbw_bytes_per_s
        if row.slowest_group and slow is not None and rate and slow < SLOW * rate:
            by_group.setdefault(
                row.slowest_group,
                f"{row.op} of ranks {row.slowest_group}: {gigabytes(slow)} where the rest have "
                f"{gigabytes(rate)}{NBSP}GB/s",
            )
    for text in list(by_group.values())[:MAX_NAMED]:
        yield "slow group", text


def _buckets(buckets: Buckets) -> str:
    sizes = [("?" if size is None else megabytes(size)) for size in buckets.bytes]
    fired = [number(ns / 1e6) for ns in buckets.fired_ns]
    if len(sizes) > MAX_BUCKETS:
        sizes = [*sizes[: MAX_BUCKETS - 1], "...", sizes[-1]]
        fired = [*fired[: MAX_BUCKETS - 1], "...", fired[-1]]
    late = (
        f"{ms(abs(buckets.tail_ns))} {'after' if buckets.tail_ns >= 0 else 'before'} its last "
        "kernel"
    )
    which = plural(len(buckets.bytes), "bucket")
    begun = f"begun {', '.join(fired)}{NBSP}ms into a backward pass of {ms(buckets.backward_ns)}"
    return f"{which} of {', '.join(sizes)}{NBSP}MB, {begun}; the last ends {late}"


def _gathers(gathers: Gathers) -> str:
    size = ""
    if gathers.bytes_per_step is not None:
        size = f", {megabytes(gathers.bytes_per_step)}{NBSP}MB"
    ahead = ""
    if gathers.ahead is not None:
        ahead = ", none prefetched"
        if gathers.ahead:
            ahead = f", prefetched {plural(round(gathers.ahead), 'module')} ahead"
    hidden = f"{percent(gathers.hidden_share)} hidden{ahead}"
    return f"{gathers.phase}: {_count(gathers.count_per_step)} a step{size}, {hidden}"


def _count(value: float) -> str:
    """Calls a step: a whole number where it is one."""
    return in_column(value, 0 if abs(value - round(value)) < 0.05 else 1)


def late_ranks(diagnosis: Diagnosis, comms: CommsFacts) -> Iterator[Prose]:
    """Ranks that are late again and again, by name, and those that a finding names."""
    late = sorted(
        (rank for rank in comms.ranks if rank.is_straggler), key=lambda rank: -(rank.late_ns or 0)
    )
    for rank in late[:MAX_NAMED]:
        often, late_ms = percent(rank.share_last or 0), ms(rank.late_ns or 0)
        last = f"Rank {rank.rank} comes last to {often} of the collectives"
        yield Prose(f"{last}, {late_ms} after the others.", "warn")
    if len(late) > MAX_NAMED:
        yield Prose(f"Late too: {number_ranges(rank.rank for rank in late[MAX_NAMED:])}")
    if late or comms.clock_noise_ns is None:
        return
    unsure = {
        finding.code
        for finding in diagnosis.findings
        if is_of_rare_steps(finding, diagnosis.replay)
    }
    named = [
        f"Rank {rank} {'may hold' if code in unsure else 'holds'} the others up by its own step "
        f"({code}), and is not the last again and again in the few steps recorded."
        for rank, code in diagnosis.holding_up
    ]
    yield from (Prose(words, "warn") for words in named[:1])
    if not named:
        agree = f"(clocks agree within {short_time(comms.clock_noise_ns)})"
        yield Prose(f"No rank is the last again and again {agree}.", "quiet")
