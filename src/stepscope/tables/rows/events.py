"""The tables of one rank's events: all of them, and the runtime's calls."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import NONE, Int64, Kind, Trace
from stepscope.tables.rows.columns import Rows, Values, coded, named, plain, recorded_ints

KINDS = tuple(kind.name.lower() for kind in Kind)


def event_rows(context: RankContext) -> Rows:
    """Every event of the trace."""
    trace = context.trace
    every = np.arange(len(trace), dtype=np.int64)
    return {
        "event": plain(every),
        "kind": coded(trace.kind, KINDS),
        "name": coded(trace.name, trace.names),
        "start_ns": plain(trace.start_ns),
        "dur_ns": plain(trace.dur_ns),
        "parent": recorded_ints(context.links.parent),
        "step": recorded_ints(step_of(context, every)),
        **where(trace, every),
        "device": recorded_ints(trace.device),
        "stream": recorded_ints(trace.stream),
        "correlation": recorded_ints(trace.correlation),
        "external_id": recorded_ints(trace.external),
        "sequence": recorded_ints(trace.sequence),
        "size_bytes": recorded_ints(trace.size_bytes),
    }


def launch_rows(context: RankContext) -> Rows:
    """Every call of the runtime."""
    trace, links = context.trace, context.links
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
        "step": recorded_ints(step_of(context, calls)),
        "start_ns": plain(trace.start_ns[calls]),
        "dur_ns": plain(trace.dur_ns[calls]),
        **where(trace, calls),
        "correlation": recorded_ints(trace.correlation[calls]),
        "num_work": plain(num[calls]),
        "delay_ns": Values(data=delay, missing=~launched),
    }


def step_of(context: RankContext, events: Int64) -> Int64:
    """Device work: the step that launched it. What the host did: the step it began in."""
    trace, cut = context.trace, context.cut
    host: Int64 = np.searchsorted(cut.host_start, trace.start_ns[events], side="right") - 1
    # Without device work the cut holds the host's own events;
    # both count from one step's start to the next one's.
    return np.where(trace.device_work[events], cut.step_of[events], np.maximum(host, NONE))


def where(trace: Trace, events: Int64) -> dict[str, Values]:
    """Process, thread and its name."""
    code = trace.thread[events]
    unnamed = np.array([thread.name is None for thread in trace.threads], np.bool_)
    names = [thread.name or "" for thread in trace.threads]
    return {
        "process": coded(code, [thread.pid for thread in trace.threads]),
        "thread": coded(code, [thread.tid for thread in trace.threads]),
        "thread_name": coded(np.where(unnamed[code], NONE, code) if names else code, names),
    }
