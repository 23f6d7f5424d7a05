"""What every report of a comparison shows, as tables of text: the terminal, Markdown and the page
differ in how much and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.core.experiments.comparison import (
    OVERLAP,
    Account,
    Changed,
    Comparison,
    DeviceChange,
    Row,
)
from stepscope.core.facts import PARTS
from stepscope.core.numbers import number_ranges
from stepscope.report.comparison.words import (
    STATUS_WORDS,
    calls_words,
    changed_name,
    headline,
    held_words,
    host_words,
    how_words,
    interval_words,
    ratio,
    row_name,
    step_words,
    sure_words,
    throughput_words,
    told_apart,
)
from stepscope.report.units import NBSP, digits_after_point, fixed, gigabytes

ACCOUNTS = {
    "part": ("Where the step goes", "the parts sum to the step"),
    "phase": ("By phase", ""),
    "category": ("By kind of kernel", ""),
    "kernel": ("By kernel", ""),
    "module": ("By module", "its own work, without the modules inside it"),
    "collective": ("Collectives", "from each rank's arrival, waits are in it"),
}
COLUMN_WORDS = {"category": "kind"}
NOT_MEASURED = "-"
REST = "all else"
LEAST_BAR = 0.02
"""Of a table's longest change: a row that changed by less has no line of its own where there are
many."""
QUIET = 0.005
"""Of the longer step: changes below this in all rows of a table are not worth a table in a
terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of a table."""

    cells: tuple[str, ...]
    ends_ns: tuple[int, int] | None = None
    """Before and after, where it is a time."""
    change: float = 0.0
    """Of its table's longest change: what a bar shows; negative is less time."""
    is_total: bool = False
    is_rest: bool = False
    hint: str = ""
    """The whole of a name that is shown short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A titled table. The columns at `right` are numbers; `most` rows are shown where there is
    little room."""

    name: str
    title: str
    aside: str
    columns: tuple[str, ...]
    right: frozenset[int]
    lines: tuple[Line, ...]
    most: int = 10
    wide: tuple[int, ...] = (0,)
    """The columns that give way."""
    times: tuple[int, int, int] | None = None
    """Where the columns of a time before, after and its change stand."""
    decimals: int = 1
    is_quiet: bool = False
    """Whether nothing in it changed by a share of the step that matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """One comparison, ready to be drawn."""

    title: str
    headline: str
    facts: tuple[str, ...]
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def page_of(comparison: Comparison, name: str) -> ComparisonPage:
    """`name` is the second run's letter."""
    facts = [f"A: {comparison.before.label}", f"{name}: {comparison.after.label}"]
    told = throughput_words(comparison, name)
    facts += [words for words in (sure_words(comparison), host_words(comparison, name)) if words]
    warnings = []
    if comparison.unequal:
        warnings.append(
            f"A and {name} do not do the same work: {_sentence('; '.join(comparison.unequal))}"
        )
        warnings.append(
            told or "The ratio of their steps says nothing about which of them trains faster."
        )
    tables = [_runs(comparison, name), *_tables(comparison, name)]
    return ComparisonPage(
        title=f"{name} against A",
        headline=headline(comparison, name),
        facts=tuple(facts),
        warnings=tuple(warnings),
        tables=tuple(table for table in tables if table.lines),
        notes=comparison.notes,
    )


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _runs(comparison: Comparison, name: str) -> Table:
    rows = [
        Line(
            cells=(
                letter,
                step_words(run),
                run.bound,
                str(run.num_ranks or NOT_MEASURED),
                NOT_MEASURED if run.peak_bytes is None else f"{gigabytes(run.peak_bytes)}{NBSP}GB",
            )
        )
        for letter, run in (("A", comparison.before), (name, comparison.after))
    ]
    return Table(
        name="runs",
        title="Runs",
        aside="",
        columns=("run", "step", "bound", "ranks", "peak memory"),
        right=frozenset({3, 4}),
        lines=tuple(rows),
        wide=(1,),
    )


