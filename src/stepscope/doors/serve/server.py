"""The HTTP server: this machine alone, GET and HEAD alone, and no page of another site may ask it
anything."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from stepscope.core.http_server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.doors.serve.pages import Answer

LOOPBACK = "127.0.0.1"
ANSWER_S = 30.0
"""A client that does not go on is let go after this."""
MAX_FIELDS = 8
HEADERS = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "frame-ancestors 'none'"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Each page has a policy of its own besides, which lets our own scripts alone run."""


def server_of(port: int, answer: Callable[[str, Mapping[str, str]], Answer]) -> Server:
    """Listens on the loopback interface. OSError where the port cannot be had."""

    class Handler(BaseHTTPRequestHandler):
        timeout = ANSWER_S
        server_version = "stepscope"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            assert isinstance(self.server, Server)
            if not is_own_host(self.headers.get_all("Host"), self.server.port):
                # A name of somebody else's that leads here (DNS rebinding) would read our pages.
                self._send("this name is not ours\n", 403, "text/plain", with_body=with_body)
                return
            if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
                self._send("not for other sites\n", 403, "text/plain", with_body=with_body)
                return
            parts = urlsplit(self.path)
            try:
                fields = parse_qsl(parts.query, max_num_fields=MAX_FIELDS, errors="surrogateescape")
            except ValueError:
                fields = []
            made = answer(parts.path, dict(fields))
            self._send(made.text, made.status, made.kind, made.has_ended, with_body=with_body)

        def _send(
            self,
            text: str,
            status: int,
            kind: str,
            has_ended: bool | None = None,
            *,
            with_body: bool = True,
        ) -> None:
            body = text.encode("utf-8", "replace")
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            for name, value in HEADERS:
                self.send_header(name, value)
            if has_ended is not None:
                self.send_header("X-Stepscope-Ended", "yes" if has_ended else "no")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """The terminal has the address, and nothing else."""

    return Server((LOOPBACK, port), Handler)


def is_own_host(given: list[str] | None, port: int) -> bool:
    """One Host header, which names this machine and this port."""
    own = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
    return given is not None and len(given) == 1 and given[0].strip().lower() in own
