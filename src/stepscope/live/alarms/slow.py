"""Steps that have become longer: on which ranks, and since when.

Each rank's own time, the step without its waits for other ranks, is a stream with a past of its own
(level.py). Where ranks wait for one another, the exchange of gradients is a stream by itself: all
of them share it, and it wanders most where others use the machine. Ranks that rise together are one
trouble: some of them are late and keep the others waiting; all of them are a slower job. cause.py
says what it is that takes longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from stepscope.live.alarms.cause import LATER, HostUse, host_use, late_trouble, slow_trouble
from stepscope.live.alarms.episodes import Trouble, over
from stepscope.live.alarms.level import LASTS_S, Level
from stepscope.live.alarms.steps import JobStep

PATIENCE_S = 2.0
"""Seconds from the first rank's rise until the others have had their time."""
LATE_FROM_START, NUM_FROM_START = 0.25, 60
"""A share of a step, and steps: a rank that was late before there was a past to compare with."""
FEW_FROM_START = 20
"""Steps that are enough, where they are so long that they took twice LASTS_S."""
APART_S, APART_PER_RANK_S = 0.02, 0.0005
"""Seconds between two steps that are looked at: of 2 ms steps every tenth is enough, and of 500
ranks four a second."""
NUM_KEPT, NUM_SAMPLES, NUM_LENGTHS = 2_048, 128, 40
EXCHANGE, UNQUEUED = -1, -2
"""Streams of what ranks exchange, beside those of the ranks: as it is, and without what threads
were queued for cores meanwhile, by which it wanders where others use the machine."""