def _tables(comparison: Comparison, name: str) -> Iterable[Table]:
    by = {account.by: account for account in comparison.accounts}
    quiet_ns = QUIET * max(comparison.before.step_ns or 0.0, comparison.after.step_ns or 0.0)
    if "part" in by:
        yield _account(by["part"], name, most=len(PARTS) + 2)
    if comparison.device is not None:
        yield _device(comparison, comparison.device, name)
    for kind, most in (
        ("phase", 6),
        ("category", 8),
        ("kernel", 8),
        ("module", 8),
        ("collective", 8),
    ):
        if kind in by:
            yield _account(by[kind], name, most=most, quiet_ns=quiet_ns)
    yield _ranks(comparison, name)
    yield _memory(comparison, name)
    yield _held(comparison)
    yield _knobs(comparison, name)


def _account(account: Account, name: str, most: int, quiet_ns: float = 0.0) -> Table:
    title, aside = ACCOUNTS[account.by]
    decimals = max(1, _decimals(account.before_ns, account.after_ns))
    longest = max((abs(row.change_ns) for row in account.rows), default=0) or 1
    rows = sorted(account.rows, key=_part_order) if account.by == "part" else account.rows
    lines = [
        _line(words, row, decimals, longest)
        for words, row in zip(_names(account.by, rows), rows, strict=True)
    ]
    rest = account.rest
    if abs(rest.before_ns or 0) + abs(rest.after_ns or 0) > 0.5 * 10 ** (6 - decimals):
        lines.append(_line(REST, rest, decimals, longest, is_rest=True))
    total = Row(name="total", before_ns=account.before_ns, after_ns=account.after_ns)
    lines.append(_line("total", total, decimals, longest, is_total=True))
    return Table(
        name=account.by,
        title=title,
        aside=f"ms a step{'; ' + aside if aside else ''}",
        columns=(COLUMN_WORDS.get(account.by, account.by), "A", name, "change"),
        right=frozenset({1, 2, 3}),
        lines=tuple(lines),
        most=most,
        times=(1, 2, 3),
        decimals=decimals,
        is_quiet=account.by != "part" and longest < quiet_ns,
    )


def _names(by: str, rows: Sequence[Row]) -> list[str]:
    if by != "kernel":
        return [row_name(by, row.name) for row in rows]
    short = iter(told_apart([row.name for row in rows if row.name != OVERLAP]))
    return [row_name(by, row.name) if row.name == OVERLAP else next(short) for row in rows]


def _part_order(row: Row) -> int:
    return PARTS.index(row.name) if row.name in PARTS else len(PARTS)


def _line(
    words: str,
    row: Row,
    decimals: int,
    longest: int,
    *,
    is_total: bool = False,
    is_rest: bool = False,
) -> Line:
    return Line(
        cells=(words, *times_cells(row.before_ns, row.after_ns, decimals)),
        ends_ns=(row.before_ns or 0, row.after_ns or 0),
        change=0.0 if is_total else max(-1.0, min(1.0, row.change_ns / longest)),
        is_total=is_total,
        is_rest=is_rest,
        hint="" if row.name in words else row.name,
    )


