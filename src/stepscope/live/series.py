"""A run over time, for the pictures of its live page: step time and memory of each rank, parts of
the step, loss, alerts.

All of a run's files are read once, and from then on what they gain. However long the run, it is
kept in as many stretches of equal length: where the run outgrows them, each two become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.analyses.run.samples import rss_bytes
from stepscope.core.trace import Float64
from stepscope.live.alarms.loss import losses_of
from stepscope.live.samples import device_bytes
from stepscope.live.shapes.alert import OVER, RAISED, Alert
from stepscope.protocol.run_folder import (
    LIVE_FILE,
    RANK_FILE,
    RANK_FOLDER,
    RUN_FILE,
    SAMPLES_FILE,
    STEP_COLUMNS,
    STEP_SUMMARY_COLUMNS,
    STEPS_FILE,
    step_summary_path,
)
from stepscope.protocol.untrusted import LARGEST_INT, whole
from stepscope.readers.run_folder.line_tail import Lines, read_object

NUM_STRETCHES = 160
SHORTEST_S = 0.05
"""Seconds of a stretch, as a run begins."""
LONGEST_S = 1e9
"""The longest run, in seconds: some thirty years."""
MAX_RANKS = 128
"""Ranks with a line of their own; the first ones."""
MAX_BYTES = 32 << 20
"""Bytes of one file at the first look."""
PARTS = (
    ("input", "waiting for input"),
    ("rest", "forward and the rest"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("comms", "calls of torch.distributed"),
    ("asides", "saves, logs, garbage"),
)
DIGITS = 4

COLUMN = {name: at for at, name in enumerate(STEP_COLUMNS)}
SUMMARY_COLUMN = {name: at for at, name in enumerate(STEP_SUMMARY_COLUMNS)}
FEWEST_COLUMNS = 13
"""Columns of a step, as version 0.1.0 wrote it."""
NUMBERS = msgspec.json.Decoder(list[int | None])
SAMPLE = msgspec.json.Decoder(dict[str, Any])

Key = tuple[str, object]
Line = list["float | None"]


class Stretches:
    """Means of what was measured, in stretches of the run's time."""

    def __init__(self) -> None:
        self.seconds = SHORTEST_S
        self._sums: dict[Key, Float64] = {}
        self._counts: dict[Key, Float64] = {}

    def add(self, key: Key, at_s: Float64, values: Float64, nums: Float64 | float = 1.0) -> None:
        """Each value is the sum of `nums` of them."""
        known = np.isfinite(values) & np.isfinite(at_s) & (at_s >= 0) & (at_s < LONGEST_S)
        if not known.any():
            return
        at_s, values = at_s[known], values[known]
        counts = np.broadcast_to(np.asarray(nums, np.float64), known.shape)[known]
        while at_s.max() >= NUM_STRETCHES * self.seconds:
            self._join()
        index = (at_s / self.seconds).astype(np.int64)
        for kept, added in ((self._sums, values), (self._counts, counts)):
            whole_line = np.bincount(index, added, NUM_STRETCHES).astype(np.float64)
            kept[key] = whole_line if key not in kept else kept[key] + whole_line

    def line(self, key: Key) -> Line:
        """Means of the series, without those after the last that was measured; null is not
        measured."""
        if key not in self._sums:
            return []
        pairs = zip(self._sums[key].tolist(), self._counts[key].tolist(), strict=True)
        values = [float(f"{total / num:.{DIGITS}g}") if num else None for total, num in pairs]
        while values and values[-1] is None:
            values.pop()
        return values

    def has(self, what: str) -> bool:
        return any(name == what for name, _ in self._sums)

    def _join(self) -> None:
        self.seconds *= 2
        for kept in (self._sums, self._counts):
            for key, values in kept.items():
                half = values.reshape(-1, 2).sum(axis=1)
                kept[key] = np.concatenate([half, np.zeros(NUM_STRETCHES - len(half))])


