"""Kernels of a CUDA graph, and the calls that launched the same kernels when it was captured.

A replay is one call: what it launches carries that call's id, and no operator. Where the recording
also holds the run that was captured, its operators are known in one of two ways:

- the region ran eagerly too (the warm-up before a capture, or the steps before it): the same
  kernels, by name, grid and block, one after the other on one stream, with nothing in between;
- the capture itself was recorded: launches between the begin and the end of a capture put no work
  on the device, and a graph of one stream runs its kernels in the order of those launches.

What fits two runs that differ in operators or frames is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.core.trace import NONE, Bool, Int64, Kind, Launch, Trace

GRAPH_LAUNCH = re.compile(r"^(?:cu|cuda|hip)\w*GraphLaunch")
KERNEL_LAUNCH = re.compile(r"^(?:cu|cuda|hip)\w*Launch\w*Kernel")
BEGIN_CAPTURE = re.compile(r"^(?:cu|cuda|hip)StreamBeginCapture")
END_CAPTURE = re.compile(r"^(?:cu|cuda|hip)StreamEndCapture")
FORK = re.compile(r"^(?:cu|cuda|hip)StreamWaitEvent")
COMPILED = re.compile(r"^triton_\w+_fused_")
"""Inductor's names, which are of one region of the program."""

MIN_KERNELS = 8
"""Fewer in the same order may be chance, unless a compiled kernel is among them."""
MAX_GRAPHS = 256
"""Distinct replays that are looked for; a training job has a few."""
LOOKS_PER_KERNEL = 256
"""Comparisons, over all replays, before the rest is left out:
a bound for recordings that repeat themselves."""
OTHER = -1
"""Mark of a kernel in a row that no operator can be read off."""


class _Replay(Struct, frozen=True, kw_only=True):
    """A graph, as its replays show it."""

    keys: Int64
    """Keys of its kernels in order."""
    kernels: tuple[Int64, ...]
    """The same of each replay, as events."""


def captured_calls(trace: Trace, parent: Int64, launch: Int64) -> Int64:
    """Call that launched each kernel of a replay in the captured run; NONE where that cannot be
    told, and for all other events."""
    captured = np.full(len(trace), NONE, np.int64)
    is_replay = trace.is_kind(Kind.RUNTIME) & matching(trace, GRAPH_LAUNCH)
    if not is_replay.any():
        return captured
    kernels = np.flatnonzero(trace.is_kind(Kind.KERNEL))
    keys = _keys(trace, kernels)
    linked = launch[kernels] != NONE
    in_graph = linked & is_replay[np.maximum(launch[kernels], 0)]
    replays = _replays(trace, launch, kernels[in_graph], keys[in_graph])
    keys[in_graph | ~linked] = OTHER
    rows = list(_rows(trace, kernels, keys))
    looks = LOOKS_PER_KERNEL * len(kernels)
    for replay in replays:
        calls, spent = _eager_calls(trace, parent, launch, replay, rows, looks)
        looks -= spent
        if calls is not None:
            _assign(captured, replay, calls)
    for replay, calls in _by_capture(trace, parent, launch, replays):
        if not (captured[replay.kernels[0]] != NONE).any():
            _assign(captured, replay, calls)
    return captured


def _assign(captured: Int64, replay: _Replay, calls: Int64) -> None:
    for kernels in replay.kernels:
        captured[kernels] = calls


def _keys(trace: Trace, kernels: Int64) -> Int64:
    """Number of each kernel for its name, grid and block."""
    shape = np.zeros(len(trace.details) + 1, np.int64)
    shapes: dict[object, int] = {None: 0}
    for code in distinct(trace.detail[kernels]).tolist():
        detail = None if code == NONE else trace.details[code]
        if isinstance(detail, Launch):
            shape[code] = shapes.setdefault((detail.grid, detail.block), len(shapes))
    keys: Int64 = trace.name[kernels].astype(np.int64) * len(shapes) + shape[trace.detail[kernels]]
    return keys


def _replays(trace: Trace, launch: Int64, kernels: Int64, keys: Int64) -> list[_Replay]:
    """The distinct graphs of one stream: on several, the order of kernels is not that of launches.
    Kernels come in order of time."""
    order = np.argsort(launch[kernels], kind="stable")
    kernels, keys = kernels[order], keys[order]
    cuts = np.flatnonzero(np.diff(launch[kernels])) + 1
    alike: dict[bytes, tuple[Int64, list[Int64]]] = {}
    for mine, row in zip(np.split(kernels, cuts), np.split(keys, cuts), strict=True):
        streams = trace.stream[mine]
        if not len(mine) or (streams != streams[0]).any():
            continue
        text = row.tobytes()
        if text in alike or len(alike) < MAX_GRAPHS:
            alike.setdefault(text, (row, []))[1].append(mine)
    return [_Replay(keys=row, kernels=tuple(events)) for row, events in alike.values()]


def _rows(trace: Trace, kernels: Int64, keys: Int64) -> Iterator[tuple[Int64, Int64]]:
    """Kernels of each stream of each device in order of time, and their keys."""
    order = np.lexsort((np.arange(len(kernels)), trace.stream[kernels], trace.device[kernels]))
    kernels, keys = kernels[order], keys[order]
    place = (np.diff(trace.stream[kernels]) != 0) | (np.diff(trace.device[kernels]) != 0)
    cuts = np.flatnonzero(place) + 1
    yield from zip(np.split(kernels, cuts), np.split(keys, cuts), strict=True)


