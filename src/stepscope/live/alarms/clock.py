"""A device whose clock falls while it works: it is too hot, short of power, or unwell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.live.alarms.episodes import Trouble, over
from stepscope.live.alarms.level import Level
from stepscope.live.judge_health import SLOWED
from stepscope.protocol.untrusted import finite, objects_at, whole

LOWER = 0.08
"""Share of the clock: kernels bound by arithmetic are slower by as much. The driver's own steps up
and down under a steady load are 1 to 3 %."""
AT_WORK = 50
"""Percent of the time with a kernel running: the clock of an idle device says nothing."""
NUM_SLOWED = 3
"""Samples in a row in which the driver says that it slows the device down: shorter is a spike."""


class RankClock:
    """Takes the samples of one rank, of its devices each."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._devices: dict[int, _DeviceClock] = {}

    def add(self, at_s: float, sample: Mapping[str, Any]) -> list[Trouble]:
        troubles: list[Trouble] = []
        for device in objects_at(sample, "devices"):
            number = whole(device.get("device")) or 0
            clock = self._devices.setdefault(number, _DeviceClock(self._rank, number))
            troubles += clock.add(at_s, device)
        return troubles


class _DeviceClock:
    def __init__(self, rank: int, device: int) -> None:
        self._rank, self._device = rank, device
        self._level = Level(lambda middle: LOWER * abs(middle))
        self._slowed: list[float] = []
        self._told: Trouble | None = None

    def add(self, at_s: float, device: Mapping[str, Any]) -> list[Trouble]:
        clock, util = finite(device.get("sm_clock_mhz")), finite(device.get("gpu_util_percent"))
        if clock is None or util is None or util < AT_WORK:
            return []
        reasons = device.get("throttle_reasons")
        active = [name for name in reasons if isinstance(name, str)] if reasons else []
        slowed = [name for name in active if name in SLOWED]
        self._slowed = [*self._slowed, at_s][-NUM_SLOWED:] if slowed else []
        # Lower is worse, and a level rises.
        self._level.add(-clock, at_s)
        rise = self._level.rise
        is_slowed = len(self._slowed) >= NUM_SLOWED
        if self._told is not None:
            if rise is not None or self._slowed:
                return []
            told, self._told = self._told, None
            return [over(told, at_s)]
        if rise is None and not is_slowed:
            return []
        why = f" ({', '.join(active)})" if active else ""
        before = -rise.before if rise is not None else None
        was = "" if before is None else f", {before:.0f} before"
        self._told = Trouble(
            kind="clock",
            ranks=(self._rank,),
            words=f"device {self._device} runs at {clock:.0f} MHz{was}{why}",
            since_s=rise.since_s if rise is not None else self._slowed[0],
            before=before,
            after=clock,
            unit="MHz",
        )
        return [self._told]
