"""What a process's control group (cgroup v1 or v2) grants it: cores and memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 says "no limit" by a number near 2**63."""


def cpu_quota(root: Path = Path("/"), process: str = "self") -> float | None:
    """Cores' worth of time that the control group grants; None where there is no limit.

    The tightest of all parents counts.
    """
    limits = [_words(folder / "cpu.max") for folder in _groups(root, "", process)]
    limits += [
        _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        for folder in _groups(root, "cpu", process)
    ]
    quotas = [_quota(words) for words in limits]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the control group grants; None where there is no limit."""
    tightest = memory_group(root)
    return None if tightest is None else tightest[0]


def memory_group(root: Path = Path("/")) -> tuple[int, Path, Path] | None:
    """The tightest limit in bytes, with the files that tell what is used and of which kind; None
    where there is no limit."""
    names = (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    )
    limits = [
        (int(word), folder / used, folder / "memory.stat")
        for controller, limit, used in names
        for folder in _groups(root, controller)
        for word in _words(folder / limit)[:1]
        if word.isdecimal() and int(word) < NO_LIMIT_BYTES
    ]
    return min(limits, default=None)


def throttle_file(root: Path = Path("/"), process: str = "self") -> Path | None:
    """Where the control group counts the times it held the process back."""
    for controller in ("", "cpu"):
        for folder in _groups(root, controller, process):
            if _words(folder / "cpu.stat") and (
                _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us")
            ):
                return folder / "cpu.stat"
    return None


def _groups(root: Path, controller: str, process: str = "self") -> Iterator[Path]:
    """The folders of the process's control group and of its parents: v2 for "", else that
    controller of v1.

    In a container /proc may name the group as the host sees it, which is not there; the top folder
    then is the container's own.
    """
    lines = [word.split(":", 2) for word in _words(root / f"proc/{process}/cgroup")]
    for path in [line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")]:
        top = root / "sys/fs/cgroup" / controller
        inner = top / path.strip("/")
        while ".." not in inner.parts:
            yield inner
            if inner == top or top not in inner.parents:
                return
            inner = inner.parent


def _quota(words: list[str]) -> float | None:
    if len(words) < 2 or not words[0].isdecimal() or not words[1].isdecimal() or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
