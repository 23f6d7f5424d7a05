"""What `run` does beside its job: looks at the run folder now and then, reports alerts,
serves metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.additions import BesideJob
from stepscope.cli.option_types import whole
from stepscope.cli.printing import say
from stepscope.live.watch import prometheus
from stepscope.live.watch.alerting import Sinks
from stepscope.live.watch.evidence import MOST_RECORDINGS, Evidence
from stepscope.live.watch.otlp import Otlp, collector
from stepscope.live.watch.poster import http_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.live.shapes.alert import Alert

LOOK_S = 1.0
MOST_ALERTS = 1_000
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
        whole("a number of recordings; give 0 to 1000", 0, 1_000),
        MOST_RECORDINGS,
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
            self._alerts = [*self._alerts, *alerts][-MOST_ALERTS:]
        if self._metrics is not None or self._otlp is not None:
            view = live_view(tail, self._alerts)
            if self._metrics is not None:
                self._metrics.view = view
            if self._otlp is not None:
                self._otlp.measured(view)


ADDITION = BesideJob(Options, Watching)
