"""Ports of this machine for servers that a test starts by number."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""From which the system takes the port of a connection, and of who asks for any."""


def free_port() -> int:
    """One that nobody else is given before it is used: below the system's own range."""
    first = int(LOCAL_RANGE.read_text().split()[0]) if LOCAL_RANGE.exists() else 32_768
    while True:
        port = random.randrange(first // 2, first)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


@contextmanager
def refusing_port() -> Iterator[int]:
    """One that is taken, and that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield int(one.getsockname()[1])
