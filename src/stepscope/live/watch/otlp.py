"""Sends alerts and the run's numbers to an OpenTelemetry collector: OTLP over HTTP, as JSON."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from stepscope.cli import options as declare
from stepscope.live.watch.poster import Poster, http_url

if TYPE_CHECKING:
    from stepscope.live.shapes.alert import Alert
    from stepscope.live.shapes.live import LiveView

EVERY_S = 10.0
"""Seconds between two looks at the numbers; alerts go at once."""
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
"""A variable of the environment, as OpenTelemetry defines it: name=value,name=value."""


def collector() -> Any:
    about = "send metrics, and alerts where they are raised, to an OpenTelemetry collector"
    return declare.option("--otlp URL", about, http_url)


class Otlp:
    """`endpoint` is the collector's address; /v1/logs and /v1/metrics are added to it."""

    def __init__(self, endpoint: str, run: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._endpoint, self._run, self._now = endpoint.rstrip("/"), str(run), now
        self._headers = headers_of(os.environ.get(HEADERS, ""))
        self._poster = Poster("OTLP collector", "The job goes on, and alerts are said here")
        self._due_s = 0.0

    def report(self, alerts: Sequence[Alert]) -> None:
        from stepscope.live.report.watch.otlp import logs

        if alerts:
            self._poster.send(f"{self._endpoint}/v1/logs", logs(alerts, self._run), self._headers)

    def measured(self, view: LiveView) -> None:
        """Sends the numbers where it is time to."""
        from stepscope.live.report.watch.otlp import metrics

        if self._now() >= self._due_s:
            self._due_s = self._now() + EVERY_S
            body = metrics(view, time.time_ns())
            self._poster.send(f"{self._endpoint}/v1/metrics", body, self._headers)

    def close(self) -> None:
        self._poster.close()


def headers_of(text: str) -> dict[str, str]:
    """`a=b,c=d%20e` -> {"a": "b", "c": "d e"}; what is none is passed over."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {
        name.strip(): unquote(value.strip())
        for name, equals, value in pairs
        if equals and name.strip() and value.isprintable() and "\n" not in unquote(value)
    }
