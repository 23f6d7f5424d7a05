"""A job that `run` records, live: every rank's step, and alerts.

RUN is the folder that `stepscope run` keeps its recording in; without one, the newest in
stepscope-runs/. It ends with the job, or with Ctrl-C, and the job takes no notice.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.printing import print_document
from stepscope.live.watch import prometheus
from stepscope.live.watch.otlp import Otlp, collector

if TYPE_CHECKING:
    from stepscope.live.alarms.alarms import JobAlarms
    from stepscope.live.shapes.alert import Alert
    from stepscope.live.shapes.live import LiveView
    from stepscope.readers.run_folder.tail import Follower

REFRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    path: Path | None = declare.option(
        "RUN",
        "the run's folder, or its name (default: the newest)",
        declare.run_path,
        nargs="?",
    )
    once: bool = declare.option("--once", "print how it stands and end")
    port: int | None = prometheus.port()
    host: str = prometheus.host()
    otlp: str | None = collector()


def run(options: Options) -> int:
    from stepscope.live.alarms.alarms import JobAlarms
    from stepscope.readers.run_folder.kept_runs import last_run
    from stepscope.readers.run_folder.tail import Follower

    follower, alarms = Follower(options.path or last_run()), JobAlarms()
    metrics = None
    if options.port is not None and not options.once:
        metrics = prometheus.Metrics()
        metrics.serve(options.host, options.port)
    sent = None
    if options.otlp is not None and not options.once:
        sent = Otlp(options.otlp, follower.path)
    is_sent = metrics is not None or sent is not None
    try:
        if options.once or (not is_sent and not sys.stdout.isatty()):
            from stepscope.live.report.watch.view import live_document

            print_document(live_document(_view(follower, alarms, [])))
        else:
            _watch(follower, alarms, metrics, sent)
    except KeyboardInterrupt:
        # The way a view is left; the job is another process and goes on.
        return 0
    finally:
        if metrics is not None:
            metrics.close()
        if sent is not None:
            sent.close()
    return 0


def _watch(
    follower: Follower,
    alarms: JobAlarms,
    metrics: prometheus.Metrics | None,
    sent: Otlp | None,
) -> None:
    """Frame after frame until the job has ended. Off a terminal only metrics are served, and the
    last frame printed."""
    from rich.console import Console
    from rich.live import Live

    from stepscope.live.report.watch.view import live_document
    from stepscope.report.document.terminal import frame

    console = Console()
    alerts: list[Alert] = []
    with Live(console=console, auto_refresh=False) as live:
        while True:
            view = _view(follower, alarms, alerts)
            if metrics is not None:
                metrics.view = view
            if sent is not None:
                sent.measured(view)
            live.update(frame(live_document(view), console), refresh=True)
            if view.exit_code is not None:
                return
            time.sleep(REFRESH_S)


def _view(follower: Follower, alarms: JobAlarms, alerts: list[Alert]) -> LiveView:
    """The alerts are those that `run` wrote; our own where it was started with --no-alerts, or its
    launcher is gone."""
    from stepscope.live.view import live_view
    from stepscope.live.watch.alerting import read_alerts

    tail = follower.look()
    alerts += alarms.look(tail)
    return live_view(tail, read_alerts(follower.path) or alerts)
