"""A loss that is no number any more, or has left its level upwards."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

from stepscope.live.alarms.episodes import Trouble, over
from stepscope.live.alarms.level import MIN_VALUES, Level
from stepscope.protocol.untrusted import finite

NUM_NOT_FINITE = 2
"""Losses in a row that are no numbers: a single one may be a step that a GradScaler leaves out."""
HIGHER = 0.5
"""Share of the loss by which it must rise, for single batches differ; and three times the losses'
own spread, which level.py asks for."""
LASTS_S = 3.0
"""A rise of single steps is a batch. Losses spread as wide as 1.6 to 1 around their middle rise for
three seconds by chance in less than one hour of four; as wide as 2 to 1, in one of two."""
PATIENCE_S = 2.0
"""Seconds from the first rank's rise on: single batches hide that of others for a while."""
NUM_RECENT = 64


class RankLoss:
    """The losses of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.level = Level(_least, lasts_s=LASTS_S)
        self._recent: deque[tuple[float, float]] = deque(maxlen=NUM_RECENT)
        self._bad: list[float] = []
        self._told: Trouble | None = None

    def add(self, losses: Sequence[tuple[float, float]], step: int | None) -> list[Trouble]:
        """Whether it is no number, or one again."""
        troubles: list[Trouble] = []
        for at_s, loss in losses:
            if not math.isfinite(loss):
                troubles += self._no_number(loss, at_s, step)
                continue
            self._bad = []
            self._recent.append((at_s, loss))
            self.level.add(loss, at_s)
            if self._told is not None:
                troubles.append(over(self._told, at_s))
                self._told = None
        return troubles

    @property
    def recent(self) -> float | None:
        """The middle of the last seconds' losses; None where there are too few."""
        latest = [loss for at_s, loss in self._recent if at_s >= self._recent[-1][0] - LASTS_S]
        return median(latest) if len(latest) >= MIN_VALUES else None

    @property
    def is_high(self) -> bool:
        middle, recent = self.level.middle, self.recent
        is_higher = middle is not None and recent is not None
        return is_higher and (recent or 0.0) >= (middle or 0.0) + _least(middle or 0.0)

    def _no_number(self, loss: float, at_s: float, step: int | None) -> list[Trouble]:
        self._bad.append(at_s)
        if len(self._bad) != NUM_NOT_FINITE or self._told is not None:
            return []
        self._told = Trouble(
            kind="loss-nan",
            ranks=(self.rank,),
            words=f"the loss is {loss}",
            since_s=self._bad[0],
            step=step,
            before=self.level.middle,
            unit="",
        )
        return [self._told]


class LossSpikes:
    """The ranks whose losses have risen, together: they train one model."""

    def __init__(self) -> None:
        self._told: Trouble | None = None

    def look(self, ranks: Sequence[RankLoss], now_s: float, step: int | None) -> list[Trouble]:
        risen = [rank for rank in ranks if rank.level.rise is not None]
        if self._told is not None:
            if risen:
                return []
            told, self._told = self._told, None
            return [over(told, now_s)]
        rises = [(rank.level.rise, rank) for rank in risen if rank.level.rise is not None]
        if not rises:
            return []
        first, rank = min(rises, key=lambda pair: pair[0].since_s)
        if len(risen) < len(ranks) and now_s - first.since_s < LASTS_S + PATIENCE_S:
            return []
        members = tuple(rank.rank for rank in ranks if rank in risen or rank.is_high)
        name = "" if len(members) == 1 else f" on rank {rank.rank}, where it began"
        self._told = Trouble(
            kind="loss-spike",
            ranks=members,
            words=f"the loss is {rank.recent or first.after:.3g}, {first.before:.3g} before{name}",
            since_s=first.since_s,
            step=step,
            before=first.before,
            after=rank.recent or first.after,
            unit="",
        )
        return [self._told]


def losses_of(sample: dict[str, Any]) -> list[tuple[int, float]]:
    """(nanoseconds of the rank's clock, loss), those that are no numbers too."""
    pairs = sample.get("losses")
    losses = []
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int):
            value = float(pair[1]) if pair[1] in ("nan", "inf", "-inf") else finite(pair[1])
            if value is not None:
                losses.append((pair[0], value))
    return losses


def _least(middle: float) -> float:
    return HIGHER * abs(middle)
