"""Where the device's time goes by kernel; by operator when there is no device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepscope.core.facts import COLLECTIVE, RangeRow, RankFacts
from stepscope.report.document.blocks import Block, Column, Prose, Section, Table, numbers
from stepscope.report.words import kernel_name, ms, number, op_name, per_step, percent

MAX_ROWS = 8
MAX_RANGES = 6
NAME = Column(fit="shorten")


def kernel_sections(rank: RankFacts, lines: Mapping[str, str] | None = None) -> Iterator[Section]:
    """The categories, then the kernels, that take most of the measured steps; `lines` are those of
    compiled kernels, by their names."""
    num_steps = len(rank.steps.windows)
    if not num_steps:
        return
    compute = compute_ns(rank)
    if rank.categories:
        yield _categories(rank, num_steps, compute)
    if rank.kernels:
        yield _longest(rank, num_steps, compute, lines or {})
    if rank.modules:
        yield _ranges("Modules", rank.modules, num_steps)
    if rank.marks and rank.steps.where == "host":
        yield _host_ranges(rank.marks, num_steps)
    elif rank.marks:
        yield _ranges("Marks", rank.marks, num_steps)
    if not rank.categories and not rank.kernels and rank.steps.where == "host":
        yield from _operators(rank, num_steps)


def compute_ns(rank: RankFacts) -> int:
    """What a kernel's share of compute is a share of: the time in which any ran, or what they took
    together where several ran at once; 0 where it was not measured."""
    if rank.partition is None:
        return 0
    together = sum(row.total_ns for row in rank.categories if row.category != COLLECTIVE)
    return max(sum(rank.partition.parts["compute"]), together)


def _section(title: str, aside: str, *blocks: Block) -> Section:
    return Section(title=title, aside=aside, blocks=blocks, is_folded=True)


def _categories(rank: RankFacts, num_steps: int, compute: int) -> Section:
    ordered = sorted(rank.categories, key=lambda row: -row.total_ns)
    rows = tuple(
        (
            row.category,
            per_step(row.count, num_steps),
            _ms(row.total_ns, num_steps),
            _share(row.category, row.total_ns, compute),
        )
        for row in ordered[:MAX_ROWS]
    )
    table = Table(columns=(NAME, *numbers("calls", "ms", "of compute")), rows=rows)
    rest = _rest(sum(row.total_ns for row in ordered[MAX_ROWS:]), num_steps)
    return _section("Kernels by kind", "a step", table, *rest)


def _longest(rank: RankFacts, num_steps: int, compute: int, lines: Mapping[str, str]) -> Section:
    columns = (
        Column(title="kernel", fit="shorten"),
        Column(title="launched by", fit="shorten", most=18, tone="quiet"),
        *numbers("calls", "ms", "compute", "roof"),
    )
    ordered = sorted(rank.kernels, key=lambda row: -row.total_ns)
    rows = tuple(
        (
            kernel_name(row.name),
            lines.get(row.name) or ("not known" if row.op is None else op_name(row.op)),
            per_step(row.count, num_steps),
            _ms(row.total_ns, num_steps),
            _share(row.category, row.total_ns, compute),
            "-" if row.roof_share is None else percent(row.roof_share),
        )
        for row in ordered[:MAX_ROWS]
    )
    # By the categories: the kernels may be only the longest of all.
    every = max(
        sum(row.total_ns for row in rank.categories), sum(row.total_ns for row in rank.kernels)
    )
    rest = _rest(every - sum(row.total_ns for row in ordered[:MAX_ROWS]), num_steps)
    aside = "a step; roof: least time its work needs / its time"
    return _section("Kernels that take most", aside, Table(columns=columns, rows=rows), *rest)


def _ranges(title: str, ranges: tuple[RangeRow, ...], num_steps: int) -> Section:
    """Ranges hold one another, so their times overlap and there is no rest to tell."""
    shown = sorted(ranges, key=lambda row: -row.device_ns)[:MAX_RANGES]
    is_projected = any(row.projected_ns is not None for row in shown)
    rows = []
    for row in shown:
        name = row.name.removeprefix("nn.Module: ")
        span = "-" if row.projected_ns is None else _ms(row.projected_ns, 1)
        cells = (name, per_step(row.count, num_steps), _ms(row.device_ns, num_steps), span)
        rows.append(cells if is_projected else cells[:-1])
    titles = ("kernels", "ms", "span") if is_projected else ("kernels", "ms")
    meaning = "span: one, first to last" if is_projected else "backward with its forward"
    table = Table(columns=(NAME, *numbers(*titles)), rows=tuple(rows))
    return _section(title, f"a step; device time launched inside; {meaning}", table)


def _host_ranges(ranges: tuple[RangeRow, ...], num_steps: int) -> Section:
    """The same on a host that did the work itself."""
    shown = sorted(ranges, key=lambda row: -(row.host_ns or 0))[:MAX_RANGES]
    rows = tuple(
        (row.name, per_step(row.count, num_steps), _ms(row.host_ns or 0, num_steps))
        for row in shown
    )
    table = Table(columns=(NAME, *numbers("calls", "ms")), rows=rows)
    return _section("Marks", "a step, on the host; ranges may hold one another", table)


def _operators(rank: RankFacts, num_steps: int) -> Iterator[Section]:
    timed = [(row, row.host_ns) for row in rank.ops if row.host_ns is not None]
    ordered = sorted(timed, key=lambda pair: -pair[1])
    rows = tuple(
        (op_name(row.name), per_step(row.count, num_steps), _ms(ns, num_steps))
        for row, ns in ordered[:MAX_ROWS]
    )
    if rows:
        table = Table(columns=(NAME, *numbers("calls", "ms")), rows=rows)
        rest = _rest(sum(ns for _, ns in ordered[MAX_ROWS:]), num_steps)
        yield _section("Operators that take most", "a step, on the host", table, *rest)


def _rest(rest_ns: int, num_steps: int) -> tuple[Prose, ...]:
    return (Prose(f"all others: {ms(rest_ns / num_steps)}", "quiet"),) if rest_ns > 0 else ()


def _ms(total_ns: int, num_steps: int) -> str:
    return number(total_ns / num_steps / 1e6)


def _share(category: str, total_ns: int, compute: int) -> str:
    return "-" if not compute or category == COLLECTIVE else percent(total_ns / compute)
