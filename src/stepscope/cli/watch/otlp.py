"""Sends a run's metrics to an OpenTelemetry collector, from a thread of the launcher; the job has
no part in it."""

from __future__ import annotations

import argparse
import os
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from stepscope.cli.printing import say
from stepscope.cli.watch.alerting import webhook_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.core.live import LiveView

EVERY_S = 10.0
POST_S = 3.0
"""What a collector may take to answer."""
PATH = "/v1/metrics"
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""OpenTelemetry's own: key=value pairs, a token among them; never on the command line, where others
read it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--otlp-metrics",
        type=endpoint,
        metavar="URL",
        help=f"send metrics to an OpenTelemetry collector (OTLP over HTTP) every {EVERY_S:.0f} s",
    )


def endpoint(text: str) -> str:
    """As an option's type: http or https; a bare address gets the protocol's path."""
    url = webhook_url(text)
    return url if urlsplit(url).path.strip("/") else url.rstrip("/") + PATH


def headers_of(environment: Mapping[str, str]) -> dict[str, str]:
    """`key=value,key2=value2`, values percent-encoded, as OpenTelemetry defines it."""
    pairs = (each.partition("=") for each in environment.get(HEADERS_VARIABLE, "").split(","))
    return {
        key.strip(): unquote(value.strip())
        for key, sign, value in pairs
        if sign and key.strip() and not set(unquote(key + value)) & set("\r\n")
    }


class OtlpMetrics:
    """Sends the last look at the run now and then. A collector that cannot be reached is named
    once, and tried again."""

    def __init__(self, url: str, *, every_s: float = EVERY_S) -> None:
        self.view: LiveView | None = None
        self._url, self._every_s = url, every_s
        self._has_failed = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="stepscope-otlp", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The last look is sent too; that may take as long as one answer."""
        self._end.set()
        self._thread.join(2 * POST_S + 1)

    def _work(self) -> None:
        while not self._end.wait(self._every_s):
            self._send()
        self._send()

    def _send(self) -> None:
        from stepscope.cli.watch.webhook import post
        from stepscope.report.live.otlp import otlp_metrics

        view = self.view
        if view is None:
            return
        body = otlp_metrics(view, time.time_ns())
        problem = post(self._url, body, POST_S, headers_of(os.environ))
        if problem is not None and not self._has_failed:
            self._has_failed = True
            # The address itself may hold a token.
            say(
                f"the collector at {urlsplit(self._url).hostname} cannot be reached: {problem}. "
                "It is tried again; all else goes on"
            )
