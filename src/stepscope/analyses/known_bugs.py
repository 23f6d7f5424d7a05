"""Bugs of profilers that are known by their versions, as data: a note where a recording was made
with such a version and shows what the bug does.

A version alone is no reason to doubt a recording; `shown_by` names what must be seen in it too.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from stepscope.analyses.graph_replays import GRAPH_LAUNCH
from stepscope.core.trace import Kind, Trace

FILE = "known_bugs.json"
LAUNCH = re.compile(r"^(?:cu|cuda|hip)\w*LaunchKernel")


class KnownBug(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bug, and where it is told of."""

    what: str
    """Part of the recording that is wrong."""
    because: str
    reference: str
    """Public."""
    field: str
    """Field of the trace's own header in which the version stands."""
    least: int
    below: int
    """Versions of the bug: from the first, up to the second without it."""
    shown_by: str
    """graph launches, lost kernels, or launches without kernels."""


@cache
def known_bugs() -> tuple[KnownBug, ...]:
    """All that are written down."""
    text = Path(__file__).with_name(FILE).read_bytes()
    return msgspec.json.decode(text, type=tuple[KnownBug, ...])


def bug_notes(trace: Trace, num_lost: int) -> tuple[str, ...]:
    """A sentence for each bug that the recording shows."""
    bugs = [bug for bug in known_bugs() if _is_of(bug, trace)]
    signs = _signs(trace, num_lost) if bugs else frozenset()
    return tuple(
        f"{bug.what} may be wrong: {bug.because} ({bug.reference})"
        for bug in bugs
        if bug.shown_by in signs
    )


def _is_of(bug: KnownBug, trace: Trace) -> bool:
    version = trace.meta.versions.get(bug.field, "")
    return version.isdecimal() and len(version) < 10 and bug.least <= int(version) < bug.below


def _signs(trace: Trace, num_lost: int) -> frozenset[str]:
    """Effects of the bugs that are in the trace."""
    codes = np.bincount(trace.name.take(np.flatnonzero(trace.is_kind(Kind.RUNTIME))))
    calls = {trace.names[code] for code in np.flatnonzero(codes).tolist()}
    has_graphs = any(map(GRAPH_LAUNCH.match, calls))
    has_launches = has_graphs or any(map(LAUNCH.match, calls))
    has_kernels = bool(trace.is_kind(Kind.KERNEL).any())
    signs = (
        ("graph launches", has_graphs and has_kernels),
        ("lost kernels", num_lost > 0),
        ("launches without kernels", has_launches and not has_kernels),
    )
    return frozenset(word for word, is_seen in signs if is_seen)
