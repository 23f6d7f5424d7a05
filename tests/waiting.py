"""Waiting for what another process is to bring about."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from stepscope.process.table import read_process

LONGEST_S = 600.0
"""What anything may take that comes by itself: on a machine whose cores others take, torch alone
may take a minute to be imported."""


def until(is_so: Callable[[], object], seconds: float = LONGEST_S) -> None:
    """Looks again and again; a test that waits in vain fails."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if is_so():
                return
        except OSError:
            # A file or a server that is not there yet.
            pass
        time.sleep(0.1)
    pytest.fail(f"it did not come about in {seconds:.0f} s")


def until_at_rest(pid: int) -> None:
    """Until it waits for what will not come: a process that has said that it is ready may still be
    on its way there, without a core."""

    def rests() -> bool:
        process = read_process(pid, with_words=False)
        assert process is not None, f"process {pid} has ended"
        return process.state == "S"

    until(rests)