def _device(comparison: Comparison, device: DeviceChange, name: str) -> Table:
    decimals = max(2, _decimals(device.before_ns, device.after_ns))
    longest = max((abs(one.change_ns) for one in device.changed), default=0) or 1
    lines = []
    for one in device.changed:
        first, second = (None if work is None else work.ns for work in (one.before, one.after))
        before, after, change = times_cells(first, second, decimals)
        work = f"{changed_name(one)} ({one.phase})" if one.phase else changed_name(one)
        lines.append(
            Line(
                cells=(change, before, after, calls_words(one), work, how_words(one)),
                ends_ns=(one.before_ns, one.after_ns),
                change=one.change_ns / longest,
                hint=_hint(one),
            )
        )
    busy = "device busy" if device.where == "device" else "operators, on the host"
    total = Row(name="total", before_ns=device.before_ns, after_ns=device.after_ns)
    for words, row in (
        (REST, device.rest),
        ("less what ran at once", device.overlap),
        (busy, total),
    ):
        longer = max(abs(row.before_ns or 0), abs(row.after_ns or 0))
        if longer and (words is busy or longer >= 0.5 * 10 ** (6 - decimals)):
            before, after, change = times_cells(row.before_ns, row.after_ns, decimals)
            cells = (change, before, after, "", words, "")
            ends = (row.before_ns or 0, row.after_ns or 0)
            lines.append(
                Line(cells=cells, ends_ns=ends, is_rest=words is not busy, is_total=words is busy)
            )
    whose = (
        f"rank {number_ranges(device.ranks)}"
        if len(device.ranks) < 2
        else f"the mean of ranks {number_ranges(device.ranks)}"
    )
    if comparison.before.num_ranks != comparison.after.num_ranks:
        whose = "each the mean of its own ranks"
    whose += "" if device.changed else "; no operator changed"
    return Table(
        name="changed",
        title=f"What changed on the {device.where}",
        aside=f"ms a step, {whose}",
        columns=("change", "A", name, "calls", "work", "how"),
        right=frozenset({0, 1, 2, 3}),
        lines=tuple(lines),
        most=12,
        wide=(4, 5),
        times=(1, 2, 0),
        decimals=decimals,
    )


def _hint(one: Changed) -> str:
    """Kernels and shapes of both sides."""
    told = []
    for word, work in (("before", one.before), ("after", one.after)):
        if work is not None:
            shapes = f" on {'; '.join(work.shapes)}" if work.shapes else ""
            told.append(f"{word}: {', '.join(work.kernels) or ', '.join(work.ops)}{shapes}")
    return " / ".join(told)


def _ranks(comparison: Comparison, name: str) -> Table:
    ranks = comparison.ranks
    if ranks is None:
        return _empty("ranks")
    decimals = 1
    lines = [
        Line(
            cells=(
                str(row.rank),
                *(
                    _ms(ns, decimals)
                    for ns in (row.before_ns, row.after_ns, row.wait_before_ns, row.wait_after_ns)
                ),
            )
        )
        for row in ranks.rows
    ]
    first = _late(ranks.late_before, any(row.wait_before_ns is not None for row in ranks.rows))
    second = _late(ranks.late_after, any(row.wait_after_ns is not None for row in ranks.rows))
    spreads = (_ms(ranks.spread_before_ns, decimals), _ms(ranks.spread_after_ns, decimals))
    lines.append(Line(cells=("spread", *spreads, "", ""), is_total=True))
    return Table(
        name="ranks",
        title="Ranks",
        aside=f"ms a step while profiled; own: all but waiting for others; late: {first} in A, "
        f"{second} in {name}",
        columns=("rank", "own A", name, "waiting A", name),
        right=frozenset({0, 1, 2, 3, 4}),
        lines=tuple(lines),
        most=16,
    )


def _late(ranks: Sequence[int], is_known: bool) -> str:
    return f"rank {number_ranges(ranks)}" if ranks else "none" if is_known else "not known"


def _memory(comparison: Comparison, name: str) -> Table:
    lines = []
    for rank, (first, second) in comparison.memory.items():
        change = (
            NOT_MEASURED
            if first is None or second is None
            else signed_number((second - first) / 1e9, 2)
        )
        cells = [NOT_MEASURED if value is None else gigabytes(value) for value in (first, second)]
        lines.append(Line(cells=(str(rank), *cells, change)))
    return Table(
        name="memory",
        title="Memory",
        aside="GB, the most that torch held on the rank's devices",
        columns=("rank", "A", name, "change"),
        right=frozenset({0, 1, 2, 3}),
        lines=tuple(lines),
        most=8,
    )


