"""Checkpoint detection: many tensors fetched one after the other,
nothing launched meanwhile, nothing sent back.

`torch.save` copies each tensor to the host and writes it before it takes the next, so the host's
time from the operator before the first copy to the operator after the last is the save's: pickling,
copying and writing.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.intervals import Intervals, bounds, empty, union
from stepscope.analyses.links import Links
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace

TO_HOST = re.compile(r"DtoH|Device -> (Pageable|Pinned|Host)", re.IGNORECASE)
TO_DEVICE = re.compile(r"HtoD|(Pageable|Pinned|Host) -> Device", re.IGNORECASE)
CARRYING = re.compile(
    r"^aten::(empty\w*|copy_|to|_to_copy|cpu|detach|detach_|alias|view|reshape|contiguous|clone|set_|resize_|select|slice|_unsafe_view)$"
    r"|^detach_?$"
)
"""Operators that only carry a tensor over; any other one is work on what was fetched."""


class Policy(Struct, frozen=True, kw_only=True):
    least_copies: int = 8
    """A model has many tensors; what somebody looks at is a few."""
    least_bytes: int = 1_000_000
    most_back: float = 0.5
    """Share of the bytes fetched in the whole recording that may have been sent to the device
    meanwhile: from there on they may be the same tensors, updated."""
    least_quiet: float = 0.2
    """Share of a save's time with no operator and no call recorded: the pickling and the
    writing."""


POLICY = Policy()


def checkpoint_saves(trace: Trace, links: Links, driving: Bool) -> Intervals:
    """When the host was saving tensors of the device."""
    copies = np.flatnonzero(
        trace.is_kind(Kind.MEMCPY) & (links.launch != NONE) & (trace.size_bytes > 0)
    )
    fetched = copies[matching(trace, TO_HOST)[copies]]
    sent = copies[matching(trace, TO_DEVICE)[copies]]
    total = int(trace.size_bytes[fetched].sum())
    if (
        len(fetched) < POLICY.least_copies
        or int(trace.size_bytes[sent].sum()) > POLICY.most_back * total
    ):
        return empty()
    # The outermost operators and calls of the driving threads, by their start.
    works = driving & trace.is_kind(Kind.OP, Kind.RUNTIME)
    parent = links.parent
    outermost = np.flatnonzero(works & ~((parent != NONE) & works[np.maximum(parent, 0)]))
    top: Int64 = outermost[np.argsort(trace.start_ns[outermost], kind="stable")]
    stretches = [_stretch(trace, series, top) for series in _series(trace, links, fetched)]
    return union(*bounds([stretch for stretch in stretches if stretch is not None]))


def _series(trace: Trace, links: Links, fetched: Int64) -> list[Int64]:
    """The calls of copies that follow one another with no other launch between,
    where they are many and large enough."""
    calls = distinct(links.launch[trace.device_work & (links.launch != NONE)])
    calls = calls[np.argsort(trace.start_ns[calls], kind="stable")]
    size = np.zeros(len(trace), np.int64)
    np.add.at(size, links.launch[fetched], trace.size_bytes[fetched])
    fetching = size[calls] > 0
    bounds = np.flatnonzero(np.diff(np.concatenate([[False], fetching, [False]]).astype(np.int8)))
    series = [calls[low:high] for low, high in bounds.reshape(-1, 2).tolist()]
    return [
        s
        for s in series
        if len(s) >= POLICY.least_copies and int(size[s].sum()) >= POLICY.least_bytes
    ]


def _stretch(trace: Trace, series: Int64, top: Int64) -> tuple[int, int] | None:
    """Stretch from the end of what came before the series to the start of what comes after it; None
    when it is no save."""
    starts = trace.start_ns[top]
    first = int(np.searchsorted(starts, trace.start_ns[series[0]], side="right")) - 1
    last = int(np.searchsorted(starts, trace.start_ns[series[-1]], side="right")) - 1
    carrying = matching(trace, CARRYING)
    calls = trace.is_kind(Kind.RUNTIME)
    while first > 0 and carrying[top[first - 1]]:
        first -= 1
    inside = top[first : last + 1]
    if first < 0 or not bool((carrying | calls)[inside].all()):
        return None
    low = int(trace.end_ns[top[first - 1]]) if first > 0 else int(starts[first])
    high = int(starts[last + 1]) if last + 1 < len(top) else int(trace.end_ns[top[last]])
    quiet = (high - low) - int((trace.end_ns[inside] - trace.start_ns[inside]).sum())
    return (low, high) if quiet > POLICY.least_quiet * (high - low) else None
