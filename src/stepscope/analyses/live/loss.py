"""A loss that is no number any more, or has left its level upwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stepscope.analyses.live.episode import Trouble, over
from stepscope.analyses.live.level import Level
from stepscope.protocol.untrusted import finite

NUM_NOT_FINITE = 2
"""Losses in a row that are no numbers: a single one may be a step that a GradScaler leaves out."""
HIGHER = 0.5
"""Of the loss, by which it must rise, for single batches differ; and three times the losses' own
spread, which level.py asks for."""
LASTS_S = 3.0
"""A rise of single steps is a batch. Losses spread as wide as 1.6 to 1 around their middle rise for
three seconds by chance in less than one hour of four; as wide as 2 to 1, in one of two."""


class RankLoss:
    """Takes the losses of one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._step: int | None = None
        self._level = Level(_least, lasts_s=LASTS_S)
        self._bad: list[float] = []
        self._bad_told: Trouble | None = None
        self._spike_told: Trouble | None = None

    def add(self, losses: Sequence[tuple[float, float]], step: int | None = None) -> list[Trouble]:
        self._step = step
        troubles: list[Trouble] = []
        for at_s, loss in losses:
            if math.isfinite(loss):
                troubles += self._number(loss, at_s)
            else:
                troubles += self._no_number(loss, at_s)
        return troubles

    def _no_number(self, loss: float, at_s: float) -> list[Trouble]:
        self._bad.append(at_s)
        if len(self._bad) != NUM_NOT_FINITE or self._bad_told is not None:
            return []
        self._bad_told = Trouble(
            kind="loss-nan",
            ranks=(self._rank,),
            words=f"the loss is {loss}",
            since_s=self._bad[0],
            step=self._step,
            before=self._level.middle,
            unit="",
        )
        return [self._bad_told]

    def _number(self, loss: float, at_s: float) -> list[Trouble]:
        self._bad = []
        if self._bad_told is not None:
            told, self._bad_told = self._bad_told, None
            return [over(told, at_s)]
        if not self._level.add(loss, at_s):
            return []
        rise = self._level.rise
        if rise is None:
            spike, self._spike_told = self._spike_told, None
            return [] if spike is None else [over(spike, at_s)]
        self._spike_told = Trouble(
            kind="loss-spike",
            ranks=(self._rank,),
            words=f"the loss is {rise.after:.3g}, {rise.before:.3g} before",
            since_s=rise.since_s,
            step=self._step,
            before=rise.before,
            after=rise.after,
            unit="",
        )
        return [self._spike_told]


def losses_of(sample: dict[str, Any]) -> list[tuple[int, float]]:
    """(nanoseconds of the rank's clock, loss), those that are no numbers too."""
    pairs = sample.get("losses")
    losses = []
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int):
            value = math.nan if pair[1] == "nan" else finite(pair[1])
            if isinstance(pair[1], str) and pair[1].lstrip("-") == "inf":
                value = float(pair[1])
            if value is not None:
                losses.append((pair[0], value))
    return losses


def _least(middle: float) -> float:
    return HIGHER * abs(middle)