class RunSeries:
    """One run, looked at again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stretches = Stretches()
        self._ranks: dict[str, _Rank] = {}
        self._num_ranks = 0

    def look(self, alerts: Sequence[Alert]) -> dict[str, Any]:
        """What the page draws: numbers, and words of alerts."""
        told = read_object(self._path / RUN_FILE)
        begun = whole(told.get("started_wall_ns")) or 0
        names = self._names()
        self._num_ranks = len({_number(name) for name in names})
        for name in names:
            if name not in self._ranks and _number(name) < MAX_RANKS:
                self._ranks[name] = _Rank(self._path / name, _number(name))
        for rank in self._ranks.values():
            rank.look(begun, self._stretches)
        made, ranks = self._stretches, sorted({rank.rank for rank in self._ranks.values()})
        memory = "device" if made.has("device") else "host"
        return {
            "stretch_s": made.seconds,
            "has_ended": told.get("exit_code") is not None,
            "ranks": ranks,
            "num_left_out": max(0, self._num_ranks - len(ranks)),
            "steps": [made.line(("steps", rank)) for rank in ranks],
            "parts": [
                {"part": part, "word": word, "ms": line}
                for part, word in PARTS
                if any(line := made.line(("parts", part)))
            ],
            "memory_of": memory,
            "memory": [made.line((memory, rank)) for rank in ranks],
            "loss": [made.line(("loss", rank)) for rank in ranks],
            "alerts": list(_alerts(alerts, begun)),
        }

    def _names(self) -> list[str]:
        try:
            names = sorted(each.name for each in self._path.iterdir() if not each.is_symlink())
        except OSError:
            return []
        return [name for name in names if RANK_FOLDER.match(name)]


class _Rank:
    """The files of one rank, and how far they were read."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._folder = folder
        self._offset_ns: int | None = None
        """Offset of its clock from the wall clock."""
        self._last_step = -1.0
        self._rows = Lines(folder / STEPS_FILE, MAX_BYTES)
        self._summaries = Lines(step_summary_path(folder), MAX_BYTES)
        self._samples = Lines(folder / SAMPLES_FILE, MAX_BYTES)
        self._live = Lines(folder / LIVE_FILE, MAX_BYTES)

    def look(self, begun_wall_ns: int, into: Stretches) -> None:
        if self._offset_ns is None:
            notes = read_object(self._folder / RANK_FILE)
            wall, perf = whole(notes.get("wall_ns")), whole(notes.get("perf_ns"))
            if wall is None or perf is None:
                return
            self._offset_ns = wall - perf
        live, offset = self._live.new_data(), self._offset_ns - begun_wall_ns
        steps = [
            _of_rows(_numbers(self._rows.new_data() + live, FEWEST_COLUMNS, len(COLUMN))),
            _of_summaries(
                _numbers(self._summaries.new_data(), len(SUMMARY_COLUMN), len(SUMMARY_COLUMN))
            ),
        ]
        made = {name: np.concatenate([each[name] for each in steps]) for name in steps[0]}
        self._add_steps(made, offset, into)
        samples = list(_samples(self._samples.new_data() + live))
        self._add_samples(samples, offset, into)

    def _add_steps(self, made: Mapping[str, Float64], offset_ns: int, into: Stretches) -> None:
        """Each step once: those before a recording stand in both files."""
        order = np.argsort(made["first"], kind="stable")
        made = {name: values[order] for name, values in made.items()}
        lasts = made["first"] + made["num"] - 1
        before = np.maximum.accumulate(np.concatenate([[self._last_step], lasts]))
        self._last_step = float(before[-1])
        is_usual = (made["first"] > before[:-1]) & (made["dur"] > 0) & ~(made["state"] > 0)
        made = {name: values[is_usual] for name, values in made.items()}
        at_s = (made["ended"] + offset_ns) / 1e9
        into.add(("steps", self.rank), at_s, made["length"] / 1e6, made["num"])
        for part, spent_ns in _parts(made).items():
            into.add(("parts", part), at_s, spent_ns / 1e6, made["num"])

    def _add_samples(
        self, samples: Sequence[dict[str, Any]], offset_ns: int, into: Stretches
    ) -> None:
        def put(what: str, pairs: Iterable[tuple[int | None, float | None]]) -> None:
            table = np.array([pair for pair in pairs if None not in pair], np.float64)
            at_ns, values = table.reshape(-1, 2).T
            into.add((what, self.rank), (at_ns + offset_ns) / 1e9, values)

        times = [whole(sample.get("at_ns")) for sample in samples]
        for what, size_of in (("device", device_bytes), ("host", rss_bytes)):
            sizes = (size_of(sample) for sample in samples)
            put(
                what,
                (
                    (at_ns, None if size is None else size / 1e9)
                    for at_ns, size in zip(times, sizes, strict=True)
                ),
            )
        put("loss", (pair for sample in samples for pair in losses_of(sample)))


