"""The process beside a job that notices when stepscope is gone.

Requests come on stdin, one a line. The end of stdin without `done` means that stepscope was killed.

    job PID     the job's first process
    asked N     which signals has this process got since it was last asked? "N 2 15" on stdout
    done        the job is over

Every signal is blocked from the start: one that is sent to the whole process group waits here until
somebody asks.
"""

from __future__ import annotations

import os
import signal
import sys

from stepscope.process.members import end, first_process, hang_up

HANG_UP, END = "hang-up", "end"
"""What becomes of the job when stepscope is gone: what a closed terminal does to it, or its end,
with all that it started."""


def main(fate: str, mark: str) -> None:
    first = None
    for line in sys.stdin.buffer:
        word, *rest = line.split()
        if word == b"job":
            first = first_process(int(rest[0]))
        elif word == b"asked":
            os.write(1, b" ".join([*rest, *(b"%d" % number for number in taken())]) + b"\n")
        elif word == b"done":
            return
    (hang_up if fate == HANG_UP else end)(first, os.fsencode(mark))


def taken() -> list[int]:
    """The signals that wait, which thereby wait no longer."""
    numbers = sorted(signal.sigpending())
    for number in numbers:
        signal.sigwait({number})
    return numbers
