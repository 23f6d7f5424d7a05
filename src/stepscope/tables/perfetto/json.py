"""Chrome's form of a timeline: JSON events, times in microseconds. Larger, and read by more
tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from json import loads
from typing import BinaryIO

import numpy as np

from stepscope.core.trace import DeviceProperties, Float64, Int64
from stepscope.protocol.json_text import json_text
from stepscope.tables.perfetto.shapes import SHAPES, Arg, Slices, Value, plain

AT_ONCE = 1 << 14
"""Events turned into text together: bounds the memory."""


class JsonWriter:
    """Writes events to a file as they come. Every track is a thread: this form has nothing else."""

    def __init__(self, file: BinaryIO, origin_wall_ns: int) -> None:
        self._file = file
        # A time of day in nanoseconds does not fit into a float: readers add this to the events'
        # times.
        self._file.write(
            b'{"displayTimeUnit": "ms", "baseTimeNanoseconds": %d, "traceEvents": [\n'
            % max(origin_wall_ns, 0)
        )
        self._is_first = True
        self._has_shapes = False
        self._counters: dict[int, tuple[str, str]] = {}
        self._devices: dict[tuple[int, str], DeviceProperties] = {}

    def process(
        self, number: int, name: str, rank_order: int, devices: Sequence[DeviceProperties] = ()
    ) -> None:
        self._devices |= {(device.index, device.name): device for device in devices}
        self._about("process_name", number, 0, name=plain(name))
        self._about("process_sort_index", number, 0, sort_index=rank_order)

    def thread(self, number: int, process: int, name: str, order: int) -> None:
        self._about("thread_name", process, number, name=plain(name))
        self._about("thread_sort_index", process, number, sort_index=order)

    def track(self, number: int, process: int, name: str, order: int) -> None:
        self.thread(number, process, name, order)

    def counter(self, number: int, process: int, name: str, unit: str, order: int) -> None:  # noqa: ARG002 - this form has no order
        self._counters[number] = json_text(plain(name)), json_text(unit or "value")

    def slices(self, process: int, slices: Slices) -> None:
        names = [json_text(plain(name)) for name in slices.names]
        categories = [json_text(name) for name in slices.categories]
        args = [(json_text(arg.name), arg, _texts(arg)) for arg in slices.args]
        self._has_shapes |= any(
            arg.name == SHAPES and (arg.value >= 0).any() for arg in slices.args
        )
        opening = slices.order[slices.order >= 0]
        for at in range(0, len(opening), AT_ONCE):
            self._write(
                self._lines(process, slices, opening[at : at + AT_ONCE], names, categories, args)
            )
        self._arrows(process, slices)

    def _lines(
        self,
        process: int,
        slices: Slices,
        event: Int64,
        names: list[str],
        categories: list[str],
        args: list[tuple[str, Arg, list[str] | None]],
    ) -> Iterable[str]:
        arguments = [""] * len(event)
        for name, arg, texts in args:
            values = arg.value[event]
            for i in np.flatnonzero(values >= 0).tolist():
                value = int(values[i])
                comma = ", " if arguments[i] else ""
                arguments[i] += f"{comma}{name}: {value if texts is None else texts[value]}"
        start, dur = slices.start_ns[event], slices.end_ns[event] - slices.start_ns[event]
        columns = (slices.track[event], slices.name[event], slices.category[event], start, dur)
        for row, text in zip(
            zip(*(column.tolist() for column in columns), strict=True), arguments, strict=True
        ):
            track, name_code, category, begin, length = row
            yield (
                f'{{"ph": "X", "cat": {categories[category]}, "name": {names[name_code]}, "pid": '
                f'{process}, "tid": {track}, '
                f'"ts": {_us(begin)}, "dur": {_us(length)}, "args": {{{text}}}}}'
            )

    def _arrows(self, process: int, slices: Slices) -> None:
        begins, flows = slices.arrows_from
        ends = np.flatnonzero(slices.arrow_to >= 0)
        for kind, events, ids in (
            ('"s"', begins, flows),
            ('"f", "bp": "e"', ends, slices.arrow_to[ends]),
        ):
            for at in range(0, len(events), AT_ONCE):
                part = events[at : at + AT_ONCE]
                columns = (
                    ids[at : at + AT_ONCE].tolist(),
                    slices.track[part].tolist(),
                    slices.start_ns[part].tolist(),
                )
                self._write(
                    f'{{"ph": {kind}, "cat": "launch", "name": "launch", "id": {flow}, "pid": '
                    f'{process}, "tid": {track}, '
                    f'"ts": {_us(time)}}}'
                    for flow, track, time in zip(*columns, strict=True)
                )

    def points(self, process: int, number: int, time_ns: Int64, value: Float64) -> None:
        name, unit = self._counters[number]
        for at in range(0, len(time_ns), AT_ONCE):
            pairs = zip(
                time_ns[at : at + AT_ONCE].tolist(), value[at : at + AT_ONCE].tolist(), strict=True
            )
            head = f'{{"ph": "C", "name": {name}, "pid": {process}, "ts": '
            self._write(
                f'{head}{_us(time)}, "args": {{{unit}: {amount!r}}}}}' for time, amount in pairs
            )

    def slice(
        self,
        process: int,
        track: int,
        name: str,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, Value | list[str]],
    ) -> None:
        arguments = {plain(key): _plain(value) for key, value in args.items()}
        where = (
            f'"pid": {process}, "tid": {track}, "ts": {_us(start_ns)}, "dur": '
            f"{_us(end_ns - start_ns)}"
        )
        self._write(
            [
                (
                    f'{{"ph": "X", "cat": "stepscope", "name": {json_text(plain(name))}, {where}, '
                    f'"args": {json_text(arguments)}}}'
                )
            ]
        )

    def finish(self) -> None:
        devices = json_text([_device(device) for device in self._devices.values()])
        has_shapes = json_text(int(self._has_shapes))
        rest = f'\n], "deviceProperties": {devices}, "record_shapes": {has_shapes}}}\n'
        self._file.write(rest.encode("ascii"))

    def _about(self, what: str, process: int, thread: int, **args: str | int) -> None:
        event = {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}
        self._write([json_text(event)])

    def _write(self, lines: Iterable[str]) -> None:
        block = ",\n".join(lines)
        if block:
            self._file.write((block if self._is_first else ",\n" + block).encode("ascii"))
            self._is_first = False


def _device(device: DeviceProperties) -> dict[str, str | int | None]:
    """Device in the words of PyTorch's profiler."""
    major, minor = device.compute_capability or (None, None)
    known: dict[str, str | int | None] = {
        "id": device.index,
        "name": plain(device.name),
        "totalGlobalMem": device.memory_bytes,
        "numSms": device.num_sms,
        "computeMajor": major,
        "computeMinor": minor,
        "warpSize": device.warp_size,
    }
    return {name: value for name, value in known.items() if value is not None}


def _us(time_ns: int) -> str:
    """Microseconds, exact to the nanosecond."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _texts(arg: Arg) -> list[str] | None:
    if arg.texts is None:
        return None
    return [_as_json(text) if arg.is_json else json_text(plain(text)) for text in arg.texts]


def _as_json(text: str) -> str:
    """What a recorder wrote is written anew: where it is damaged, as a text."""
    try:
        return json_text(loads(text))
    except (ValueError, RecursionError):
        return json_text(plain(text))


def _plain(value: Value | list[str]) -> Value | list[str]:
    if isinstance(value, list):
        return [plain(text) for text in value]
    return plain(value) if isinstance(value, str) else value
