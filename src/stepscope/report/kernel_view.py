"""Where the device's time goes by kernel, in the terminal; by operator when there is no device."""

from __future__ import annotations

from stepscope.core.facts import RangeRow, RankFacts
from stepscope.report.names import kernel_name, op_name
from stepscope.report.sheet import Column, Sheet
from stepscope.report.units import ms, number, per_step, percent

MAX_ROWS = 8
MAX_RANGES = 6
COLLECTIVE = "collective"
"""The category that is no part of compute, and so has no share of it."""


def draw_kernels(sheet: Sheet, rank: RankFacts) -> None:
    """The categories, then the kernels, that take most of the measured steps."""
    num_steps = len(rank.steps.windows)
    if not num_steps:
        return
    compute = sum(rank.partition.parts["compute"]) if rank.partition is not None else 0
    if rank.categories:
        _draw_categories(sheet, rank, num_steps, compute)
    if rank.kernels:
        _draw_top(sheet, rank, num_steps, compute)
    if rank.modules:
        _draw_ranges(sheet, "Modules", rank.modules, num_steps)
    if rank.marks:
        _draw_ranges(sheet, "Marks", rank.marks, num_steps)
    if not rank.categories and not rank.kernels and rank.steps.where == "host":
        _draw_operators(sheet, rank, num_steps)


def _draw_categories(sheet: Sheet, rank: RankFacts, num_steps: int, compute: int) -> None:
    sheet.heading("Kernels by kind", "a step")
    columns = (
        Column(shrinks=True),
        Column(title="calls", right=True),
        Column(title="ms", right=True),
        Column(title="of compute", right=True),
    )
    ordered = sorted(rank.categories, key=lambda row: -row.total_ns)
    rows = [
        (row.category, per_step(row.count, num_steps), _ms(row.total_ns, num_steps), _share(row.category, row.total_ns, compute))
        for row in ordered[:MAX_ROWS]
    ]
    sheet.table(columns, rows)
    _draw_rest(sheet, sum(row.total_ns for row in ordered[MAX_ROWS:]), num_steps)


def _draw_top(sheet: Sheet, rank: RankFacts, num_steps: int, compute: int) -> None:
    sheet.heading("Kernels that take most", "a step; roof: least time its work needs / its time")
    columns = (
        Column(title="kernel", shrinks=True),
        Column(title="launched by", shrinks=True, most=18, style="dim"),
        Column(title="calls", right=True),
        Column(title="ms", right=True),
        Column(title="compute", right=True),
        Column(title="roof", right=True),
    )
    ordered = sorted(rank.kernels, key=lambda row: -row.total_ns)
    rows = [
        (
            kernel_name(row.name),
            op_name(row.op) if row.op is not None else "not known",
            per_step(row.count, num_steps),
            _ms(row.total_ns, num_steps),
            _share(row.category, row.total_ns, compute),
            percent(row.floor_ns / row.total_ns) if row.floor_ns is not None and row.total_ns else "-",
        )
        for row in ordered[:MAX_ROWS]
    ]
    sheet.table(columns, rows)
    # By the categories: the kernels may be only the longest of all.
    every = max(sum(row.total_ns for row in rank.categories), sum(row.total_ns for row in rank.kernels))
    _draw_rest(sheet, every - sum(row.total_ns for row in ordered[:MAX_ROWS]), num_steps)


def _draw_ranges(sheet: Sheet, title: str, ranges: tuple[RangeRow, ...], num_steps: int) -> None:
    """Ranges hold one another, so their times overlap and there is no rest to tell."""
    shown = sorted(ranges, key=lambda row: -row.device_ns)[:MAX_RANGES]
    is_projected = any(row.projected_ns is not None for row in shown)
    told = "span: one, first to last" if is_projected else "backward with its forward"
    sheet.heading(title, f"a step; device time launched inside; {told}")
    columns: tuple[Column, ...] = (Column(shrinks=True), Column(title="kernels", right=True), Column(title="ms", right=True))
    rows: list[tuple[str, ...]] = [
        (row.name.removeprefix("nn.Module: "), per_step(row.count, num_steps), _ms(row.device_ns, num_steps)) for row in shown
    ]
    if is_projected:
        columns = (*columns, Column(title="span", right=True))
        spans = ["-" if row.projected_ns is None else _ms(row.projected_ns, 1) for row in shown]
        rows = [(*row, span) for row, span in zip(rows, spans, strict=True)]
    sheet.table(columns, rows)


def _draw_operators(sheet: Sheet, rank: RankFacts, num_steps: int) -> None:
    timed = [(row, row.host_ns) for row in rank.ops if row.host_ns is not None]
    if not timed:
        return
    ordered = sorted(timed, key=lambda pair: -pair[1])
    sheet.heading("Operators that take most", "a step, on the host")
    columns = (Column(shrinks=True), Column(title="calls", right=True), Column(title="ms", right=True))
    rows = [(op_name(row.name), per_step(row.count, num_steps), _ms(ns, num_steps)) for row, ns in ordered[:MAX_ROWS]]
    sheet.table(columns, rows)
    _draw_rest(sheet, sum(ns for _, ns in ordered[MAX_ROWS:]), num_steps)


def _draw_rest(sheet: Sheet, rest_ns: int, num_steps: int) -> None:
    if rest_ns > 0:
        sheet.prose(f"all others: {ms(rest_ns / num_steps)}", indent=2, style="dim")


def _ms(total_ns: int, num_steps: int) -> str:
    return number(total_ns / num_steps / 1e6)


def _share(category: str, total_ns: int, compute: int) -> str:
    return "-" if not compute or category == COLLECTIVE else percent(total_ns / compute)
