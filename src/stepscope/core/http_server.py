"""An HTTP server whose threads end with the command."""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that went away is nothing to tell."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])
