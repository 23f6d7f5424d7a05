"""Where alerts go: stderr, RUN/alerts.jsonl, a webhook and a collector where they are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.printing import say
from stepscope.live.watch.poster import Poster
from stepscope.protocol.json_text import json_text
from stepscope.protocol.run_folder import ALERTS_FILE

if TYPE_CHECKING:
    from stepscope.live.shapes.alert import Alert
    from stepscope.live.watch.otlp import Otlp

MAX_KEPT = 10_000
"""Lines of the file: a job that has had so many alerts needs no more of them."""


def read_alerts(run: Path) -> tuple[Alert, ...]:
    """The last of RUN/alerts.jsonl."""
    from stepscope.live.report.watch.alert_json import alert_of
    from stepscope.readers.run_folder.line_tail import read_lines

    alerts = (alert_of(line) for line in read_lines(run / ALERTS_FILE))
    return tuple(alert for alert in alerts if alert is not None)


class Sinks:
    """Reports alerts. A sink that cannot be reached is named once, and the others go on."""

    def __init__(self, run: Path, webhook: str | None = None, otlp: Otlp | None = None) -> None:
        self._run, self._path = str(run), run / ALERTS_FILE
        self._url, self._otlp = webhook, otlp
        advice = f"Alerts are in {self._path}"
        self._webhook = None if webhook is None else Poster("webhook", advice)
        self._num_kept = 0

    def report(self, alerts: Sequence[Alert]) -> None:
        from stepscope.live.report.watch.alert_json import alert_json, alert_line

        for alert in alerts:
            say(alert_line(alert))
            self._keep(alert)
            if self._webhook is not None and self._url is not None:
                self._webhook.send(self._url, alert_json(alert, self._run))
        if self._otlp is not None:
            self._otlp.report(alerts)

    def close(self) -> None:
        if self._webhook is not None:
            self._webhook.close()

    def _keep(self, alert: Alert) -> None:
        if self._num_kept >= MAX_KEPT:
            return
        from stepscope.live.report.watch.alert_json import alert_json

        self._num_kept += 1
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json_text(alert_json(alert)) + "\n")
        except OSError as problem:
            self._num_kept = MAX_KEPT
            say(f"alerts cannot be kept in {self._path}: {problem.strerror}")
