"""What `run` does beside its job: looks at the run folder now and then, reports alerts,
serves metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.additions import BesideJob
from stepscope.cli.options import int_in_range
from stepscope.cli.printing import say
from stepscope.live.watch import prometheus
from stepscope.live.watch.alerting import Sinks
from stepscope.live.watch.otlp import Otlp, collector
from stepscope.live.watch.poster import http_url
from stepscope.process.control import ask_recording
from stepscope.protocol.run_folder import WINDOW_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.live.shapes.alert import Alert
    from stepscope.readers.run_folder.tail import RunTail


KINDS = ("late-rank", "slow-group", "step-time", "loader", "bandwidth", "clock", "utilisation")
"""A recording shows where the time goes; of a loss or of memory it shows nothing."""
MAX_RANKS = 8
MAX_RECORDINGS = 2
"""A run, unless more are asked for: each slows the ranks that record for some seconds."""
BETWEEN_S = 300.0
PATIENCE_S = 60.0
"""Seconds to wait for the recordings to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    alert: Alert
    ranks: tuple[int, ...]
    before: frozenset[str]
    at_s: float


class Evidence:
    """Asks for recordings, and tells when they are there."""

    def __init__(
        self, run: Path, most: int = MAX_RECORDINGS, now: Callable[[], float] = time.monotonic
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
        ranks = (*alert.ranks[: MAX_RANKS - len(peers)], *peers)
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


LOOK_S = 1.0
MAX_ALERTS = 1_000
"""Kept for metrics and views; the file has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `run` does beside its job."""

    webhook: str | None = declare.option("--webhook URL", "post alerts there, as JSON", http_url)
    otlp: str | None = collector()
    alerts: bool = declare.option(
        "--no-alerts",
        "report no slower steps, growing memory, silent ranks",
        action="store_false",
    )
    evidence: int = declare.option(
        "--evidence N",
        "recordings that alerts may ask for by themselves (default: 2; 0 for none)",
        int_in_range("a number of recordings; give 0 to 1000", 0, 1_000),
        MAX_RECORDINGS,
    )
    port: int | None = prometheus.port()
    host: str = prometheus.host()


class Watching:
    """Call `look` as often as you like: it does its work once a second. It never raises; a problem
    switches it off."""

    def __init__(
        self,
        run: Path,
        options: Options,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        from stepscope.live.alarms.alarms import JobAlarms
        from stepscope.readers.run_folder.tail import Follower

        self._follower = Follower(run)
        self._alarms = JobAlarms() if options.alerts else None
        self._otlp = None if options.otlp is None else Otlp(options.otlp, run)
        self._sinks = Sinks(run, options.webhook, self._otlp) if options.alerts else None
        self._evidence = Evidence(run, options.evidence if options.alerts else 0)
        self._metrics: prometheus.Metrics | None = None
        if options.port is not None:
            metrics = prometheus.Metrics()
            if metrics.serve(options.host, options.port) is not None:
                self._metrics = metrics
        self._alerts: list[Alert] = []
        self._now, self._due = now, 0.0
        outputs = self._alarms, self._metrics, self._otlp
        self._is_on = any(output is not None for output in outputs)

    def look(self) -> None:
        if not self._is_on or self._now() < self._due:
            return
        self._due = self._now() + LOOK_S
        try:
            self._work()
        except Exception as problem:  # noqa: BLE001 - the boundary beside the job: its launcher must outlive any fault of ours
            self._is_on = False
            say(f"alerts and metrics are off: {type(problem).__name__}: {problem}. The job goes on")

    def close(self) -> None:
        """The job has ended: what is still to be sent is sent."""
        if self._sinks is not None:
            self._sinks.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._otlp is not None:
            self._otlp.close()

    def _work(self) -> None:
        from stepscope.live.view import live_view

        tail = self._follower.look()
        if self._alarms is not None and self._sinks is not None:
            alerts = self._alarms.look(tail)
            alerts += self._evidence.look(alerts, tail)
            self._sinks.report(alerts)
            self._alerts = [*self._alerts, *alerts][-MAX_ALERTS:]
        if self._metrics is not None or self._otlp is not None:
            view = live_view(tail, self._alerts)
            if self._metrics is not None:
                self._metrics.view = view
            if self._otlp is not None:
                self._otlp.measured(view)


ADDITION = BesideJob(Options, Watching)
