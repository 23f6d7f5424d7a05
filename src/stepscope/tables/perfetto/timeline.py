"""A run as a timeline for Perfetto: each rank a process with its threads, streams, and tracks of
our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from stepscope.analyses.links import Links
from stepscope.core.diagnosis import Diagnosis, Finding
from stepscope.core.trace import NONE, Bool, Detail, Int64, Kind, OpInputs, Trace
from stepscope.protocol.json_text import json_text
from stepscope.tables.perfetto.shapes import MAX_CHARS, SHAPES, Arg, Slices, Value, Writer
from stepscope.tables.timeline.tracks import Series, Spans

MAX_LANES = 64
"""Lanes of one track. What overlaps deeper is left out: nobody could read it, and a damaged file
could ask for millions."""


class Nested(Struct, frozen=True, kw_only=True):
    """Each slice's lane, and the order in which slices open and close."""

    lane: Int64
    """NONE: no lane was left."""
    order: Int64
    """`i` where slice i opens, `~i` where it closes:
    on every lane in the order of time, the inner closing before the outer."""


def nest(start_ns: Int64, end_ns: Int64) -> Nested:
    """Assign slices to lanes. They come sorted by start and, at one start, the longest first."""
    lane = np.full(len(start_ns), NONE, np.int64)
    order: list[int] = []
    placed: list[int] = [NONE] * len(lane)
    lanes: list[list[tuple[int, int]]] = [[]]
    for i, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        for number, open_ones in enumerate(lanes):  # noqa: B007 - the lane that was found
            while open_ones and open_ones[-1][0] <= start:
                order.append(~open_ones.pop()[1])
            if not open_ones or open_ones[-1][0] >= end:
                break
        else:
            if len(lanes) == MAX_LANES:
                continue
            number, open_ones = len(lanes), []
            lanes.append(open_ones)
        open_ones.append((end, i))
        order.append(i)
        placed[i] = number
    for open_ones in lanes:
        order.extend(~i for _, i in reversed(open_ones))
    lane[:] = placed
    return Nested(lane=lane, order=np.array(order, np.int64))


CATEGORIES = {
    Kind.OP: "cpu_op", Kind.MARK: "user_annotation", Kind.PYTHON: "python_function",
    Kind.RUNTIME: "runtime", Kind.KERNEL: "kernel", Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset", Kind.SYNC: "gpu_sync", Kind.DEVICE_MARK: "gpu_user_annotation",
    Kind.OVERHEAD: "overhead", Kind.COMPILE: "compile", Kind.OTHER: "other",
}  # fmt: skip
ON_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC, Kind.DEVICE_MARK)
BESIDE = {Kind.DEVICE_MARK: " marks", Kind.SYNC: " waits"}
"""Kinds that lie across the work of a stream: on a track of their own, so that they do not push
work off its lane."""
OURS, COUNTERS, STREAMS, THREADS = 0, 100, 10_000, 20_000
"""Where the tracks of a process stand, from the top."""


class RankTracks(Struct, frozen=True, kw_only=True):
    """One rank, ready to be drawn. Times are its own; `shift_ns` added gives those of the file."""

    rank: int
    trace: Trace
    links: Links
    step_of: Int64
    shift_ns: int
    spans: tuple[tuple[str, Spans], ...]
    """Our own tracks, with their names, from the top."""
    series: tuple[Series, ...]


