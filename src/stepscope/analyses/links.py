"""Launch links: which host call started which work on the device."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.graph_replays import captured_calls
from stepscope.analyses.grouping import matching
from stepscope.analyses.host.nesting import enclosing
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace

CLOCK_SKEW_NS = 1_000_000
"""How far the recorder's device clock may lag its host clock:
recorders align them to within microseconds, some to less."""


class Links(Struct, frozen=True, kw_only=True):
    """Links of each event of the trace (NONE where they do not apply)."""

    parent: Int64
    """Host ranges: the innermost range it began in."""
    launch: Int64
    """Device work: the host event that launched it, a runtime call or,
    where none was recorded, an operator."""
    op: Int64
    """Device work: the innermost host range (not a runtime call) it was launched in."""
    shared: Bool
    """Device work: its launching call launched other work too (a CUDA graph)."""
    captured: Int64
    """Kernels of a CUDA graph: the call that launched the same kernel in the run that was
    captured, where the recording holds it."""

    def origin(self, work: Int64) -> Int64:
        """The host event each piece of device work comes from: in the captured run, where it
        is a graph's and that is known; else what launched it."""
        captured = self.captured[work]
        origin: Int64 = np.where(captured == NONE, self.launch[work], captured)
        return origin


def link(trace: Trace) -> Links:
    """Links of every device event, by correlation id, else by the external id both sides carry."""
    parent = enclosing(trace)
    launch = np.full(len(trace), NONE, np.int64)
    device = np.flatnonzero(trace.device_work)
    calls = np.flatnonzero(trace.is_kind(Kind.RUNTIME) & (trace.correlation != NONE))
    launch[device] = match_ids(trace.correlation[device], trace.correlation[calls], calls)
    _drop_effects_before_causes(trace, launch, device)
    lost = device[launch[device] == NONE]
    if len(lost):
        ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.external > 0))
        launch[lost] = match_ids(trace.external[lost], trace.external[ops], ops)
        _drop_effects_before_causes(trace, launch, lost)
    return Links(
        parent=parent,
        launch=launch,
        op=_launching_range(trace, parent, launch, device),
        shared=_shared(trace, launch, device),
        captured=captured_calls(trace, parent, launch),
    )


def match_ids(wanted: Int64, keys: Int64, events: Int64) -> Int64:
    """Last event that carries each wanted id."""
    result = np.full(len(wanted), NONE, np.int64)
    if len(keys) == 0:
        return result
    order = np.argsort(keys, kind="stable")
    ids = keys[order]
    index = np.searchsorted(ids, wanted, side="right") - 1
    hit = (index >= 0) & (ids[np.maximum(index, 0)] == wanted) & (wanted != NONE)
    result[hit] = events[order[index[hit]]]
    return result


def _drop_effects_before_causes(trace: Trace, launch: Int64, device: Int64) -> None:
    """Ids are used again: work that was already running when its
    supposed launch began was launched before the recording."""
    call = launch[device]
    impossible = (call != NONE) & (
        trace.start_ns[np.maximum(call, 0)] > trace.start_ns[device] + CLOCK_SKEW_NS
    )
    launch[device[impossible]] = NONE


def _launching_range(trace: Trace, parent: Int64, launch: Int64, device: Int64) -> Int64:
    op = np.full(len(trace), NONE, np.int64)
    linked = device[launch[device] != NONE]
    ancestor = launch[linked]
    while True:
        # A runtime call can stand inside another (cudaLaunch inside cuLaunch):
        # step out of all of them.
        runtime = (ancestor != NONE) & (trace.kind[np.maximum(ancestor, 0)] == Kind.RUNTIME)
        if not runtime.any():
            break
        ancestor = np.where(runtime, parent[np.maximum(ancestor, 0)], ancestor)
    op[linked] = ancestor
    return op


def _shared(trace: Trace, launch: Int64, device: Int64) -> Bool:
    shared = np.zeros(len(launch), np.bool_)
    linked = device[launch[device] != NONE]
    # An operator launches much; only a call that did is a graph's launch.
    linked = linked[trace.kind[launch[linked]] == int(Kind.RUNTIME)]
    if len(linked):
        shared[linked] = np.bincount(launch[linked])[launch[linked]] > 1
    return shared


LIBRARY_KERNEL = re.compile(r"nccl|rccl|oneccl|hccl|msccl|nvshmem|deep_?ep::", re.IGNORECASE)
"""Kernels of the communication libraries, whatever their release calls them (ncclKernel,
ncclDevKernel, ncclSymk, ...)."""

C10D_OP = re.compile(r"^(record_param_comms|c10d::|nccl:|rccl:|symm_mem::)")
"""What c10d records around a collective."""

HOST_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc):")


def library_collectives(trace: Trace) -> Bool:
    """Mask of the kernels of a communication library, or marked as a collective by the recorder."""
    mask: Bool = trace.is_kind(Kind.KERNEL) & (
        matching(trace, LIBRARY_KERNEL) | (trace.collective != NONE)
    )
    return mask


def collective_kernels(trace: Trace, links: Links) -> Bool:
    """Mask of all kernels that move data between ranks:
    a library's, and those a c10d op launched directly (symmetric memory)."""
    library = library_collectives(trace)
    if len(trace) == 0:
        return library
    launched_by = (links.op != NONE) & matching(trace, C10D_OP)[np.maximum(links.op, 0)]
    mask: Bool = library | (trace.is_kind(Kind.KERNEL) & launched_by)
    return mask


def host_collectives(trace: Trace) -> Bool:
    """Mask of the host ranges that carry a collective themselves (gloo, MPI, UCC):
    marks such as `gloo:all_reduce`."""
    mask: Bool = trace.is_kind(Kind.OP, Kind.MARK) & matching(trace, HOST_COLLECTIVE)
    return mask
