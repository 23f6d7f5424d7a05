"""Steps that have become longer: on which ranks, and since when.

Each rank's own time, the step without its waits for other ranks, is a stream with a past of its own
(level.py). Ranks that rise together are one trouble: some of them are late and keep the others
waiting; all of them are a slower job. cause.py says what it is that takes longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

from stepscope.analyses.live.cause import LATER, HostUse, host_use, late_trouble, slow_trouble
from stepscope.analyses.live.episode import Trouble, over
from stepscope.analyses.live.level import LASTS_S, Level
from stepscope.analyses.live.steps import JobStep
from stepscope.core.numbers import ms_words

PATIENCE_S = 2.0
"""From the first rank's rise until the others have had their time."""
LATE_FROM_START, NUM_FROM_START = 0.25, 60
"""Of a step, and steps: a rank that was late before there was a past to compare with."""
APART_S, APART_PER_RANK_S = 0.02, 0.0005
"""Between two steps that are looked at: of 2 ms steps every tenth is enough, and of 500 ranks four
a second."""
NUM_KEPT, NUM_SAMPLES = 2_048, 128


class SlowSteps:
    """Takes the job's steps; says which ranks have become slower, and that they have recovered."""

    def __init__(self) -> None:
        self._levels: dict[int, Level] = {}
        self._steps: deque[JobStep] = deque(maxlen=NUM_KEPT)
        self._samples: dict[int, deque[HostUse]] = {}
        self._hosts: dict[int, str] = {}
        self._told: list[tuple[Trouble, tuple[int, ...]]] = []
        """With all ranks that rose with it, also those that only seemed slower."""
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
            if self._levels and step.ranks.keys() != self._levels.keys():
                # A rank came or went: the job is another.
                ended += [over(trouble, step.at_s) for trouble, _ in self._told]
                self._begin_anew()
            self._steps.append(step)
            self._num_coupled += step.is_coupled
            for rank, part in step.ranks.items():
                level = self._levels.setdefault(rank, Level(lambda middle: LATER * middle))
                level.add(part.own, step.at_s)
        if not steps:
            return []
        return [*ended, *self._ended(), *self._began(), *self._compared()]

    def _begin_anew(self) -> None:
        self._levels, self._told = {}, []
        self._steps.clear()
        self._num_coupled, self._from_start, self._has_compared = 0, None, False

    def _began(self) -> list[Trouble]:
        known = {rank for _, risen in self._told for rank in risen}
        rises = {
            rank: level.rise
            for rank, level in self._levels.items()
            if level.rise is not None and rank not in known
        }
        if not rises:
            return []
        first_s = min(rise.since_s for rise in rises.values())
        waited_s = self._steps[-1].at_s - first_s
        if len(rises) + len(known) < len(self._levels) and waited_s < LASTS_S + PATIENCE_S:
            return []
        ranks = tuple(
            rank for rank, level in self._levels.items() if rank not in known and level.is_rising
        )
        trouble = slow_trouble(ranks, first_s, self._steps, self._samples, self._hosts)
        if trouble is None:
            for rank in ranks:
                self._levels[rank].accept()
            return []
        self._told.append((trouble, ranks))
        return [trouble]

    def _ended(self) -> list[Trouble]:
        ended = []
        for trouble, risen in list(self._told):
            if all(self._levels[rank].rise is None for rank in trouble.ranks):
                self._told.remove((trouble, risen))
                ended.append(over(trouble, self._steps[-1].at_s))
                for rank in risen:
                    self._levels[rank].forget()
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
        if self._num_coupled < NUM_FROM_START:
            return []
        now_s, is_told = self._steps[-1].at_s, self._from_start is not None
        recent = [step for step in self._steps if not is_told or step.at_s >= now_s - 2 * LASTS_S]
        own = {rank: median(step.ranks[rank].own for step in recent) for rank in self._levels}
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
        most = max(late, key=lambda rank: own[rank])
        words = (
            f"{ms_words(own[most] - usual)} of each {ms_words(length)} step longer than "
            "the others, which wait, from the start"
        )
        self._from_start = late_trouble(
            late,
            words,
            since_s=self._steps[0].at_s,
            before=length - own[most] + usual,
            after=length,
        )
        return [self._from_start]