def _held(comparison: Comparison) -> Table:
    lines = [
        Line(
            cells=(
                one.code,
                STATUS_WORDS[one.status],
                (
                    f"{ratio(one.predicted)} ({ratio(one.predicted_low)} to "
                    f"{ratio(one.predicted_high)})"
                ),
                NOT_MEASURED if one.measured is None else interval_words(comparison.speedup),
                held_words(one),
            )
        )
        for one in comparison.held
    ]
    if comparison.predicted_together is not None:
        cells = (
            "all that are gone",
            "",
            ratio(comparison.predicted_together),
            interval_words(comparison.speedup),
            "",
        )
        lines.append(Line(cells=cells, is_total=True))
    return Table(
        name="held",
        title="What was predicted, and what it gave",
        aside="the findings of A, and those that are new",
        columns=("finding", "now", "predicted", "measured", "agrees"),
        right=frozenset(),
        lines=tuple(lines),
        most=10,
    )


def _knobs(comparison: Comparison, name: str) -> Table:
    return Table(
        name="knobs",
        title="Settings that differ",
        aside="",
        columns=("setting", "A", name),
        right=frozenset(),
        lines=tuple(
            Line(
                cells=(
                    knob.name,
                    *(
                        "not told" if value is None else value
                        for value in (knob.before, knob.after)
                    ),
                )
            )
            for knob in comparison.knobs
        ),
        most=20,
    )


def _empty(name: str) -> Table:
    return Table(name=name, title="", aside="", columns=(), right=frozenset(), lines=())


def _decimals(before_ns: float, after_ns: float) -> int:
    """As many as the shorter of the two needs."""
    return (
        digits_after_point(min(abs(before_ns), abs(after_ns)) / 1e6)
        if before_ns and after_ns
        else 2
    )


def times_cells(before_ns: int | None, after_ns: int | None, decimals: int) -> tuple[str, str, str]:
    """Before, after, and the change."""
    change = (after_ns or 0) - (before_ns or 0)
    return _ms(before_ns, decimals), _ms(after_ns, decimals), signed(change, decimals)


def chosen(table: Table) -> tuple[list[Line], int]:
    """The lines shown where there is little room, and how many are not: the rest then has them."""
    body = [line for line in table.lines if not line.is_total and not line.is_rest]
    ends = [line for line in table.lines if line.is_total or line.is_rest]
    if table.times is None:
        return [*body[: table.most], *ends], max(0, len(body) - table.most)
    least = 0.5 * 10 ** (6 - table.decimals)
    told = [line for line in body if max(map(abs, line.ends_ns or (0, 0))) >= least]
    kept = (
        told
        if len(told) <= table.most
        else [line for line in told if abs(line.change) >= LEAST_BAR][: table.most]
    )
    hidden = [line for line in body if line not in kept]
    return [*kept, *_with_rest(table, ends, hidden)], len(
        [line for line in told if line not in kept]
    )


def _with_rest(table: Table, ends: list[Line], hidden: list[Line]) -> list[Line]:
    """The last lines, the rest with what is hidden added to it."""
    rests = [line for line in ends if line.is_rest and REST in line.cells]
    before, after = (
        sum(line.ends_ns[side] for line in [*hidden, *rests] if line.ends_ns) for side in (0, 1)
    )
    others = [line for line in ends if line not in rests]
    if max(abs(before), abs(after)) < 0.5 * 10 ** (6 - table.decimals) or table.times is None:
        return others
    cells = [""] * len(table.columns)
    cells[table.wide[0]] = REST
    for place, cell in zip(table.times, times_cells(before, after, table.decimals), strict=True):
        cells[place] = cell
    return [Line(cells=tuple(cells), ends_ns=(before, after), is_rest=True), *others]


def _ms(ns: float | None, decimals: int) -> str:
    if ns is None:
        return NOT_MEASURED
    text = fixed(ns / 1e6, decimals)
    return text if text.strip("-0.") else text.lstrip("-")


def signed(ns: float, decimals: int) -> str:
    return signed_number(ns / 1e6, decimals)


def signed_number(value: float, decimals: int) -> str:
    text = fixed(abs(value), decimals)
    return text if float(text.replace(NBSP, "")) == 0 else f"{'-' if value < 0 else '+'}{text}"
