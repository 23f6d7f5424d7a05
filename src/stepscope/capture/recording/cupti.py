"""CUPTI, the part of the profiler that sits inside CUDA: it leaves when a recording is over, and
the process can still end.

Kineto leaves CUPTI from a thread of its own, which waits until the process calls CUDA once more. In
a process that never does, that thread waits for ever, and exit() with it (a destructor waits for
whoever waits). So CUPTI is asked to leave only in a process that uses CUDA, not where the process
ends anyway, and at its end CUDA is called once more.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.guard import is_ours
from stepscope.capture.recording.forked import leave_directly

CUPTI_VARIABLE, CUPTI_MARK = "TEARDOWN_CUPTI", "STEPSCOPE_TEARDOWN_CUPTI"
"""The first is CUPTI's. capture/site.py, which stands by itself, has both names too."""
CALLS, BETWEEN_S = 20, 0.001
"""Calls at the end of the process: the thread that waits for one may only just have been
started."""
_asked: list[int] = []
"""The process in which we asked CUPTI to leave."""


def leave_cupti_after(torch: Any) -> None:
    """Has Kineto leave CUPTI when a recording is over: else each launch goes on paying for it, a
    fifth of a step that the host limits (H200, torch 2.11: 16.1 ms a step before, 20.3 after; 9.8
    and 10.8 with this).

    From CUDA 12.6 on: before that, leaving and CUDA graphs do not go together. What the user has
    set stays.
    """
    version = str(getattr(getattr(torch, "version", None), "cuda", None) or "").split(".")
    numbers = [int(part) for part in version[:2] if part.isdecimal()]
    if len(numbers) == 2 and numbers >= [12, 6] and CUPTI_VARIABLE not in os.environ:
        os.environ[CUPTI_VARIABLE] = os.environ[CUPTI_MARK] = "1"
        _asked[:] = [os.getpid()]


def stay_in_cupti() -> None:
    """The process ends: a recording that is still open is closed without leaving.

    Kineto reads the variable then.
    """
    if _asked:
        os.environ.pop(CUPTI_VARIABLE, None)


def let_cupti_leave() -> None:
    """The process ends: a thread that waits for a call of CUDA gets one.

    Where an error has lost the device, no call works any more, and destructors of the libraries
    end the process with SIGSEGV: they do not run.
    """
    if _asked == [os.getpid()]:
        try:
            for _ in range(CALLS):
                sys.modules["torch"].cuda.current_stream().query()
                clocks.sleep(BETWEEN_S)
        except Exception as error:
            # Part of the boundary.
            if not is_ours(error):
                raise
            leave_directly()
