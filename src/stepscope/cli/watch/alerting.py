"""Where alerts go: stderr, RUN/alerts.jsonl, and a webhook where one is named."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.printing import say
from stepscope.protocol.json_text import json_text
from stepscope.protocol.run_folder import ALERTS_FILE

if TYPE_CHECKING:
    from stepscope.core.live import Alert

POST_S = 3.0
"""What a webhook may take to answer."""
MOST_WAITING = 100
MOST_KEPT = 10_000
"""Lines of the file: a job that has had so many alerts needs no more of them."""


def webhook_url(text: str) -> str:
    """As an option's type: http or https, with a host."""
    import argparse
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an address that can be posted to; give http://... or https://..."
        )
    return text


def read_alerts(run: Path) -> tuple[Alert, ...]:
    """The last of RUN/alerts.jsonl."""
    from stepscope.readers.run_folder.line_tail import read_lines
    from stepscope.report.live.alert_json import alert_of

    alerts = (alert_of(line) for line in read_lines(run / ALERTS_FILE))
    return tuple(alert for alert in alerts if alert is not None)


class Sinks:
    """Reports alerts. A sink that cannot be reached is named once, and the others go on."""

    def __init__(self, run: Path, webhook: str | None = None) -> None:
        self._path = run / ALERTS_FILE
        self._webhook = None if webhook is None else Webhook(webhook, run)
        self._num_kept = 0

    def report(self, alerts: Sequence[Alert]) -> None:
        from stepscope.report.live.alert_json import alert_line

        for alert in alerts:
            say(alert_line(alert))
            self._keep(alert)
            if self._webhook is not None:
                self._webhook.send(alert)

    def close(self) -> None:
        if self._webhook is not None:
            self._webhook.close()

    def _keep(self, alert: Alert) -> None:
        if self._num_kept >= MOST_KEPT:
            return
        from stepscope.report.live.alert_json import alert_json

        self._num_kept += 1
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json_text(alert_json(alert)) + "\n")
        except OSError as problem:
            self._num_kept = MOST_KEPT
            say(f"alerts cannot be kept in {self._path}: {problem.strerror}")


class Webhook:
    """Posts alerts from a thread of its own: a slow or absent receiver must not keep the launcher
    from its job."""

    def __init__(self, url: str, run: Path) -> None:
        self._url, self._run = url, str(run)
        self._waiting: queue.Queue[Alert | None] = queue.Queue(MOST_WAITING)
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name="stepscope-webhook", daemon=True)
        self._thread.start()

    def send(self, alert: Alert) -> None:
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._complain("it takes alerts too slowly; some are left out")

    def close(self) -> None:
        """Waits for what is under way, and no longer than one answer may take."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(POST_S + 1)

    def _work(self) -> None:
        from stepscope.cli.watch.webhook import post
        from stepscope.report.live.alert_json import alert_json

        while (alert := self._waiting.get()) is not None:
            problem = post(self._url, alert_json(alert, self._run), POST_S)
            if problem is not None:
                self._complain(problem)

    def _complain(self, why: str) -> None:
        from urllib.parse import urlsplit

        if not self._has_failed:
            self._has_failed = True
            # The address itself may hold a token.
            say(
                f"the webhook at {urlsplit(self._url).hostname} cannot be reached: {why}. Alerts "
                f"are in {self._run}/{ALERTS_FILE}"
            )
