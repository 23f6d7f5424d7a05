"""Recordings that alerts ask for by themselves: a few steps of the ranks concerned, and of one that
is not, to compare with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.process.control import ask_recording
from stepscope.protocol.run_folder import WINDOW_NAME

if TYPE_CHECKING:
    from stepscope.live.shapes.alert import Alert
    from stepscope.readers.run_folder.tail import RunTail

KINDS = ("late-rank", "slow-group", "step-time", "loader", "bandwidth", "clock", "utilisation")
"""A recording shows where the time goes; of a loss or of memory it shows nothing."""
MOST_RANKS = 8
MOST_RECORDINGS = 2
"""A run, unless more are asked for: each slows the ranks that record for some seconds."""
BETWEEN_S = 300.0
PATIENCE_S = 60.0
"""For the recordings to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    alert: Alert
    ranks: tuple[int, ...]
    before: frozenset[str]
    at_s: float


class Evidence:
    """Asks for recordings, and tells when they are there."""

    def __init__(
        self, run: Path, most: int = MOST_RECORDINGS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._run, self._left, self._now = run, most, now
        self._asked: _Asked | None = None
        self._last_s: float | None = None

    def look(self, alerts: tuple[Alert, ...], tail: RunTail) -> tuple[Alert, ...]:
        """What was recorded since."""
        for alert in alerts:
            if alert.state == "raised" and alert.kind in KINDS:
                self._ask(alert, tuple(rank.rank for rank in tail.ranks))
        return self._recorded()

    def _ask(self, alert: Alert, everyone: tuple[int, ...]) -> None:
        now = self._now()
        is_soon = self._last_s is not None and now - self._last_s < BETWEEN_S
        if self._left <= 0 or is_soon or self._asked is not None:
            return
        peers = [rank for rank in everyone if rank not in alert.ranks][:1]
        ranks = (*alert.ranks[: MOST_RANKS - len(peers)], *peers)
        before = frozenset(self._windows(ranks))
        if ask_recording(self._run, ranks) is not None:
            self._left -= 1
            self._last_s = now
            self._asked = _Asked(alert=alert, ranks=ranks, before=before, at_s=now)

    def _recorded(self) -> tuple[Alert, ...]:
        asked = self._asked
        if asked is None:
            return ()
        files = sorted(set(self._windows(asked.ranks)) - asked.before)
        is_whole = len({name.partition("/")[0] for name in files}) == len(asked.ranks)
        if not is_whole and self._now() - asked.at_s < PATIENCE_S:
            return ()
        self._asked = None
        if not files:
            return ()
        from msgspec.structs import replace

        from stepscope.live.shapes.alert import RECORDED

        words = f"recorded: {', '.join(files)}. stepscope diagnose {self._run}/{files[0]}"
        alert = replace(
            asked.alert,
            state=RECORDED,
            words=words,
            action="",
            evidence=tuple(files),
            at_wall_ns=time.time_ns(),
        )
        return (alert,)

    def _windows(self, ranks: tuple[int, ...]) -> list[str]:
        """Seen from the run folder."""
        names = []
        for rank in ranks:
            folder = self._run / f"rank-{rank}"
            files = sorted(folder.iterdir()) if folder.is_dir() else []
            names += [
                f"{folder.name}/{file.name}" for file in files if WINDOW_NAME.match(file.name)
            ]
        return names
