"""How batches are made in the training process: by whom, and what making one is: reading files,
waiting for threads, or computing."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.analyses.host.activity import LOADER_RANGE
from stepscope.analyses.host.loader import SERIAL, WORKERS, next_calls
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.host.source_locations import Owner, line_of, owner_of
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.rules.case import Case

STORAGE = re.compile(
    r"^<built-in (?:function|method) (?:open|read\w*|pread\w*|stat|lstat|fstat|listdir|scandir|seek"
    r"|recv\w*|fromfile|getbuffer)\b(?! of torch)|^<built-in function _?imread\b",
)
"""Calls of Python's that go to a file or a socket."""
WAITING = re.compile(
    r"^<built-in (?:function|method) (?:acquire|select|poll|sleep|wait)\b"
    r"|^queue\.py\(\d+\): get$|^threading\.py\(\d+\): wait$"
)
"""Calls in which Python waits for another thread."""
HEAVY = 0.5
"""Share of the time in which batches are made from which a function or a kind of work counts: the
innermost function that holds so much of it is named, and what so much of it is spent in, it is."""
STORES = "shards in place of many small files, a local copy, or a cache of what is read"
ON_DEVICE = (
    "cheaper transforms, or on the device (torchvision.transforms.v2, Kornia, NVIDIA DALI) or done "
    "once beforehand"
)


class Making(Struct, frozen=True, kw_only=True):
    line: str
    """`data.py:18 in read_file`: the innermost function of the job's that holds most of it."""
    share: float
    """Share of the making that is inside that function."""
    storage: float
    """Share of the making spent in calls that go to a file or a socket."""
    waiting: float
    """Share of the making spent in waits for other threads."""

    @property
    def words(self) -> str:
        """Words for the evidence."""
        return f"{self.share:.0%} of it in {self.line}: {self._what}"

    @property
    def _what(self) -> str:
        if self.storage >= HEAVY:
            return f"storage, {self.storage:.0%} of it in reading files"
        if self.waiting >= HEAVY:
            return f"threads of its own, {self.waiting:.0%} of it waiting for them"
        read = f", {self.storage:.0%} in reading files" if self.storage >= 0.01 else ""
        return f"it computes (transforms, decoding){read}"

    @property
    def remedy(self) -> str:
        """What makes a batch cheaper."""
        if self.storage >= HEAVY:
            return STORES
        return "" if self.waiting >= HEAVY else ON_DEVICE


def own_calls(case: Case) -> Int64:
    """Where a loop makes its batches with no DataLoader: ranges and functions that are named for
    it, the outermost ones. None beside a DataLoader's own calls."""
    trace, host = case.context.trace, case.context.host
    none = np.empty(0, np.int64)
    if len(next_calls(trace, host, SERIAL)) or len(next_calls(trace, host, WORKERS)):
        return none
    named = trace.is_kind(Kind.MARK, Kind.PYTHON) & host.driving & matching(trace, LOADER_RANGE)
    calls = np.flatnonzero(named)
    if len(calls) == 0:
        return none
    parent = case.context.links.parent
    outermost: Int64 = calls[ancestor_with(parent, parent[calls], named) == NONE]
    return outermost


def making_of(case: Case, calls: Int64) -> Making | None:
    """None without Python's frames, and where no function of the job's stands out."""
    if not case.has_lines or len(calls) == 0:
        return None
    trace, parent = case.context.trace, case.context.links.parent
    called = np.zeros(len(trace), np.bool_)
    called[calls] = True
    frames = np.flatnonzero(trace.is_kind(Kind.PYTHON))
    inside = frames[(ancestor_with(parent, frames, called) != NONE) | called[frames]]
    whole = max(float(trace.dur_ns[calls].sum()), 1.0)
    names, which = np.unique(trace.name[inside], return_inverse=True)
    spent = np.bincount(which, _once_ns(case, inside), len(names)) / whole
    heavy = [
        (float(share), str(trace.names[name]))
        for name, share in zip(names.tolist(), spent.tolist(), strict=True)
        if share >= HEAVY and owner_of(str(trace.names[name])) in (Owner.USER, Owner.LIBRARY)
    ]
    if not heavy:
        return None
    share, name = min(heavy)
    return Making(
        line=line_of(name),
        share=min(share, 1.0),
        storage=_share_in(case, inside, STORAGE, whole),
        waiting=_share_in(case, inside, WAITING, whole),
    )


def _once_ns(case: Case, frames: Int64) -> np.ndarray:
    """Each frame's time, but for one that is inside another of the same name."""
    trace, parent = case.context.trace, case.context.links.parent
    above = parent[frames]
    is_again = (above != NONE) & (trace.name[np.maximum(above, 0)] == trace.name[frames])
    return np.where(is_again, 0.0, trace.dur_ns[frames].astype(np.float64))


def _share_in(case: Case, frames: Int64, pattern: re.Pattern[str], whole: float) -> float:
    trace, parent = case.context.trace, case.context.links.parent
    named: Bool = matching(trace, pattern)
    mine = frames[named[frames]]
    outermost = mine[ancestor_with(parent, parent[mine], named) == NONE]
    return min(float(trace.dur_ns[outermost].sum()) / whole, 1.0)