def _lines(data: bytes, begin: bytes, decoder: msgspec.json.Decoder[Any]) -> Iterator[Any]:
    """What the lines hold that begin so; a stranger's line that is no such thing is left out."""
    for line in data.splitlines():
        if line.startswith(begin):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield decoder.decode(line)


def _samples(data: bytes) -> Iterator[dict[str, Any]]:
    return _lines(data, b"{", SAMPLE)


def _numbers(data: bytes, fewest: int, most: int) -> Float64:
    """A line of numbers a row, NaN for what was not measured."""
    lines = [
        line + [None] * (most - len(line))
        for line in _lines(data, b"[", NUMBERS)
        if fewest <= len(line) <= most
    ]
    table = np.array(lines, np.float64).reshape(-1, most)
    table[(table < 0) | (table > LARGEST_INT)] = np.nan
    return table[np.isfinite(table[:, 0])]


def _of_rows(table: Float64) -> dict[str, Float64]:
    """Steps that were written one by one."""

    def column(name: str) -> Float64:
        return table[:, COLUMN[name]]

    dur, on_device = column("dur_ns"), column("device_ns")
    asides = (column("save_ns"), column("gc_ns"), column("log_ns"))
    return {
        "first": column("step"),
        "num": np.ones(len(table)),
        "ended": column("end_ns"),
        "dur": dur,
        "length": np.where(on_device > 0, on_device, dur),
        "state": column("state"),
        "input": np.nan_to_num(column("wait_ns")),
        "backward": column("backward_ns"),
        "optimizer": column("optimizer_ns"),
        "comms": column("comm_ns"),
        "asides": np.nan_to_num(np.stack(asides)).sum(axis=0),
    }


def _of_summaries(table: Float64) -> dict[str, Float64]:
    """Many steps a line, whose passes are not told apart."""

    def column(name: str) -> Float64:
        return table[:, SUMMARY_COLUMN[name]]

    dur, unknown = column("to_ns") - column("from_ns"), np.full(len(table), np.nan)
    asides = np.nan_to_num(np.stack([column("save_ns"), column("log_ns")])).sum(axis=0)
    return {
        "first": column("first_step"),
        "num": np.nan_to_num(column("num_steps"), nan=1.0),
        "ended": column("to_ns"),
        "dur": dur,
        "length": dur,
        "state": np.zeros(len(table)),
        "input": np.nan_to_num(column("wait_ns")),
        "backward": unknown,
        "optimizer": unknown,
        "comms": unknown,
        "asides": asides,
    }


def _parts(made: Mapping[str, Float64]) -> dict[str, Float64]:
    """A step as the host sees it; what is counted twice is taken for a part of the backward pass,
    in which calls of torch.distributed may lie."""
    names = [part for part, _ in PARTS if part != "rest"]
    parts = {name: np.nan_to_num(made[name]) for name in names}
    excess = sum(parts.values()) - made["dur"]
    parts["backward"] = parts["backward"] - np.clip(excess, 0.0, parts["backward"])
    return parts | {"rest": np.maximum(0.0, -excess)}


def _alerts(alerts: Iterable[Alert], begun_wall_ns: int) -> Iterator[dict[str, Any]]:
    """Where each fault began and ended, in seconds of the run; null where it goes on."""
    over = {alert.number: alert for alert in alerts if alert.state == OVER and alert.number}
    for alert in alerts:
        if alert.state != RAISED:
            continue
        ended = over.get(alert.number)
        until = None if ended is None else ended.ended_wall_ns or ended.at_wall_ns
        yield {
            "from_s": max(0.0, ((alert.began_wall_ns or alert.at_wall_ns) - begun_wall_ns) / 1e9),
            "to_s": None if until is None else (until - begun_wall_ns) / 1e9,
            "kind": alert.kind,
            "words": alert.words,
        }


def _number(name: str) -> int:
    match = RANK_FOLDER.match(name)
    assert match is not None
    return int(match[1])
