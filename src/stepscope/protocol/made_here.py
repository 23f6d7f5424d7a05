"""Which run folders this user made on this machine: the rest never run without a question.

`fix` starts the command that a run folder tells, and a run folder may be a stranger's. So the one
that makes it puts a mark in RUN/run.json: a keyed digest of the command, the folder it was started
in and the run folder's own place. The key is this user's, in a file of the user's state folder that
nobody else can read, and another one on each machine. A folder that was copied, moved, edited, made
by somebody else, or by a version that put no mark, has none that is right.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.protocol.json_text import json_text

MARK, STARTED_IN = "mark", "started_in"
"""Fields of RUN/run.json."""
KEY_BYTES = 32
KEY_NAME = "run-key-{machine}"
MACHINE_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
PURPOSE = "stepscope.run.command/1"


def marked(run: Path, command: Sequence[str]) -> dict[str, str]:
    """What RUN/run.json gets of it. No mark where no key can be kept."""
    with suppress(OSError, RuntimeError):
        started_in = os.getcwd()
        key = _key(is_made=True)
        if key is not None:
            mark = _digest(key, run, command, started_in)
            return {STARTED_IN: started_in, MARK: mark}
    return {}


def doubt(run: Path, told: Mapping[str, Any]) -> str | None:
    """Why a command that RUN/run.json tells is not to be run without a question; None: it was
    started by this user, on this machine, in this working folder, and the run folder is where it
    was."""
    started_in = told.get(STARTED_IN)
    if not isinstance(told.get(MARK), str) or not isinstance(started_in, str):
        return "it has no mark of this user on this machine"
    try:
        if not has_our_mark(run, told):
            return (
                "its mark is not this user's on this machine, or it was copied, moved or edited"
                " since"
            )
        if os.path.realpath(started_in) != os.path.realpath(os.getcwd()):
            return f"it was started in {started_in}, and this is another folder"
    except (OSError, RuntimeError) as problem:
        return f"its mark could not be checked ({problem})"
    return None


def has_our_mark(run: Path, told: Mapping[str, Any]) -> bool:
    """Whether this user made the run folder, on this machine, and it is where it was."""
    import hmac

    command, mark, started_in = told.get("command"), told.get(MARK), told.get(STARTED_IN)
    if not (isinstance(mark, str) and isinstance(started_in, str) and isinstance(command, list)):
        return False
    key = _key(is_made=False)
    return key is not None and hmac.compare_digest(
        _digest(key, run, command, started_in).encode(), mark.encode("utf-8", "replace")
    )


def _digest(key: bytes, run: Path, command: Sequence[object], started_in: str) -> str:
    import hmac

    told = [PURPOSE, os.path.realpath(run), list(command), started_in]
    return hmac.new(key, json_text(told).encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def _key(*, is_made: bool) -> bytes | None:
    """Key of this user on this machine; None where there is none, or where others may read it."""
    path = state_folder() / KEY_NAME.format(machine=_machine())
    key = _read_key(path)
    if key is not None or not is_made or path.exists():
        return key
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Whole or not at all, and the first of two that make one at once is both's.
    part = path.with_name(f"{path.name}.{os.getpid()}")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, os.urandom(KEY_BYTES))
    finally:
        os.close(file)
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    except OSError:
        # A file system without links.
        part.replace(path)
    part.unlink(missing_ok=True)
    return _read_key(path)


def _read_key(path: Path) -> bytes | None:
    """Where it is a file of this user's that nobody else can read or write."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        about = os.fstat(file)
        is_private = stat.S_ISREG(about.st_mode) and not about.st_mode & 0o077
        if not is_private or about.st_uid != os.geteuid():
            return None
        key = os.read(file, KEY_BYTES + 1)
    finally:
        os.close(file)
    return key if len(key) == KEY_BYTES else None


def state_folder() -> Path:
    """$XDG_STATE_HOME/stepscope, ~/.local/state/stepscope where it is not set."""
    if sys.platform == "darwin" and not os.environ.get("XDG_STATE_HOME"):
        return Path.home() / "Library" / "Application Support" / "stepscope"
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "stepscope"


def _machine() -> str:
    """A name for this machine, of which its own number cannot be told."""
    import hashlib

    for file in MACHINE_FILES:
        with suppress(OSError):
            return hashlib.sha256(PURPOSE.encode() + Path(file).read_bytes()[:64]).hexdigest()[:16]
    return "here"
