"""A track while it is read: the slices that are open on it, and those that wait for their order.

A begin and an end come by time in most files. PyTorch's own writer puts all begins of a kind before
all their ends, and leaves it to the reader to sort them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from stepscope.core.trace import DeviceProperties

Slice = tuple[int, str, str, dict[str, int]]
"""When it began, its name, its category, and the numbers noted down with it."""
Waiting = tuple[int, Slice | None]
"""When, and what begins then; None where one ends."""


@dataclass(slots=True)
class TrackOwner:
    """Where a track's slices stand, as far as its descriptors tell."""

    pid: int
    tid: int | None
    owner: int
    is_ours: bool
    is_agent: bool
    version: int


@dataclass(slots=True)
class Track:
    name: str = ""
    parent: int = 0
    pid: int | None = None
    tid: int | None = None
    process: str = ""
    devices: tuple[DeviceProperties, ...] = ()
    uuid: int = 0
    open: list[Slice] = field(default_factory=list)
    num_deep: int = 0
    resolved: TrackOwner | None = None
    waiting: list[Waiting] = field(default_factory=list)

    def by_time(self) -> Iterator[Waiting]:
        """What waits, by time. At one moment what was open before ends first, then what begins
        does; what began at that moment may end at it too. To be asked while each is dealt with."""
        self.waiting.sort(key=itemgetter(0))
        for _, group in groupby(self.waiting, key=itemgetter(0)):
            at_once = list(group)
            ends = [each for each in at_once if each[1] is None]
            # What is open now began earlier.
            num_before = min(len(ends), len(self.open))
            yield from ends[:num_before]
            yield from (each for each in at_once if each[1] is not None)
            yield from ends[num_before:]
        self.waiting.clear()
