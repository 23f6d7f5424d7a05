"""The tables of a run.

Each trace is read once for all the tables that are wanted, and no table is made that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stepscope.analyses.collectives.matching import match
from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.collectives.waits import with_waits
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import RankContext
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.facts import RankFacts
from stepscope.core.timings import counted
from stepscope.core.trace import TraceMeta
from stepscope.errors import InputError, StepscopeError
from stepscope.pipeline.recording import Recording
from stepscope.readers.inputs import assign_ranks
from stepscope.tables.arrow import ArrowTable, to_arrow
from stepscope.tables.rows.columns import TABLES, Rows
from stepscope.tables.rows.device import copy_rows, kernel_rows
from stepscope.tables.rows.events import event_rows, launch_rows
from stepscope.tables.rows.job import (
    collective_rows,
    finding_rows,
    meeting_rows,
    rank_rows,
    step_rows,
    window_rows,
)

OF_EVENTS: dict[str, Callable[[RankContext], Rows]] = {
    "events": event_rows,
    "kernels": kernel_rows,
    "launches": launch_rows,
    "copies": copy_rows,
}
"""Tables that need one rank alone."""
COMPARED = frozenset({"collectives", "steps", "ranks"})
"""Tables for which the ranks are compared."""


@dataclass(slots=True, kw_only=True)
class _Rank:
    """What is kept of a rank while the others are read."""

    meta: TraceMeta
    rows: dict[str, Rows]
    collective_records: CollectiveRecords | None = None
    facts: RankFacts | None = None
    rank: int = 0


class RunTables:
    """The tables of a recording; built when they are asked for."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.notes = list(recording.inputs.notes)

    def build(self, names: Iterable[str]) -> dict[str, ArrowTable]:
        """Build these tables, of all ranks."""
        wanted = list(dict.fromkeys(names))
        built: dict[str, ArrowTable] = {}
        if "findings" in wanted:
            built["findings"] = to_arrow(
                TABLES["findings"], [(None, finding_rows(self._recording.diagnosis))]
            )
        of_traces = [name for name in wanted if name != "findings"]
        ranks = self._read(of_traces) if of_traces else []
        for name in of_traces:
            if name == "ranks":
                built[name] = to_arrow(TABLES[name], [(None, self._rank_rows(ranks))])
            else:
                built[name] = to_arrow(
                    TABLES[name], [(rank.rank, rank.rows[name]) for rank in ranks]
                )
        return built

    def _rank_rows(self, ranks: Sequence[_Rank]) -> Rows:
        facts = [rank.facts for rank in ranks if rank.facts is not None]
        return rank_rows(
            [rank.meta for rank in ranks], facts, _collective_records(ranks), _match(ranks)
        )

    def _read(self, names: Sequence[str]) -> list[_Rank]:
        """The ranks, by number, with the rows of these tables."""
        self._recording.refuse_untraced("Tables are made of traces")
        self.notes.clear()
        ranks = [self._rank(context, names) for context in self._contexts()]
        numbers, notes = assign_ranks([rank.meta for rank in ranks])
        self.notes += notes
        for rank, number in zip(ranks, numbers, strict=True):
            rank.rank = number
            if rank.collective_records is not None:
                rank.collective_records = replace(rank.collective_records, rank=number)
            if rank.facts is not None:
                rank.facts = replace(rank.facts, rank=number)
        ranks.sort(key=lambda rank: (rank.rank, rank.meta.path))
        if COMPARED & set(names):
            _compare(ranks)
        return ranks

    def _rank(self, context: RankContext, names: Sequence[str]) -> _Rank:
        rank = _Rank(
            meta=context.trace.meta,
            rows={name: OF_EVENTS[name](context) for name in names if name in OF_EVENTS},
        )
        if COMPARED & set(names):
            rank.collective_records = collective_records_of(context, 0)
            rank.rows["collectives"] = collective_rows(context, rank.collective_records)
        if {"steps", "ranks"} & set(names):
            rank.facts = measure_rank(context, 0, self._recording.step_ns)
            rank.rows["steps"] = window_rows(context)
        return rank

    def _contexts(self) -> Iterator[RankContext]:
        """Every trace that can be read; the others are noted."""
        problems = []
        sources = self._recording.inputs.sources
        for source in counted("tables", sources, len(sources)):
            try:
                yield self._recording.context(source)
            except StepscopeError as problem:
                problems.append(str(problem))
        if len(problems) == len(sources):
            if len(problems) == 1:
                raise InputError(problems[0])
            raise InputError("\n  ".join(["no trace could be read:", *problems[:8]]))
        self.notes += [f"left out: {problem}" for problem in problems]


def _collective_records(ranks: Sequence[_Rank]) -> list[CollectiveRecords]:
    """Records of the ranks that recorded collectives."""
    return [
        rank.collective_records
        for rank in ranks
        if rank.collective_records is not None and len(rank.collective_records)
    ]


def _match(ranks: Sequence[_Rank]) -> Matched | None:
    """The ranks' collectives matched.

    None for one rank, or where two traces are of the same rank.
    """
    rank_records = _collective_records(ranks)
    are_distinct = len({records.rank for records in rank_records}) == len(rank_records)
    return match(rank_records) if len(rank_records) > 1 and are_distinct else None


def _compare(ranks: Sequence[_Rank]) -> None:
    """Separate waiting from transfer, on every rank whose collectives were matched."""
    matched = _match(ranks)
    for rank in ranks:
        assert rank.collective_records is not None
        # Without any of its own, a second trace of a rank would be given the first one's.
        mine = matched if len(rank.collective_records) else None
        if mine is not None and rank.rank not in mine.of:
            mine = None
        rank.rows["collectives"] = {
            **rank.rows["collectives"],
            **meeting_rows(rank.collective_records, mine),
        }
        if rank.facts is not None:
            if mine is not None:
                rank.facts = with_waits(rank.facts, rank.collective_records, mine)
            rank.rows["steps"] = {**rank.rows["steps"], **step_rows(rank.facts)}
