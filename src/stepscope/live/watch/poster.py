"""Sends JSON over HTTP from a thread of its own: a slow or absent receiver must not keep the
launcher from its job."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from stepscope.cli.printing import say

POST_S = 3.0
"""What a receiver may take to answer."""
MAX_WAITING = 100

Headers = Mapping[str, str]


def http_url(text: str) -> str:
    """Parse an option's address: http or https, with a host."""
    import argparse

    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an address that can be posted to; give http://... or https://..."
        )
    return text


class Poster:
    """What cannot be sent is said once, and no more."""

    def __init__(self, what: str, advice: str) -> None:
        self._what, self._advice = what, advice
        self._waiting: queue.Queue[tuple[str, dict[str, Any], Headers] | None]
        self._waiting = queue.Queue(MAX_WAITING)
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name=f"stepscope-{what}", daemon=True)
        self._thread.start()

    def send(self, url: str, body: dict[str, Any], headers: Headers | None = None) -> None:
        try:
            self._waiting.put_nowait((url, body, headers or {}))
        except queue.Full:
            self._complain(url, "it takes them too slowly; some are left out")

    def close(self) -> None:
        """Waits for what is under way, and no longer than one answer may take."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(POST_S + 1)

    def _work(self) -> None:
        from stepscope.live.watch.webhook import post

        while (item := self._waiting.get()) is not None:
            url, body, headers = item
            problem = post(url, body, POST_S, headers)
            if problem is not None:
                self._complain(url, problem)

    def _complain(self, url: str, why: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            # The address itself may hold a token.
            host = urlsplit(url).hostname
            say(f"the {self._what} at {host} cannot be reached: {why}. {self._advice}")
