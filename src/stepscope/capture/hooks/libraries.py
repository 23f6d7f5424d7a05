"""Hooks on classes of libraries that the job itself imports, and no others. A job may import one
late: it is hooked when it is there."""

from __future__ import annotations

import sys
from typing import NamedTuple

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.probes import Probe, watch


class _Wanted(NamedTuple):
    module: str
    kind: str
    methods: tuple[str, ...]
    probe: Probe


class Libraries:
    """Libraries that have not come yet."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._left: list[_Wanted] = []

    def add(self, table: dict[str, tuple[str, tuple[str, ...]]], probe: Probe) -> None:
        """Has the methods of a table of hooks/changes.py call the probe."""
        self._left += [_Wanted(name, *rest, probe) for name, rest in table.items()]

    def look(self) -> None:
        """Hooks those that have come; any thread may ask."""
        for wanted in [wanted for wanted in self._left if wanted.module in sys.modules]:
            kind = getattr(sys.modules[wanted.module], wanted.kind, None)
            if kind is None:
                # Its module is still being imported.
                continue
            self._left.remove(wanted)
            for method in wanted.methods:
                watch(self._guard, kind.__dict__.get(method), wanted.probe)
