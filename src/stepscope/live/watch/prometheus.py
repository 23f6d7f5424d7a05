"""Serves a run's metrics to Prometheus, from a thread of the launcher; the job has no part in
it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.cli import options as declare
from stepscope.cli.options import int_in_range
from stepscope.cli.printing import say

if TYPE_CHECKING:
    from stepscope.core.http_server import Server
    from stepscope.live.shapes.live import LiveView

LOOPBACK = "127.0.0.1"


def port() -> Any:
    read = int_in_range("a port; give a number from 1 to 65535", most=65_535)
    return declare.option("--prometheus PORT", "serve metrics at http://HOST:PORT/metrics", read)


def host() -> Any:
    about = f"where to listen (default: {LOOPBACK})"
    return declare.option("--prometheus-host HOST", about, default=LOOPBACK)


class Metrics:
    """The last look at the run, for whoever asks."""

    def __init__(self) -> None:
        self.view: LiveView | None = None
        self._server: Server | None = None

    def serve(self, host: str, port: int) -> int | None:
        """Listens; returns the port, or None where that cannot be, which is said and is no reason
        to stop."""
        from stepscope.live.report.watch.prometheus import CONTENT_TYPE, exposition
        from stepscope.live.watch.metrics_server import serve

        try:
            self._server = serve(host, port, lambda: exposition(self.view), CONTENT_TYPE)
        except (OSError, UnicodeError) as problem:
            why = getattr(problem, "strerror", None) or problem
            say(f"metrics cannot be served on {host}:{port}: {why}. All else goes on")
            return None
        return self._server.port

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
