"""One look into a process through py-spy, and what to say where it is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from stepscope.core.recordings.stacks import Frame

DUMP_S = 20.0
"""What one look at one process may take."""
REFUSED = ("permission denied", "not permitted", "must be root", "ptrace")


class NotPermittedError(InputError):
    """The system does not let us look into that process."""


def find_spy() -> str:
    """py-spy, on PATH or beside this Python."""
    installed = Path(sys.executable).with_name("py-spy")
    spy = shutil.which("py-spy") or (str(installed) if installed.is_file() else None)
    if spy is None:
        raise UsageError(
            "attach looks into processes through py-spy, which is not here: pip install "
            "'stepscope[attach]'"
        )
    return spy


def dump(spy: str, pid: int) -> tuple[Frame, ...]:
    """The training thread's stack."""
    from stepscope.readers.host.stacks import training_stack

    try:
        done = subprocess.run(
            [spy, "dump", "--pid", str(pid), "--json"],
            capture_output=True,
            timeout=DUMP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"py-spy did not answer about process {pid} in {DUMP_S:.0f} s") from None
    except OSError as problem:
        raise UsageError(
            f"{spy} could not be run: {problem.strerror}. Install it again: pip install "
            "'stepscope[attach]'"
        ) from None
    if done.returncode == 0:
        return training_stack(done.stdout, pid)
    said = (
        " ".join(done.stderr.decode(errors="replace").split())[:300]
        or f"exit code {done.returncode}"
    )
    if any(word in said.lower() for word in REFUSED):
        raise NotPermittedError(_refusal_words(pid))
    raise InputError(f"py-spy could not look into process {pid}: {said}")


def _refusal_words(pid: int) -> str:
    """What opens the door, by what may have shut it."""
    return (
        f"this system does not let us look into process {pid}. "
        "As another user's, or where kernel.yama.ptrace_scope is not 0: sudo env PATH=$PATH "
        f"stepscope attach {pid} "
        "(or, until the next start, sudo sysctl kernel.yama.ptrace_scope=0). "
        "In a container: start it with --cap-add SYS_PTRACE (Kubernetes: "
        "securityContext.capabilities.add: [SYS_PTRACE])"
    )
