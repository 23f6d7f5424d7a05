"""The tables of one rank's events: all of them, and the runtime's calls."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.tables.columns import Rows, Values, coded, named, plain, told
from stepscope.core.trace import NONE, Int64, Kind, Trace

KINDS = tuple(kind.name.lower() for kind in Kind)


def event_rows(found: RankContext) -> Rows:
    """Every event of the trace."""
    trace = found.trace
    every = np.arange(len(trace), dtype=np.int64)
    return {
        "event": plain(every),
        "kind": coded(trace.kind, KINDS),
        "name": coded(trace.name, trace.names),
        "start_ns": plain(trace.start_ns),
        "dur_ns": plain(trace.dur_ns),
        "parent": told(found.links.parent),
        "step": told(step_of(found, every)),
        **where(trace, every),
        "device": told(trace.device),
        "stream": told(trace.stream),
        "correlation": told(trace.correlation),
        "external_id": told(trace.external),
        "sequence": told(trace.sequence),
        "size_bytes": told(trace.size_bytes),
    }


def launch_rows(found: RankContext) -> Rows:
    """Every call of the runtime."""
    trace, links = found.trace, found.links
    calls = np.flatnonzero(trace.is_kind(Kind.RUNTIME))
    work = np.flatnonzero(links.launch != NONE)
    num = np.zeros(len(trace), np.int64)
    np.add.at(num, links.launch[work], 1)
    first = np.full(len(trace), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, links.launch[work], trace.start_ns[work])
    op = ancestor_with(links.parent, calls, trace.is_kind(Kind.OP))
    launched = num[calls] > 0
    delay = np.where(launched, first[calls], trace.start_ns[calls]) - trace.start_ns[calls]
    return {
        "event": plain(calls),
        "name": named(calls, trace.name, trace.names),
        "op": named(op, trace.name, trace.names),
        "step": told(step_of(found, calls)),
        "start_ns": plain(trace.start_ns[calls]),
        "dur_ns": plain(trace.dur_ns[calls]),
        **where(trace, calls),
        "correlation": told(trace.correlation[calls]),
        "num_work": plain(num[calls]),
        "delay_ns": Values(data=delay, missing=~launched),
    }


def step_of(found: RankContext, events: Int64) -> Int64:
    """Device work: the step that launched it. What the host did: the step it began in."""
    trace, cut = found.trace, found.cut
    host: Int64 = np.searchsorted(cut.host_start, trace.start_ns[events], side="right") - 1
    # Without device work the cut has told the host's own events; both ways count from one step's start to the next one's.
    return np.where(trace.device_work[events], cut.step_of[events], np.maximum(host, NONE))


def where(trace: Trace, events: Int64) -> dict[str, Values]:
    """Process, thread and its name."""
    thread = trace.thread[events]
    unnamed = np.array([one.name is None for one in trace.threads], np.bool_)
    names = [one.name or "" for one in trace.threads]
    return {
        "process": coded(thread, [one.pid for one in trace.threads]),
        "thread": coded(thread, [one.tid for one in trace.threads]),
        "thread_name": coded(np.where(unnamed[thread], NONE, thread) if names else thread, names),
    }