def _eager_calls(
    trace: Trace,
    parent: Int64,
    launch: Int64,
    replay: _Replay,
    rows: list[tuple[Int64, Int64]],
    looks: int,
) -> tuple[Int64 | None, int]:
    """The launches of the last run of the same kernels, NONE where runs of them differ;
    None when there is no such run. With the comparisons it took."""
    names = distinct(trace.name[replay.kernels[0]]).tolist()
    is_compiled = any(COMPILED.match(trace.names[name]) for name in names)
    if len(replay.keys) < MIN_KERNELS and not is_compiled:
        return None, 0
    runs, spent = [], 0
    for kernels, keys in rows:
        starts, num = _occurrences(keys, replay.keys, looks - spent)
        spent += num
        if starts is None:
            return None, spent
        runs += [launch[kernels[start : start + len(replay.keys)]] for start in starts.tolist()]
    if not runs:
        return None, spent
    calls = np.stack(runs)
    last = calls[calls[:, -1].argmax()]
    chains = _chains(trace, parent, calls.ravel()).reshape(calls.shape)
    return np.where((chains == chains[0]).all(axis=0), last, NONE), spent


def _occurrences(row: Int64, wanted: Int64, looks: int) -> tuple[Int64 | None, int]:
    """Where `wanted` begins in the row; None when runs of it overlap, so that it is not
    known which kernel is which, or when it takes too long. With the comparisons it took."""
    num = len(row) - len(wanted) + 1
    if num <= 0:
        return np.empty(0, np.int64), 0
    starts, spent = np.arange(num), 0
    for offset, key in enumerate(wanted.tolist()):
        spent += len(starts)
        if spent > looks:
            return None, spent
        starts = starts[row[starts + offset] == key]
        if not len(starts):
            break
    return (None if (np.diff(starts) < len(wanted)).any() else starts), spent


def _chains(trace: Trace, parent: Int64, calls: Int64) -> Int64:
    """Hash of the operators and frames around each call, from the innermost out."""
    shown = trace.is_kind(Kind.OP, Kind.PYTHON)
    chain = np.zeros(len(calls), np.uint64)
    above = parent[calls]
    while (above != NONE).any():
        counted = (above != NONE) & shown[np.maximum(above, 0)]
        name = trace.name[np.maximum(above, 0)].astype(np.uint64) + np.uint64(1)
        # FNV's prime: an order of names gives another hash than the same names in another order.
        chain = np.where(counted, (chain ^ name) * np.uint64(0x100000001B3), chain)
        above = np.where(above == NONE, NONE, parent[np.maximum(above, 0)])
    return chain.view(np.int64)


def _by_capture(
    trace: Trace, parent: Int64, launch: Int64, replays: list[_Replay]
) -> Iterator[tuple[_Replay, Int64]]:
    """Replays with the one capture before them that launched as many kernels, where no other
    graph has that number."""
    captures = list(_captures(trace, parent, launch))
    for replay in replays:
        num = len(replay.keys)
        fitting = [calls for calls in captures if len(calls) == num]
        alone = sum(len(other.keys) == num for other in replays) == 1
        first = min(int(launch[kernels[0]]) for kernels in replay.kernels)
        if alone and len(fitting) == 1 and trace.start_ns[fitting[0][-1]] < trace.start_ns[first]:
            yield replay, fitting[0]


def in_capture(trace: Trace) -> Bool:
    """Mask of the events that began while a capture was under way: their launches are recorded
    into a graph, and put nothing on the device."""
    runtime = trace.is_kind(Kind.RUNTIME)
    begins, ends = (runtime & matching(trace, each) for each in (BEGIN_CAPTURE, END_CAPTURE))
    if not begins.any() and not ends.any():
        return np.zeros(len(trace), np.bool_)
    under_way: Int64 = np.cumsum(begins.astype(np.int64) - ends)
    # A capture that began before the recording only ends in it.
    before: Int64 = np.minimum.accumulate(np.minimum(under_way, 0))
    mask: Bool = under_way > before
    return mask


def _captures(trace: Trace, parent: Int64, launch: Int64) -> Iterator[Int64]:
    """Launches in each whole capture of one stream."""
    runtime = trace.is_kind(Kind.RUNTIME)
    begins, ends, forks = (
        np.flatnonzero(runtime & matching(trace, pattern))
        for pattern in (BEGIN_CAPTURE, END_CAPTURE, FORK)
    )
    launches = runtime & matching(trace, KERNEL_LAUNCH)
    # A runtime call makes a driver's call inside it: the outer is the launch.
    inner = launches & (parent != NONE) & launches[np.maximum(parent, 0)]
    idle: Bool = launches & ~inner
    idle[launch[launch != NONE]] = False
    calls = np.flatnonzero(idle)
    for begin in begins.tolist():
        last = int(np.searchsorted(ends, begin))
        end = int(ends[last]) if last < len(ends) else NONE
        if end == NONE or ((begins > begin) & (begins < end)).any():
            continue
        if not ((forks > begin) & (forks < end)).any():
            mine = calls[(calls > begin) & (calls < end)]
            if len(mine):
                yield mine
