"""What `serve` shows of a run that may be under way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.cli.additions import LiveRuns
from stepscope.live.report.watch.view import live_document
from stepscope.live.series import RunSeries
from stepscope.live.view import live_view
from stepscope.live.watch.alerting import read_alerts
from stepscope.readers.run_folder.tail import Follower
from stepscope.report.document.blocks import Document


def document_of(run: Path) -> tuple[Document, bool]:
    view = live_view(Follower(run).look(), read_alerts(run))
    return live_document(view), view.exit_code is not None


def series_of(run: Path) -> Callable[[], dict[str, Any]]:
    series = RunSeries(run)
    return lambda: series.look(read_alerts(run))


ADDITION = LiveRuns(document_of, series_of)