class Timeline:
    """Draws a job into a file, rank by rank; keeps nothing of a rank that is done."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._last = 0
        self._num_arrows = 0
        self.num_events = 0
        self.num_left_out = 0
        """Recorded events that overlap too deep to be drawn."""

    def add_job(
        self, diagnosis: Diagnosis, over: dict[int, tuple[int, int]], notes: Sequence[str]
    ) -> None:
        """The findings, each over the steps of its ranks, and what else is to be said of the whole
        file."""
        process = self._number()
        self._writer.process(process, "stepscope", -1)
        whole = (
            min((low for low, _ in over.values()), default=0),
            max((high for _, high in over.values()), default=0),
        )
        track = self._track(process, "verdict", OURS)
        verdict = diagnosis.verdict
        about: dict[str, Value | list[str]] = {
            "bound": verdict.bound,
            "summary": verdict.summary,
            "notes": list(notes),
        }
        self._writer.slice(process, track, f"bound by {verdict.bound}", *whole, about)
        for number, finding in enumerate(diagnosis.findings):
            mine = [over[rank] for rank in finding.ranks if rank in over] or [whole]
            track = self._track(process, f"finding {number + 1}: {finding.code}", OURS + 1 + number)
            low, high = min(low for low, _ in mine), max(high for _, high in mine)
            self._writer.slice(process, track, finding.code, low, high, _finding_args(finding))

    def add_rank(self, rank: RankTracks) -> None:
        process = self._number()
        devices = rank.trace.meta.devices
        self._writer.process(process, f"rank {rank.rank}", rank.rank, devices)
        for order, (name, spans) in enumerate(rank.spans):
            if len(spans):
                self._add_spans(
                    process, self._track(process, name, OURS + order), spans, rank.shift_ns
                )
        for order, series in enumerate(rank.series):
            number = self._number()
            self._writer.counter(number, process, series.name, series.unit, COUNTERS + order)
            # A file's time begins with its first event; what was counted before holds from there.
            time = np.maximum(series.time_ns + rank.shift_ns, 0)
            # What is not finite was not measured; JSON has no word for it, and a counter no height.
            measured = np.isfinite(series.value)
            self._writer.points(process, number, time[measured], series.value[measured])
        self._add_events(process, rank)

    def _number(self) -> int:
        self._last += 1
        return self._last

    def _track(self, process: int, name: str, order: int) -> int:
        number = self._number()
        self._writer.track(number, process, name, order)
        return number

    def _add_spans(self, process: int, track: int, spans: Spans, shift_ns: int) -> None:
        num = len(spans)
        at = np.arange(num)
        self._writer.slices(
            process,
            Slices(
                track=np.full(num, track, np.int64),
                start_ns=spans.start_ns + shift_ns,
                end_ns=spans.end_ns + shift_ns,
                name=spans.name,
                names=spans.names,
                category=np.zeros(num, np.int64),
                categories=("stepscope",),
                order=np.stack((at, ~at), axis=1).ravel(),
                arrow_to=np.full(num, NONE, np.int64),
                arrows_from=(np.empty(0, np.int64), np.empty(0, np.int64)),
            ),
        )

    def _add_events(self, process: int, rank: RankTracks) -> None:
        trace = rank.trace
        track, order = self._lay(process, trace)
        drawn = track != NONE
        self.num_events += int(drawn.sum())
        self.num_left_out += int((~drawn).sum())
        arrow_to, arrows_from = self._arrows(trace, rank.links, drawn)
        self._writer.slices(
            process,
            Slices(
                track=track,
                start_ns=trace.start_ns + rank.shift_ns,
                end_ns=trace.end_ns + rank.shift_ns,
                name=trace.name.astype(np.int64),
                names=trace.names,
                category=trace.kind.astype(np.int64),
                categories=tuple(CATEGORIES[kind] for kind in Kind),
                order=order,
                args=_args(rank),
                arrow_to=arrow_to,
                arrows_from=arrows_from,
            ),
        )

    def _lay(self, process: int, trace: Trace) -> tuple[Int64, Int64]:
        """Each event's track, and the order in which all open and close."""
        track = np.full(len(trace), NONE, np.int64)
        orders: list[Int64] = []
        on_device = trace.is_kind(*ON_DEVICE)
        devices = {
            thread.pid
            for at, thread in enumerate(trace.threads)
            if bool(on_device[trace.thread == at].any())
        }
        row_of_kind = np.zeros(len(Kind), np.int64)
        for number, kind in enumerate(BESIDE, start=1):
            row_of_kind[kind] = number
        group = trace.thread.astype(np.int64) * (len(BESIDE) + 1) + row_of_kind[trace.kind]
        for key in np.unique(group).tolist():
            events = np.flatnonzero(group == key)
            index, side = divmod(key, len(BESIDE) + 1)
            thread, is_stream = trace.threads[index], bool(on_device[events[0]])
            stream = (thread.name or "").strip() or f"stream {thread.tid}"
            name = f"device {thread.pid} {stream}" if len(devices) > 1 else stream
            if not is_stream:
                name = (
                    thread.name or f"thread {thread.tid}" if thread.tid.isdecimal() else thread.tid
                ).strip()
            name += ("", *BESIDE.values())[side]
            nested = nest(trace.start_ns[events], trace.end_ns[events])
            for lane in np.unique(nested.lane[nested.lane != NONE]).tolist():
                number = self._number()
                label = name if lane == 0 else f"{name} (overlapping {lane})"
                if is_stream or lane:
                    self._writer.track(
                        number,
                        process,
                        label,
                        (STREAMS if is_stream else THREADS) + key * 64 + lane,
                    )
                else:
                    self._writer.thread(number, process, label, THREADS + key * 64)
                track[events[nested.lane == lane]] = number
            orders.append(
                np.where(
                    nested.order >= 0,
                    events[nested.order],
                    ~events[np.minimum(~nested.order, len(events) - 1)],
                )
            )
        return track, np.concatenate(orders) if orders else np.empty(0, np.int64)

    def _arrows(self, trace: Trace, links: Links, drawn: Bool) -> tuple[Int64, tuple[Int64, Int64]]:
        """Arrows from each launch to what it launched, numbered in the whole file."""
        launch = np.where(trace.device_work, links.launch, NONE)
        ends = np.flatnonzero((launch != NONE) & drawn & drawn[np.maximum(launch, 0)])
        number = np.arange(len(ends), dtype=np.int64) + self._num_arrows + 1
        self._num_arrows += len(ends)
        to = np.full(len(trace), NONE, np.int64)
        to[ends] = number
        by_launch = np.argsort(launch[ends], kind="stable")
        return to, (launch[ends][by_launch], number[by_launch])


