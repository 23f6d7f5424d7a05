"""What a job printed last."""

from __future__ import annotations

MAX_LINE = 300


def last_line(tail: str) -> str:
    """The last line of a job's output that says something."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1][:MAX_LINE] if lines else ""
