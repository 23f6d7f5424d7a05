"""The commit that a job was started from, as the files of .git have it: no program is started for
it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from stepscope.protocol.untrusted import read_regular

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)
MAX_BYTES = 16 << 20
"""Bytes of a file of packed names, at most."""


def commit_of(folder: Path) -> str | None:
    """Commit of the checkout that the folder lies in; None where it lies in none, or that cannot be
    read. What is changed and not committed is not seen."""
    with suppress(OSError, ValueError):
        for above in (folder, *folder.parents):
            git = above / ".git"
            if git.is_file():
                # Of a worktree: a file that names the folder.
                git = above / _text(git).removeprefix("gitdir:").strip()
            if git.is_dir():
                return _commit(git)
    return None


def _commit(git: Path) -> str | None:
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return _sound(head)
    name = head.removeprefix("ref:").strip()
    common = git
    if (git / "commondir").is_file():
        common = git / _text(git / "commondir").strip()
    for place in (git, common):
        if ".." not in Path(name).parts and (place / name).is_file():
            return _sound(_text(place / name).strip())
    if not (common / "packed-refs").is_file():
        return None
    lines = _text(common / "packed-refs").splitlines()
    return next(
        (_sound(line.partition(" ")[0]) for line in lines if line.endswith(f" {name}")), None
    )


def _sound(text: str) -> str | None:
    return text if COMMIT.fullmatch(text) else None


def _text(path: Path) -> str:
    return read_regular(path, MAX_BYTES).decode("utf-8")
