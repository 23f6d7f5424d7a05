"""The collectives of a crew as messages: their tasks, sizes and times, and what a size costs on this job's own link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepscope.analyses.nesting import ancestor_with
from stepscope.core.comms import Collective
from stepscope.core.trace import NONE, Bool, Float64, Int64
from stepscope.replay.together import Team
from stepscope.rules.crew import Crew

SLOWEST_LINK_BYTES_PER_NS = 1.25
"""10 Gb/s Ethernet, the slowest network that ranks are put on: assumed of a link whose messages are too small to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """A rank's collectives of some kind that are tasks of its graph, in launch order."""

    task: Int64
    number: Int64
    """Of the collective; NONE where no other rank takes part in the replay."""
    bytes: Float64
    """NaN where not recorded."""
    kind: tuple[Collective, ...]
    step: Int64

    def __len__(self) -> int:
        return len(self.task)


def messages(crew: Crew, place: int, wanted: Callable[[Collective], bool]) -> Messages:
    """A rank's messages of a wanted kind."""
    ledger, part = crew.ledgers[place], crew.team.parts[place]
    kind_of = dict(zip(ledger.event.tolist(), ledger.kind.tolist(), strict=True))
    task = np.flatnonzero(crew.tasks(place, crew.entries(place, wanted)))
    kinds = tuple(ledger.kinds[kind_of[event]] for event in part.graph.task_event[task].tolist())
    return Messages(
        task=task,
        number=part.shared[task],
        bytes=np.array([np.nan if kind.bytes is None else kind.bytes for kind in kinds], np.float64),
        kind=kinds,
        step=part.graph.task_step[task],
    )


def times_ns(team: Team, place: int, found: Messages) -> Float64:
    """How long each message's bytes move, from the moment all have arrived."""
    own = team.parts[place].graph.task_ns[found.task]
    return np.where(found.number == NONE, own, team.moving_ns[np.maximum(found.number, 0)] if len(team.moving_ns) else own)


def call_of_task(crew: Crew, place: int) -> Int64:
    """Per task, the call that launched it."""
    graph = crew.team.parts[place].graph
    return np.repeat(np.arange(len(graph.call_event)), np.diff(graph.call_first))


def launched_inside(crew: Crew, place: int, names: Callable[[str], bool]) -> Bool:
    """Mask over a rank's tasks: launched inside a host range whose name is wanted."""
    found, graph = crew.cases[place].survey, crew.team.parts[place].graph
    wanted = np.array([names(name) for name in found.trace.names], np.bool_)[found.trace.name] & ~found.trace.device_work
    inside: Bool = ancestor_with(found.links.parent, graph.call_event, wanted) != NONE
    return inside[call_of_task(crew, place)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """T = alpha + bytes / beta."""

    alpha_ns: float
    beta_bytes_per_ns: float
    measured: bool
    """Large enough messages were seen to tell beta; else it is the least that it can be."""

    def of(self, size_bytes: float) -> float:
        return self.alpha_ns + size_bytes / self.beta_bytes_per_ns


def cost_of(size_bytes: Float64, took_ns: Float64) -> Cost | None:
    """The line through messages' times by relative error, so that small ones count as much (metrics: alpha-beta).

    Where even the largest message spends less time on its bytes than on its start, the slope is noise. Then the link is taken to
    be no faster than a message has shown it to be, nor slower than SLOWEST_LINK_BYTES_PER_NS.
    """
    good = (size_bytes > 0) & (took_ns > 0)
    size, took = size_bytes[good], took_ns[good]
    if len(size) == 0:
        return None
    if len(np.unique(size)) > 1:
        rows = np.stack([1.0 / took, size / took], axis=1)
        (alpha, slope), *_ = np.linalg.lstsq(rows, np.ones(len(took)), rcond=None)
        if alpha >= 0 and slope * float(size.max()) > alpha:
            return Cost(alpha_ns=float(alpha), beta_bytes_per_ns=1.0 / float(slope), measured=True)
    beta = max(SLOWEST_LINK_BYTES_PER_NS, float((size / took).max()))
    return Cost(alpha_ns=max(float(np.median(took - size / beta)), 0.0), beta_bytes_per_ns=beta, measured=False)
