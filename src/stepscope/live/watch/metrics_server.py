"""A small HTTP server for one text, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from stepscope.core.http_server import Server

ANSWER_S = 5.0
"""A client that does not go on is let go after this."""


def serve(host: str, port: int, text: Callable[[], str], content_type: str) -> Server:
    """Listens from now on; what is asked for is made when it is asked for. OSError where the port
    cannot be had."""

    class Handler(BaseHTTPRequestHandler):
        timeout = ANSWER_S

        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] in ("/", "/metrics")
            body = text().encode() if is_known else b"metrics are at /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """stderr is the job's."""

    server = Server((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="stepscope-prometheus", daemon=True).start()
    return server
