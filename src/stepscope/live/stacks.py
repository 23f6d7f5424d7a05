"""Reads what `py-spy dump --json` prints: the Python stacks of a process's threads."""

from __future__ import annotations

from typing import Any

from stepscope.errors import FormatError
from stepscope.live.shapes.stacks import Frame
from stepscope.protocol.untrusted import as_object, parse_json

MOST_FRAMES = 500


def training_stack(text: str | bytes, pid: int) -> tuple[Frame, ...]:
    """The main thread's stack, innermost call first; empty when it is in no Python code."""
    try:
        threads = parse_json(text)
    except ValueError:
        threads = None
    if not isinstance(threads, list):
        raise FormatError(
            f"py-spy gave no stacks of process {pid}. Is it version 0.4 or later? (py-spy "
            "--version)"
        )
    stacks = [thread for thread in threads if isinstance(thread, dict)]
    chosen = [thread for thread in stacks if thread.get("os_thread_id") == pid]
    chosen = (
        chosen
        or [thread for thread in stacks if thread.get("thread_name") == "MainThread"]
        or stacks
    )
    frames = chosen[0].get("frames") if chosen else None
    return tuple(map(_frame, frames[:MOST_FRAMES])) if isinstance(frames, list) else ()


def _frame(frame: Any) -> Frame:
    frame = as_object(frame)
    line = frame.get("line")
    return Frame(
        name=str(frame.get("name") or "?"),
        file=str(frame.get("filename") or frame.get("short_filename") or "?"),
        line=line if isinstance(line, int) else 0,
    )
