"""What every report of a comparison shows: its sentences, and its tables as blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct

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
    calls_words,
    changed_name,
    distinct_kernels,
    headline,
    held_words,
    host_words,
    how_words,
    interval_words,
    part_names,
    ratio,
    row_name,
    step_words,
    sure_words,
    throughput_words,
)
from stepscope.report.document.blocks import Bar, Cell, Column, Section, Table, more, numbers
from stepscope.report.words import NBSP, digits_after_point, fixed, gigabytes, signed

ACCOUNTS = {
    "part": ("Where the step goes", "the parts sum to the step"),
    "phase": ("By phase", ""),
    "category": ("By kind of kernel", ""),
    "kernel": ("By kernel", ""),
    "module": ("By module", "its own work, without the modules inside it"),
    "collective": ("Collectives", "from each rank's arrival, waits are in it"),
}
COLUMN_WORDS = {"category": "kind"}
MAX_LINES = {"part": len(PARTS) + 2, "phase": 6}
"""Lines of an account where there is little room, if not 8."""
MAX_WHOLE = 500
"""Lines of a table on the page."""
MAX_HINT = 600
NAMES = 44
LONG = 60
"""Cells of a name, and of work with how it changed."""
NOT_MEASURED = "-"
REST = "all else"
MIN_BAR = 0.02
"""Share of a table's longest change: a row that changed by less has no line of its own where there
are many."""
QUIET = 0.005
"""Share of the longer step: changes below this in all rows of a table are not worth a table in a
terminal."""
OPEN = ("runs", "part", "changed", "held")
"""Tables that are shown where the others open with a click."""

TableRow = tuple[str | Cell | Bar, ...]


class ComparedTable(Struct, frozen=True, kw_only=True):
    """One table of a comparison, under its title."""

    name: str
    section: Section
    is_quiet: bool = False
    """Whether nothing in it changed by a share of the step that matters."""


class ComparisonPage(Struct, frozen=True, kw_only=True):
    """One comparison, ready to be drawn."""

    title: str
    headline: str
    facts: tuple[str, ...]
    warnings: tuple[str, ...]
    tables: tuple[ComparedTable, ...]
    notes: tuple[str, ...]


def page_of(comparison: Comparison, name: str, *, is_whole: bool = False) -> ComparisonPage:
    """`name` is the second run's letter. `is_whole`: there is room for every line, and for bars."""
    facts = [f"A: {comparison.before.label}", f"{name}: {comparison.after.label}"]
    facts += [words for words in (sure_words(comparison), host_words(comparison, name)) if words]
    warnings = []
    if comparison.unequal:
        unequal = "; ".join(comparison.unequal)
        end = "" if unequal.endswith("?") else "."
        warnings.append(f"A and {name} do not do the same work: {unequal}{end}")
        warnings.append(
            throughput_words(comparison, name)
            or "The ratio of their steps says nothing about which of them trains faster."
        )
    return ComparisonPage(
        title=f"{name} against A",
        headline=headline(comparison, name),
        facts=tuple(facts),
        warnings=tuple(warnings),
        tables=tuple(_Tables(comparison, name, is_whole).all()),
        notes=comparison.notes,
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A time before and after, and what it is of."""

    name: Cell
    before_ns: int | None
    after_ns: int | None
    calls: str = ""

    @property
    def change_ns(self) -> int:
        return (self.after_ns or 0) - (self.before_ns or 0)

    def has_digits(self, decimals: int) -> bool:
        """Whether either time is more than nothing once it is rounded."""
        longer = max(abs(self.before_ns or 0), abs(self.after_ns or 0))
        return longer >= 0.5 * 10.0 ** (6 - decimals)


class _Times(Struct, frozen=True, kw_only=True):
    """The lines of a table of times, with what ends it."""

    lines: Sequence[_Line]
    rest: Row
    """What has no line."""
    last: Sequence[_Line]
    decimals: int
    most: int

    @property
    def longest_ns(self) -> int:
        return max((abs(line.change_ns) for line in self.lines), default=0) or 1

    def chosen(self, most: int) -> tuple[list[_Line], list[_Line], int]:
        """The lines shown, those after them, and how many are not: the rest then has them."""
        visible = sum(line.has_digits(self.decimals) for line in self.lines)
        least_ns = 0.0 if visible <= most else MIN_BAR * self.longest_ns
        shown: list[_Line] = []
        before_ns, after_ns = self.rest.before_ns or 0, self.rest.after_ns or 0
        for line in self.lines:
            is_long = line.has_digits(self.decimals) and abs(line.change_ns) >= least_ns
            if is_long and len(shown) < most:
                shown.append(line)
            else:
                before_ns += line.before_ns or 0
                after_ns += line.after_ns or 0
        rest = _Line(Cell(REST, "quiet"), before_ns, after_ns)
        rests = [rest] if rest.has_digits(self.decimals) else []
        return shown, [*rests, *self.last], visible - len(shown)


@dataclass(frozen=True, slots=True)
class _Tables:
    """Makes the tables of one comparison."""

    comparison: Comparison
    name: str
    is_whole: bool

    def all(self) -> Iterator[ComparedTable]:
        """Tables that have lines."""
        accounts = self.comparison.accounts
        yield self._runs()
        if "part" in accounts:
            yield self._account("part", accounts["part"])
        yield from self._device()
        for by in ("phase", "category", "kernel", "module", "collective"):
            if by in accounts:
                yield self._account(by, accounts[by])
        yield from self._ranks()
        yield from self._memory()
        yield from self._held()
        yield from self._knobs()

    def _runs(self) -> ComparedTable:
        rows = []
        for letter, run in (("A", self.comparison.before), (self.name, self.comparison.after)):
            peak = NOT_MEASURED
            if run.peak_bytes is not None:
                peak = f"{gigabytes(run.peak_bytes)}{NBSP}GB"
            num_ranks = str(run.num_ranks or NOT_MEASURED)
            rows.append((letter, step_words(run), run.bound, num_ranks, peak))
        columns = (
            Column(title="run"),
            *_names("step"),
            Column(title="bound"),
            *numbers("ranks", "peak memory"),
        )
        return self._listed("runs", "Runs", columns, rows, most=2)

    def _account(self, by: str, account: Account) -> ComparedTable:
        title, aside = ACCOUNTS[by]
        is_part = by == "part"
        rows = sorted(account.rows, key=_part_order) if is_part else account.rows
        times = _Times(
            lines=[
                _Line(_named(words, row.name), row.before_ns, row.after_ns)
                for words, row in zip(self._row_names(by, rows), rows, strict=True)
            ],
            rest=account.rest,
            last=[_Line(Cell("total", "strong"), account.before_ns, account.after_ns)],
            decimals=max(1, _decimals(account.before_ns, account.after_ns)),
            most=MAX_LINES.get(by, 8),
        )
        titles = (COLUMN_WORDS.get(by, by), "A", self.name, "change")
        section = self._timed(
            by,
            title,
            f"ms a step{'; ' + aside if aside else ''}",
            (*_names(titles[0]), *numbers(*titles[1:])),
            times,
        )
        longer_ns = 1e6 * max(
            self.comparison.before.step_ms or 0.0, self.comparison.after.step_ms or 0.0
        )
        is_quiet = not is_part and times.longest_ns < QUIET * longer_ns
        return ComparedTable(name=by, section=section, is_quiet=is_quiet)

    def _row_names(self, by: str, rows: Sequence[Row]) -> list[str]:
        if by == "part":
            names = part_names(self.comparison)
            return [names.get(row.name, row_name(row.name)) for row in rows]
        if by != "kernel":
            return [row_name(row.name) for row in rows]
        short = iter(distinct_kernels([row.name for row in rows if row.name != OVERLAP]))
        return [row_name(row.name) if row.name == OVERLAP else next(short) for row in rows]

    def _device(self) -> Iterator[ComparedTable]:
        device = self.comparison.device
        if device is None:
            return
        decimals = max(2, _decimals(device.before_ns, device.after_ns))
        overlap = _Line(
            Cell("less what ran at once", "quiet"),
            device.overlap.before_ns,
            device.overlap.after_ns,
        )
        last = [overlap] if overlap.has_digits(decimals) else []
        if device.before_ns or device.after_ns:
            busy = "device busy" if device.where == "device" else "operators, on the host"
            last.append(_Line(Cell(busy, "strong"), device.before_ns, device.after_ns))
        lines = list(map(_changed_line, self.comparison.changed))
        if lines or last:
            columns = (
                *numbers("change", "A", self.name, "calls"),
                Column(title="work, and how it changed", fit="shorten", most=LONG),
            )
            section = self._timed(
                "changed",
                f"What changed on the {device.where}",
                f"ms a step, {self._whose(device)}",
                columns,
                _Times(lines=lines, rest=device.rest, last=last, decimals=decimals, most=12),
            )
            yield ComparedTable(name="changed", section=section)

    def _whose(self, device: DeviceChange) -> str:
        if self.comparison.before.num_ranks != self.comparison.after.num_ranks:
            whose = "each the mean of its own ranks"
        elif len(device.ranks) < 2:
            whose = f"rank {number_ranges(device.ranks)}"
        else:
            whose = f"the mean of ranks {number_ranges(device.ranks)}"
        return whose if self.comparison.changed else f"{whose}; no operator changed"

    def _ranks(self) -> Iterator[ComparedTable]:
        ranks = self.comparison.ranks
        if ranks is None:
            return
        rows = [
            (
                str(row.rank),
                _ms(row.before_ns, 1),
                _ms(row.after_ns, 1),
                _ms(row.wait_before_ns, 1),
                _ms(row.wait_after_ns, 1),
            )
            for row in ranks.rows
        ]
        first = _late(ranks.late_before, any(row.wait_before_ns is not None for row in ranks.rows))
        second = _late(ranks.late_after, any(row.wait_after_ns is not None for row in ranks.rows))
        spreads = (_ms(ranks.spread_before_ns, 1), _ms(ranks.spread_after_ns, 1))
        yield self._listed(
            "ranks",
            "Ranks",
            numbers("rank", "own A", self.name, "waiting A", self.name),
            rows,
            aside="ms a step while profiled; own: all but waiting for others; "
            f"late: {first} in A, {second} in {self.name}",
            most=16,
            last=_strong("spread", *spreads, "", ""),
        )

    def _memory(self) -> Iterator[ComparedTable]:
        rows = []
        for row in self.comparison.memory:
            before, after, change = row.before_bytes, row.after_bytes, NOT_MEASURED
            if before is not None and after is not None:
                change = signed((after - before) / 1e9, 2)
            sizes = (NOT_MEASURED if size is None else gigabytes(size) for size in (before, after))
            rows.append((str(row.rank), *sizes, change))
        if rows:
            columns = numbers("rank", "A", self.name, "change")
            aside = "GB, the most that torch held on the rank's devices"
            yield self._listed("memory", "Memory", columns, rows, aside=aside, most=8)

    def _held(self) -> Iterator[ComparedTable]:
        comparison = self.comparison
        measured = interval_words(comparison.speedup)
        rows = []
        for held in comparison.held:
            low, high = ratio(held.predicted_low), ratio(held.predicted_high)
            predicted = f"{ratio(held.predicted)} ({low} to {high})"
            given = NOT_MEASURED if held.measured is None else measured
            row = (held.code, held.status, predicted, given, held_words(held))
            rows.append(row)
        last: tuple[Cell, ...] = ()
        if comparison.predicted_together is not None:
            together = ratio(comparison.predicted_together)
            last = _strong("all that are gone", "", together, measured, "")
        if rows or last:
            yield self._listed(
                "held",
                "What was predicted, and what it gave",
                _names("finding", "now", "predicted", "measured", "agrees"),
                rows,
                aside="the findings of A, and those that are new",
                most=10,
                last=last,
            )

    def _knobs(self) -> Iterator[ComparedTable]:
        rows = []
        for knob in self.comparison.knobs:
            values = (
                "not recorded" if value is None else value for value in (knob.before, knob.after)
            )
            rows.append((knob.name, *values))
        if rows:
            columns = _names("setting", "A", self.name)
            yield self._listed("knobs", "Settings that differ", columns, rows, most=20)

    def _timed(
        self, name: str, title: str, aside: str, columns: tuple[Column, ...], times: _Times
    ) -> Section:
        """Each line in the order of its columns; on the page with a bar of its change."""
        shown, last, num_left_out = times.chosen(self._most(times.most))
        rows: list[TableRow] = [_cells(line, columns, times.decimals) for line in [*shown, *last]]
        if self.is_whole:
            columns = (*columns, Column(title="less / more time"))
            bars: list[Bar | str] = [
                Bar(line.change_ns / times.longest_ns, "change") for line in shown
            ]
            bars += [""] * len(last)
            rows = [(*row, bar) for row, bar in zip(rows, bars, strict=True)]
        return self._section(name, title, aside, columns, rows, num_left_out)

    def _listed(
        self,
        name: str,
        title: str,
        columns: tuple[Column, ...],
        rows: Sequence[TableRow],
        *,
        most: int,
        aside: str = "",
        last: TableRow = (),
    ) -> ComparedTable:
        """The first rows, and the last where there is one."""
        most = self._most(most)
        shown = [*rows[:most], *([last] if last else [])]
        section = self._section(name, title, aside, columns, shown, len(rows) - most)
        return ComparedTable(name=name, section=section)

    def _section(
        self,
        name: str,
        title: str,
        aside: str,
        columns: tuple[Column, ...],
        rows: Sequence[TableRow],
        num_left_out: int,
    ) -> Section:
        where = ", in --format json" if self.is_whole else ", in --format json and html"
        return Section(
            title=title,
            aside=aside,
            blocks=(Table(columns=columns, rows=tuple(rows)), *more(num_left_out, "line", where)),
            is_folded=name not in OPEN,
        )

    def _most(self, most: int) -> int:
        return MAX_WHOLE if self.is_whole else most


def _names(*titles: str) -> tuple[Column, ...]:
    """Columns of names, which give way."""
    return tuple(Column(title=title, fit="shorten", most=NAMES) for title in titles)


def _strong(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text, "strong") for text in texts)


def _named(words: str, name: str) -> Cell:
    """Cell with the whole name as a hint, where it is shown short."""
    return Cell(words, hint="" if name in words else name[:MAX_HINT])


def _cells(line: _Line, columns: tuple[Column, ...], decimals: int) -> tuple[Cell, ...]:
    """Names stand first among short columns, last after the calls."""
    tone = line.name.tone
    before, after, change, calls = (
        Cell(text, tone)
        for text in (
            _ms(line.before_ns, decimals),
            _ms(line.after_ns, decimals),
            signed(line.change_ns / 1e6, decimals),
            line.calls,
        )
    )
    if columns[0].right:
        return change, before, after, calls, line.name
    return line.name, before, after, change


def _changed_line(changed: Changed) -> _Line:
    before, after = (None if work is None else work.ns for work in (changed.before, changed.after))
    work = changed_name(changed) + (f" ({changed.phase})" if changed.phase else "")
    name = Cell(work, note=how_words(changed), hint=_hint(changed)[:MAX_HINT])
    return _Line(name, before, after, calls_words(changed))


def _hint(changed: Changed) -> str:
    """Kernels and shapes of both sides."""
    sides = []
    for word, work in (("before", changed.before), ("after", changed.after)):
        if work is not None:
            shapes = f" on {'; '.join(work.shapes)}" if work.shapes else ""
            sides.append(f"{word}: {', '.join(work.kernels) or ', '.join(work.ops)}{shapes}")
    return " / ".join(sides)


def _part_order(row: Row) -> int:
    return PARTS.index(row.name) if row.name in PARTS else len(PARTS)


def _late(ranks: Sequence[int], is_known: bool) -> str:
    if ranks:
        return f"rank {number_ranges(ranks)}"
    return "none" if is_known else "not known"


def _decimals(before_ns: float, after_ns: float) -> int:
    """Decimals that the shorter of the two needs."""
    if not before_ns or not after_ns:
        return 2
    return digits_after_point(min(abs(before_ns), abs(after_ns)) / 1e6)


def _ms(ns: float | None, decimals: int) -> str:
    if ns is None:
        return NOT_MEASURED
    text = fixed(ns / 1e6, decimals)
    return text if text.strip("-0.") else text.lstrip("-")
