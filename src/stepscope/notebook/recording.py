"""A run's ranks, read for their tables: each trace once for all the tables that are wanted, and no table that is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.analyses.ledger import ledger_of
from stepscope.analyses.matching import match
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.run_known import run_facts
from stepscope.analyses.survey import Survey, device_of, survey
from stepscope.analyses.table_columns import Rows
from stepscope.analyses.table_device import copy_rows, kernel_rows
from stepscope.analyses.table_events import event_rows, launch_rows
from stepscope.analyses.table_job import collective_rows, finding_rows, meeting_rows, rank_rows, step_rows, window_rows
from stepscope.analyses.tables import TABLES
from stepscope.analyses.waits import with_waits
from stepscope.core.comms import Ledger, Matched
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import RankFacts
from stepscope.core.trace import TraceMeta
from stepscope.errors import InputError, StepscopeError
from stepscope.hardware.lookup import find_spec
from stepscope.notebook.arrow import ArrowTable, to_arrow
from stepscope.readers.inputs import Found, assign_ranks, find_sources
from stepscope.readers.remote import is_private
from stepscope.readers.sniff import read_trace
from stepscope.readers.source import Source
from stepscope.rules.job import measure_job
from stepscope.rules.untraced import diagnose_untraced
from stepscope.rules.verdict import diagnose
from stepscope.rules.workers import local_workers

MOST_KEPT = 2_000_000
"""Events that are kept between two questions, in all: about a gigabyte. Beyond that a trace is read again, from its cache."""

OF_EVENTS: dict[str, Callable[[Survey], Rows]] = {
    "events": event_rows,
    "kernels": kernel_rows,
    "launches": launch_rows,
    "copies": copy_rows,
}
"""Tables that a rank tells alone."""
COMPARED = frozenset({"collectives", "steps", "ranks"})
"""Tables for which the ranks are compared."""


@dataclass(slots=True, kw_only=True)
class _Rank:
    """What is kept of a rank while the others are read."""

    meta: TraceMeta
    rows: dict[str, Rows]
    ledger: Ledger | None = None
    facts: RankFacts | None = None
    rank: int = 0


@dataclass(slots=True, kw_only=True)
class Recording:
    """The traces that a path names."""

    found: Found
    step_ns: int | None
    use_cache: bool
    jobs: int = 1
    notes: list[str] = field(default_factory=list)
    _kept: dict[Source, Survey] = field(default_factory=dict)

    def diagnosis(self) -> Diagnosis:
        """As `stepscope diagnose` makes it."""
        found, run = self.found, None if self.found.run is None else run_facts(self.found.run)
        if not found.sources and run is not None:
            return diagnose_untraced(run, found.notes)
        self._refuse_nothing()
        # What only this process can read is read here.
        num = 1 if any(is_private(source.path) for source in found.sources) else min(self.jobs, len(found.sources))
        with local_workers(num) if num > 1 else nullcontext() as workers:
            job = measure_job(
                found.sources, logs=found.logs, run=run, workers=workers, step_ns=self.step_ns, use_cache=self.use_cache
            )
        return diagnose(replace(job, notes=(*found.notes, *job.notes)))

    def tables(self, names: Iterable[str], diagnosis: Callable[[], Diagnosis]) -> dict[str, ArrowTable]:
        """These tables, of all ranks."""
        wanted = list(dict.fromkeys(names))
        made: dict[str, ArrowTable] = {}
        if "findings" in wanted:
            made["findings"] = to_arrow(TABLES["findings"], [(None, finding_rows(diagnosis()))])
        ranks = self._read([name for name in wanted if name != "findings"]) if set(wanted) - {"findings"} else []
        for name in wanted:
            if name == "ranks":
                made[name] = to_arrow(TABLES[name], [(None, self._rank_rows(ranks))])
            elif name != "findings":
                made[name] = to_arrow(TABLES[name], [(rank.rank, rank.rows[name]) for rank in ranks])
        return made

    def _rank_rows(self, ranks: Sequence[_Rank]) -> Rows:
        facts = [rank.facts for rank in ranks if rank.facts is not None]
        return rank_rows([rank.meta for rank in ranks], facts, _ledgers(ranks), _match(ranks))

    def _read(self, names: Sequence[str]) -> list[_Rank]:
        """The ranks, by number, with the rows of these tables."""
        self._refuse_nothing()
        self.notes.clear()
        ranks = [self._rank(found, names) for found in self._surveys()]
        numbers, notes = assign_ranks([rank.meta for rank in ranks])
        self.notes += notes
        for rank, number in zip(ranks, numbers, strict=True):
            rank.rank = number
            rank.ledger = None if rank.ledger is None else replace(rank.ledger, rank=number)
            rank.facts = None if rank.facts is None else replace(rank.facts, rank=number)
        ranks.sort(key=lambda rank: (rank.rank, rank.meta.path))
        if COMPARED & set(names):
            _compare(ranks)
        return ranks

    def _rank(self, found: Survey, names: Sequence[str]) -> _Rank:
        rank = _Rank(meta=found.trace.meta, rows={name: OF_EVENTS[name](found) for name in names if name in OF_EVENTS})
        if COMPARED & set(names):
            rank.ledger = ledger_of(found, 0)
            rank.rows["collectives"] = collective_rows(found, rank.ledger)
        if {"steps", "ranks"} & set(names):
            rank.facts = measure_rank(found, 0, self._step_ns())
            rank.rows["steps"] = window_rows(found)
        return rank

    def _step_ns(self) -> int | None:
        run = self.found.run
        return self.step_ns if self.step_ns is not None or run is None else run_facts(run).step_ns

    def _surveys(self) -> Iterator[Survey]:
        """Every trace that can be read; the others are noted."""
        problems = []
        for source in self.found.sources:
            try:
                yield self._survey(source)
            except StepscopeError as problem:
                problems.append(str(problem))
        if len(problems) == len(self.found.sources):
            raise InputError("\n  ".join(["no trace could be read:", *problems[:8]]) if len(problems) > 1 else problems[0])
        self.notes += [f"left out: {problem}" for problem in problems]

    def _survey(self, source: Source) -> Survey:
        if source in self._kept:
            return self._kept[source]
        trace = read_trace(source, use_cache=self.use_cache)
        device = device_of(trace)
        found = survey(trace, None if device is None else find_spec(device))
        if sum(len(one.trace) for one in self._kept.values()) + len(trace) <= MOST_KEPT:
            self._kept[source] = found
        return found

    def _refuse_nothing(self) -> None:
        if self.found.sources:
            return
        if self.found.run is not None:
            told = "the profiler recorded no step, so that there are no events to ask about"
            raise InputError(f"{self.found.run.path}: {told}. `stepscope diagnose` says what its own clock told")
        raise InputError(f"{self.found.logs[0].label}: a log of NCCL and no trace. Name the run's traces beside it")


def open_recording(paths: Sequence[str | Path], *, step_ns: int | None, use_cache: bool, jobs: int = 1) -> Recording:
    """Find what the paths name; nothing is read yet."""
    found = find_sources(paths)
    return Recording(found=found, step_ns=step_ns, use_cache=use_cache, jobs=jobs, notes=list(found.notes))


def _ledgers(ranks: Sequence[_Rank]) -> list[Ledger]:
    """Of the ranks that recorded collectives."""
    return [rank.ledger for rank in ranks if rank.ledger is not None and len(rank.ledger)]


def _match(ranks: Sequence[_Rank]) -> Matched | None:
    """The ranks' collectives matched; None for one rank, or where two traces tell the same rank."""
    ledgers = _ledgers(ranks)
    apart = len({ledger.rank for ledger in ledgers}) == len(ledgers)
    return match(ledgers) if len(ledgers) > 1 and apart else None


def _compare(ranks: Sequence[_Rank]) -> None:
    """Tell waiting from moving bytes, on every rank whose collectives were matched."""
    matched = _match(ranks)
    for rank in ranks:
        assert rank.ledger is not None
        mine = matched if matched is not None and rank.rank in matched.of else None
        rank.rows["collectives"] = {**rank.rows["collectives"], **meeting_rows(rank.ledger, mine)}
        if rank.facts is not None:
            facts = rank.facts if mine is None else with_waits(rank.facts, rank.ledger, mine)
            rank.facts = facts
            rank.rows["steps"] = {**rank.rows["steps"], **step_rows(facts)}
