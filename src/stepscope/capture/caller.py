"""Which line of the training code called what a hook watches."""

from __future__ import annotations

import os
import sys
from types import FrameType

MAX_FRAMES = 40
_STANDARD = os.path.dirname(os.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_INSTALLED = tuple(f"{os.sep}{name}-packages{os.sep}" for name in ("site", "dist"))


def calling_line(of: FrameType | None = None) -> str | None:
    """The innermost line of the job's own code that is being run, as a profiler names a frame:
    `path/train.py(41): main`. A library's where the job has none of its own; None where only torch
    and the standard library run. `of`: another thread's frame."""
    frame = of or sys._getframe(1)  # noqa: SLF001 - the only way to it
    library: FrameType | None = None
    for _ in range(MAX_FRAMES):
        path = frame.f_code.co_filename
        is_installed = any(part in path for part in _INSTALLED)
        is_torch = is_installed and f"{os.sep}torch{os.sep}" in path
        is_own = not is_installed and not path.startswith((_STANDARD, _OURS, "<frozen"))
        if is_own:
            return _named(frame)
        if is_installed and not is_torch and library is None:
            library = frame
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None if library is None else _named(library)


def _named(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}"