def _args(rank: RankTracks) -> tuple[Arg, ...]:
    """What is recorded of events, each where there is any."""
    trace, links = rank.trace, rank.links
    device = trace.is_kind(*ON_DEVICE)
    by = np.where(links.op != NONE, trace.name[np.maximum(links.op, 0)], NONE).astype(np.int64)
    collectives = tuple(call.name or "collective" for call in trace.collectives)
    return (
        Arg(name="correlation", value=trace.correlation),
        Arg(name="stream", value=np.where(device, trace.stream, NONE)),
        Arg(name="bytes", value=trace.size_bytes),
        Arg(name="step", value=np.where(trace.device_work, rank.step_of, NONE)),
        Arg(name="launched by", value=by, texts=trace.names),
        *_detail_args(trace),
        Arg(name="collective", value=trace.collective.astype(np.int64), texts=collectives),
    )


def _detail_args(trace: Trace) -> Iterator[Arg]:
    """An operator's inputs and a kernel's launch: JSON, in the words of PyTorch's profiler."""
    columns = [_detail_texts(detail) for detail in trace.details]
    for name in dict.fromkeys(name for column in columns for name in column):
        texts = tuple(column.get(name, "") for column in columns)
        is_there = np.array([0 < len(text) <= MAX_CHARS for text in texts])
        shown = (trace.detail != NONE) & is_there[np.maximum(trace.detail, 0)]
        value = np.where(shown, trace.detail, NONE).astype(np.int64)
        yield Arg(name=name, value=value, texts=texts, is_json=True)


def _detail_texts(detail: Detail) -> dict[str, str]:
    if detail is None:
        return {}
    if isinstance(detail, OpInputs):
        texts = {
            "Input type": detail.types,
            SHAPES: detail.dims,
            "Input Strides": detail.strides,
            "Concrete Inputs": detail.concrete,
        }
        return {name: text for name, text in texts.items() if text}
    sizes = {
        "grid": None if detail.grid is None else list(detail.grid),
        "block": None if detail.block is None else list(detail.block),
        "registers per thread": detail.registers,
        "shared memory": detail.shared_bytes,
        "est. achieved occupancy %": detail.occupancy_pct,
    }
    return {name: json_text(value) for name, value in sizes.items() if value is not None}


def _finding_args(finding: Finding) -> dict[str, Value | list[str]]:
    return {
        "code": finding.code,
        "bound": finding.bound,
        "summary": finding.summary,
        "action": finding.action,
        "evidence": list(finding.evidence),
        "ranks": ", ".join(map(str, finding.ranks)),
        "predicted_speedup": float(finding.predicted_speedup),
        "predicted_low": float(finding.predicted_low),
        "predicted_high": float(finding.predicted_high),
        "predicted_step_ms": float(finding.predicted_step_ms),
        "places": [location.words for location in finding.source_locations],
    }
