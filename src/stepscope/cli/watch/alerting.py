"""Where alerts go: stderr, RUN/alerts.jsonl, and a webhook where one is named."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def plain(alert: Alert) -> dict[str, Any]:
    """The line of RUN/alerts.jsonl, and what a webhook gets."""
    return {
        "kind": alert.kind,
        "ranks": list(alert.ranks),
        "step": alert.step,
        "words": alert.words,
        "at_wall_ns": alert.at_wall_ns,
    }


def read_alerts(run: Path) -> tuple[Alert, ...]:
    """The last of RUN/alerts.jsonl."""
    from stepscope.core.live import Alert
    from stepscope.readers.run_folder.line_tail import read_lines

    alerts = []
    for line in read_lines(run / ALERTS_FILE):
        step, wall_ns, ranks = line.get("step"), line.get("at_wall_ns"), line.get("ranks")
        if isinstance(wall_ns, int) and isinstance(ranks, list):
            numbers = tuple(rank for rank in ranks if isinstance(rank, int))
            words, kind = str(line.get("words", "")), str(line.get("kind", ""))
            alerts.append(
                Alert(
                    kind=kind,
                    ranks=numbers,
                    step=step if isinstance(step, int) else None,
                    words=words,
                    at_wall_ns=wall_ns,
                )
            )
    return tuple(alerts)


class Sinks:
    """Reports alerts. A sink that cannot be reached is named once, and the others go on."""

    def __init__(self, run: Path, webhook: str | None = None) -> None:
        self._path = run / ALERTS_FILE
        self._webhook = None if webhook is None else Webhook(webhook, run)
        self._num_kept = 0

    def report(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            step = "" if alert.step is None else f" at step {alert.step}"
            say(f"{alert.kind}{step}: {alert.words}")
            self._keep(alert)
            if self._webhook is not None:
                self._webhook.send(alert)

    def close(self) -> None:
        if self._webhook is not None:
            self._webhook.close()

    def _keep(self, alert: Alert) -> None:
        if self._num_kept >= MOST_KEPT:
            return
        self._num_kept += 1
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json_text(plain(alert)) + "\n")
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

        while (alert := self._waiting.get()) is not None:
            body = {
                **plain(alert),
                "run": self._run,
                "text": f"stepscope: {alert.kind}: {alert.words}",
            }
            problem = post(self._url, body, POST_S)
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
