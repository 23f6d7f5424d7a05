"""The ranks of a job brought together: matched, their waits told from transfers, some of them replayed as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyses.job_comms import job_comms
from stepscope.analyses.lateness import lateness
from stepscope.analyses.ledger import ledger_of
from stepscope.analyses.matching import match
from stepscope.analyses.waits import with_waits
from stepscope.core.comms import Lateness, Ledger
from stepscope.core.comms_facts import CommsFacts
from stepscope.core.facts import RankFacts, Replayed
from stepscope.core.nccl import NcclLog
from stepscope.rules.case import Case
from stepscope.rules.crewbook import MOST_RANKS, crew_of, judge_crew, replayed
from stepscope.rules.proposal import Abstention
from stepscope.rules.rulebook import Judgement
from stepscope.rules.sure_bound import is_missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What the ranks of a job say together."""

    facts: Mapping[int, RankFacts]
    """By rank, with waiting told from moving bytes."""
    lateness: tuple[Lateness, ...]
    judgement: Judgement | None
    """None when the ranks could not be replayed together."""
    replayed: Replayed | None
    replayed_ranks: tuple[int, ...]
    notes: tuple[str, ...]
    comms: CommsFacts | None = None


def bring_together(
    facts: Sequence[RankFacts],
    ledgers: Sequence[Ledger],
    case_of_rank: Callable[[int], Case | None],
    step_ns: int | None,
    nccl: NcclLog | None = None,
) -> Together | None:
    """Match the ledgers and replay at most MOST_RANKS of the ranks; None when no rank recorded a collective."""
    if not ledgers:
        return None
    matched = match(ledgers)
    by_rank = {ledger.rank: ledger for ledger in ledgers}
    split = {f.rank: with_waits(f, by_rank[f.rank], matched) if f.rank in by_rank else f for f in facts}
    late = lateness(ledgers, matched)
    chosen = choose(late, [ledger.rank for ledger in ledgers])
    cases = {rank: case_of_rank(rank) for rank in chosen}
    usable = [rank for rank in chosen if (case := cases[rank]) is not None and case.recorded is not None]
    judged, played = None, None
    if usable:
        mine = [case for rank in usable if (case := cases[rank]) is not None]
        owned = [ledger_of(case.survey, rank) for case, rank in zip(mine, usable, strict=True)]
        crew = crew_of(mine, owned, ledgers, matched, step_ns, nccl)
        if crew is not None:
            played = replayed(crew, step_ns)
            judged = Judgement(abstentions=(_missed(played),)) if is_missed(played) else judge_crew(crew)
    if played is not None:
        split = {rank: replace(f, replayed=played) if f.replayed is not None else f for rank, f in split.items()}
    notes = list(matched.notes)
    if len(usable) < len(ledgers) and usable:
        notes.append(f"{len(usable)} of {len(ledgers)} ranks were replayed together: the latest, the earliest and some between")
    return Together(
        facts=split,
        lateness=late,
        judgement=judged,
        replayed=played,
        replayed_ranks=tuple(usable),
        notes=tuple(notes),
        comms=job_comms(list(split.values()), ledgers, matched, late, replayed=usable, nccl=nccl),
    )


def _missed(played: Replayed) -> Abstention:
    assert played.error is not None
    words = f"the ranks replayed together take {abs(played.error):.0%} {'more' if played.error > 0 else 'less'} than the step"
    return Abstention(
        code="what mends would give", needs=f"{words}: the recorded steps are not the run's usual ones; record others"
    )


def choose(late: Sequence[Lateness], ranks: Sequence[int]) -> list[int]:
    """The ranks to replay: all of a few, else from the latest to the earliest in even strides."""
    if len(ranks) <= MOST_RANKS:
        return sorted(ranks)
    ordered = sorted(late, key=lambda one: one.median_ns)
    places = np.unique(np.linspace(0, len(ordered) - 1, MOST_RANKS).round().astype(int))
    return sorted(ordered[place].rank for place in places.tolist())
