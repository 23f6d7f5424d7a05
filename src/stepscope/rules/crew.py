"""Crew: the ranks of a job as the rules about many ranks see them, with a replay of all of them to ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.core.comms import Collective, Lateness, Ledger, Matched
from stepscope.core.nccl import NcclLog
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import without_tasks
from stepscope.replay.graph import Graph
from stepscope.replay.team import with_graphs
from stepscope.replay.together import Team, play_together
from stepscope.rules.case import Case

TeamChange = Callable[[Team], Team]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Some ranks of a job (all of a small one), replayed together."""

    cases: tuple[Case, ...]
    """Each with a graph; in the order of `team.parts` and `ledgers`."""
    ledgers: tuple[Ledger, ...]
    matched: Matched
    lateness: tuple[Lateness, ...]
    team: Team
    """Of the unprofiled run."""
    pitch_ns: float
    num_ranks: int
    """Of the job as recorded; more than there are cases in a large one."""
    nccl: NcclLog | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(ledger.rank for ledger in self.ledgers)

    def speedup(self, changed: Team) -> float:
        """How much faster the job's step is with a changed team."""
        return self.pitch_ns / max(play_together(changed).pitch_ns, 1.0)

    def entries(self, place: int, wanted: Callable[[Collective], bool]) -> Bool:
        """Mask over a rank's ledger: the collectives of a wanted kind."""
        ledger = self.ledgers[place]
        chosen = np.array([wanted(kind) for kind in ledger.kinds], np.bool_)
        return chosen[ledger.kind] if len(ledger) else np.zeros(0, np.bool_)

    def tasks(self, place: int, entries: Bool) -> Bool:
        """Mask over a rank's tasks: those of these entries of its ledger."""
        events = self.ledgers[place].event[entries]
        mask: Bool = np.isin(self.team.parts[place].graph.task_event, events)
        return mask

    def per_step(self, place: int, entries: Bool) -> float:
        """How many of these entries a step has, over the steps that were recorded whole."""
        steps = self.ledgers[place].step
        inside = entries & (steps != NONE)
        seen = np.unique(steps[(steps != NONE)])
        return float(inside.sum()) / max(len(seen), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamProposal:
    """A fault of the job with its mend, and what the mend does to the team."""

    code: str
    bound: str
    summary: str
    action: str
    evidence: tuple[str, ...]
    ranks: tuple[int, ...]
    """The ranks at fault; all of them when it is the job's."""
    change: TeamChange
    cautious: TeamChange | None = None
    hopeful: TeamChange | None = None
    changes_numerics: bool = False


def without_collectives(team: Team, masks: Sequence[Bool]) -> Team:
    """The masked tasks of each rank are gone, and nobody waits in them."""
    parts = tuple(
        replace(part, graph=without_tasks(part.graph, mask), shared=np.where(mask, NONE, part.shared))
        for part, mask in zip(team.parts, masks, strict=True)
    )
    return replace(team, parts=parts)


def with_moving_ns(team: Team, masks: Sequence[Bool], new_ns: Callable[[Float64], Float64]) -> Team:
    """Moving the bytes of the masked tasks takes `new_ns` of what it takes."""
    moving, graphs = team.moving_ns.copy(), []
    for part, mask in zip(team.parts, masks, strict=True):
        numbers = np.unique(part.shared[mask & (part.shared != NONE)])
        moving[numbers] = new_ns(team.moving_ns[numbers])
        own = mask & (part.shared == NONE)
        graphs.append(replace(part.graph, task_ns=np.where(own, new_ns(part.graph.task_ns), part.graph.task_ns)))
    return replace(with_graphs(team, graphs), moving_ns=moving)


def with_rank(team: Team, place: int, graph: Graph) -> Team:
    """The team with another graph for one of its ranks."""
    return with_graphs(team, [graph if at == place else part.graph for at, part in enumerate(team.parts)])