class SlowSteps:
    """Takes the job's steps; says which ranks have become slower, and that they have recovered."""

    def __init__(self) -> None:
        self._levels: dict[int, Level] = {}
        """Levels by rank; and of EXCHANGE and UNQUEUED."""
        self._steps: deque[JobStep] = deque(maxlen=NUM_KEPT)
        self._samples: dict[int, deque[HostUse]] = {}
        self._hosts: dict[int, str] = {}
        self._told: list[tuple[Trouble, tuple[int, ...]]] = []
        """Troubles with all streams that rose with them, also of ranks that only seemed slower."""
        self._lengths: deque[int] = deque(maxlen=NUM_LENGTHS)
        self._num_coupled = 0
        self._from_start: Trouble | None = None
        self._has_compared = False

    def add_samples(self, rank: int, samples: Sequence[tuple[float, dict[str, Any]]]) -> None:
        kept = self._samples.setdefault(rank, deque(maxlen=NUM_SAMPLES))
        kept.extend(host_use(at_s, sample) for at_s, sample in samples)

    def add_host(self, rank: int, host: object) -> None:
        if isinstance(host, str):
            self._hosts[rank] = host

    def add(self, steps: Sequence[JobStep]) -> list[Trouble]:
        ended: list[Trouble] = []
        for step in steps:
            apart_s = max(APART_S, APART_PER_RANK_S * len(step.ranks))
            if self._steps and step.at_s - self._steps[-1].at_s < apart_s:
                continue
            if self._steps and not _is_same_job(self._steps[-1], step):
                ended += [over(trouble, step.at_s) for trouble, _ in self._told]
                self._begin_anew()
            self._steps.append(step)
            self._num_coupled += step.is_coupled
            self._lengths.append(max(part.length for part in step.ranks.values()))
            for stream, ns in self._streams(step).items():
                level = self._levels.setdefault(stream, Level(self._least))
                level.add(ns, step.at_s)
        if not steps:
            return []
        return [*ended, *self._ended(), *self._began(), *self._compared()]

    def _streams(self, step: JobStep) -> dict[int, float]:
        """What each rank took by itself; and what all of them share, which is the same for each."""
        if not step.is_coupled:
            return {rank: part.own for rank, part in step.ranks.items()}
        streams: dict[int, float] = {rank: part.outside for rank, part in step.ranks.items()}
        exchange = min(part.exchange for part in step.ranks.values())
        latest = [uses[-1].queued or 0.0 for uses in self._samples.values() if uses]
        queued = fmean(latest) * self._lengths[-1] if latest else 0.0
        return {**streams, EXCHANGE: exchange, UNQUEUED: max(exchange - queued, 0.0)}

    def _least(self, _: float) -> float:
        """Rise that a stream must have: the step is the measure, not the part of it."""
        return LATER * median(self._lengths)

    def _begin_anew(self) -> None:
        self._levels, self._told = {}, []
        self._steps.clear()
        self._lengths.clear()
        self._num_coupled, self._from_start, self._has_compared = 0, None, False

    def _began(self) -> list[Trouble]:
        known = {stream for _, risen in self._told for stream in risen}
        unknown = {key: level for key, level in self._levels.items() if key not in known}
        rises = [level.rise for level in unknown.values() if level.rise is not None]
        if not rises:
            return []
        first_s = min(rise.since_s for rise in rises)
        waited_s = self._steps[-1].at_s - first_s
        has_all = all(level.rise for key, level in unknown.items() if key >= 0)
        if not has_all and waited_s < LASTS_S + PATIENCE_S:
            return []
        risen = tuple(key for key, level in unknown.items() if level.is_rising)
        ranks = tuple(self._steps[-1].ranks) if min(risen) < 0 else risen
        trouble = slow_trouble(ranks, first_s, self._steps, self._samples, self._hosts)
        if trouble is None:
            for key in risen:
                self._levels[key].accept()
            return []
        self._told.append((trouble, risen))
        return [trouble]

    def _ended(self) -> list[Trouble]:
        ended = []
        for trouble, risen in list(self._told):
            deciding = [key for key in risen if key in trouble.ranks] or risen
            if all(self._levels[key].rise is None for key in deciding):
                self._told.remove((trouble, risen))
                ended.append(over(trouble, self._steps[-1].at_s))
                for key in risen:
                    self._levels[key].forget()
                self._drop(trouble.since_s or 0.0)
        return ended

    def _drop(self, since_s: float) -> None:
        """Steps of a trouble that is over are not what the next one is compared with; those that
        showed its end are few."""
        kept = [step for step in self._steps if step.at_s < since_s]
        self._steps = deque([*kept, self._steps[-1]], maxlen=NUM_KEPT)

    def _compared(self) -> list[Trouble]:
        """A rank that is late from the start has no better past: its peers are its measure, once
        there are steps enough."""
        if self._from_start is None and (self._has_compared or self._told):
            return []
        now_s, is_told = self._steps[-1].at_s, self._from_start is not None
        is_long = now_s - self._steps[0].at_s >= 2 * LASTS_S
        if self._num_coupled < (FEW_FROM_START if is_long else NUM_FROM_START):
            return []
        recent = [step for step in self._steps if not is_told or step.at_s >= now_s - 2 * LASTS_S]
        ranks = self._steps[-1].ranks
        own = {rank: median(step.ranks[rank].own for step in recent) for rank in ranks}
        length = median(part.length for step in recent for part in step.ranks.values())
        usual = median(own.values()) if len(own) > 2 else min(own.values())
        least = LATE_FROM_START * length / (2 if is_told else 1)
        late = tuple(rank for rank, ns in own.items() if ns - usual >= least)
        if self._from_start is not None:
            if set(late) & set(self._from_start.ranks):
                return []
            told, self._from_start = self._from_start, None
            return [over(told, now_s)]
        self._has_compared = True
        if not late:
            return []
        self._from_start = late_trouble(
            late, own, usual, length, since_s=self._steps[0].at_s, samples=self._samples
        )
        return [self._from_start]


def _is_same_job(before: JobStep, step: JobStep) -> bool:
    """No rank came or went, and they wait for one another as they did."""
    return before.ranks.keys() == step.ranks.keys() and before.is_coupled == step.is_coupled
