"""What the process may still take of the host's memory before a limit ends it.

What the machine has left is in host.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stepscope.capture.counters.host import TOP, read_all
from stepscope.protocol.control_group import memory_group

RECLAIMABLE = (b"inactive_file", b"total_inactive_file")
"""Cache of files that the kernel drops before it ends a process; the second counts a group of
version 1 with its children."""


class MemoryLeft:
    """Of the control group, whose limit its processes share, and of this process's address
    space."""

    def __init__(self, root: Path = TOP) -> None:
        self.notes: list[str] = []
        self._statm = f"{root}/proc/self/statm"
        self._group = memory_group(root)

    def take(self) -> dict[str, Any]:
        return self._of_group() | self._of_address_space()

    def _of_group(self) -> dict[str, int]:
        if self._group is None:
            return {}
        limit, used, kinds = self._group
        words = read_all(str(kinds)).split()
        sizes = dict(zip(words[::2], words[1::2], strict=False))
        reclaimable = max(int(sizes.get(name, 0)) for name in RECLAIMABLE)
        left = limit - int(read_all(str(used))) + reclaimable
        return {"cgroup_memory_left_bytes": max(left, 0)}

    def _of_address_space(self) -> dict[str, int]:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return {}
        held = int(read_all(self._statm).split(None, 1)[0]) * os.sysconf("SC_PAGE_SIZE")
        return {"address_space_left_bytes": max(limit - held, 0)}
