"""A running job, live: every rank's step, pace and memory, what limits it so far, and alerts.

RUN is the folder that `stepscope run` keeps its recording in; without one, the newest in
stepscope-runs/. It ends with the job, or with Ctrl-C, and the job takes no notice.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.options import options_of, run_path
from stepscope.cli.printing import print_document
from stepscope.cli.watch import prometheus
from stepscope.cli.watch.otlp import Otlp, add_otlp

if TYPE_CHECKING:
    from stepscope.analyses.live.alarms import JobAlarms
    from stepscope.core.live import Alert, LiveView
    from stepscope.readers.run_folder.tail import Follower

REFRESH_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        type=run_path,
        metavar="RUN",
        help="the run's folder, or its name (default: the newest)",
    )
    parser.add_argument("--once", action="store_true", help="print how it stands and end")
    prometheus.add_arguments(parser)
    add_otlp(parser)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    path: Path | None
    once: bool
    prometheus: int | None
    """The port where metrics are served; None for nowhere."""
    prometheus_host: str
    otlp: str | None
    """The collector that metrics are sent to; None for none."""


def run(arguments: argparse.Namespace) -> int:
    from stepscope.analyses.live.alarms import JobAlarms
    from stepscope.readers.run_folder.kept_runs import last_run
    from stepscope.readers.run_folder.tail import Follower

    options = options_of(WatchOptions, arguments)
    follower, alarms = Follower(options.path or last_run()), JobAlarms()
    metrics = None
    if options.prometheus is not None and not options.once:
        metrics = prometheus.Metrics()
        metrics.serve(options.prometheus_host, options.prometheus)
    collector = None
    if options.otlp is not None and not options.once:
        collector = Otlp(options.otlp, follower.path)
    is_sent = metrics is not None or collector is not None
    try:
        if options.once or (not is_sent and not sys.stdout.isatty()):
            _print_once(_view(follower, alarms, []))
        else:
            _watch(follower, alarms, metrics, collector)
    except KeyboardInterrupt:
        # The way a view is left; the job is another process and goes on.
        return 0
    finally:
        if metrics is not None:
            metrics.close()
        if collector is not None:
            collector.close()
    return 0


def _print_once(view: LiveView) -> None:
    from stepscope.report.live.view import live_document

    print_document(live_document(view))


def _watch(
    follower: Follower,
    alarms: JobAlarms,
    metrics: prometheus.Metrics | None,
    collector: Otlp | None,
) -> None:
    """Frame after frame until the job has ended. Off a terminal only metrics are served, and the
    last frame printed."""
    from rich.console import Console
    from rich.live import Live

    from stepscope.report.document.terminal import frame
    from stepscope.report.live.view import live_document

    console = Console()
    alerts: list[Alert] = []
    with Live(console=console, auto_refresh=False) as live:
        while True:
            view = _view(follower, alarms, alerts)
            if metrics is not None:
                metrics.view = view
            if collector is not None:
                collector.measured(view)
            live.update(frame(live_document(view), console), refresh=True)
            if view.exit_code is not None:
                return
            time.sleep(REFRESH_S)


def _view(follower: Follower, alarms: JobAlarms, alerts: list[Alert]) -> LiveView:
    """The alerts are those that `run` wrote; our own where it was started with --no-alerts, or its
    launcher is gone."""
    from stepscope.analyses.run.live import live_view
    from stepscope.cli.watch.alerting import read_alerts

    tail = follower.look()
    alerts += alarms.look(tail)
    return live_view(tail, read_alerts(follower.path) or alerts)
