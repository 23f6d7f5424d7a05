"""Host profiles that are JSON: speedscope (sampled and evented), pyinstrument (report and session)
and viztracer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from stepscope.api import FormatError, Source
from stepscope.core.codec import decode_json
from stepscope.readers.whole_file import whole_text
from stepscope.recordings.host.profile_stacks import (
    BUILT_IN,
    MAX_DEPTH,
    Call,
    StackCounts,
    StackTally,
    is_native,
    parse_location,
)

MAX_TEXT_BYTES = 512 << 20
SECONDS = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0}
OWN = frozenset({"[self]", "[await]", "[X frames hidden]"})
"""pyinstrument's names for time that is its parent's."""
NOTHING_READ = "It is not whole: record it again, and let the tool end by itself"


class Profile(Struct, frozen=True, kw_only=True):
    tally: StackTally
    tool: str
    unit: str
    notes: tuple[str, ...] = ()


class _Frame(msgspec.Struct):
    name: str
    file: str | None = None
    line: float | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Event(msgspec.Struct):
    type: str
    at: float
    frame: int


class _Thread(msgspec.Struct):
    type: str
    name: str = ""
    unit: str = "none"
    samples: list[list[int]] = []
    weights: list[float] = []
    events: list[_Event] = []


class _Speedscope(msgspec.Struct):
    shared: _Shared
    profiles: list[_Thread]
    exporter: str | None = None


class _Node(msgspec.Struct):
    function: str
    time: float
    file_path: str | None = None
    line_no: int | None = None
    children: list[_Node] = []


class _Pyinstrument(msgspec.Struct):
    root_frame: _Node | None = None
    frame_records: list[tuple[list[str], float]] | None = None


class _Function(msgspec.Struct):
    ph: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = math.nan
    dur: float = math.nan
    args: msgspec.Raw = msgspec.Raw(b"")


class _Viztracer(msgspec.Struct):
    events: list[_Function] = msgspec.field(name="traceEvents")


def read_json(source: Source) -> Profile:
    """The profile in a JSON file; FormatError where it is damaged or another's."""
    text, stopped = whole_text(source, MAX_TEXT_BYTES, "record a shorter stretch")
    if stopped:
        raise FormatError(f"{source.label}: {stopped}. {NOTHING_READ}")
    try:
        return _read(text.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, OverflowError) as problem:
        raise FormatError(
            f"{source.label}: no host profile that can be read ({problem}). {NOTHING_READ}"
        ) from None


def _read(text: bytes) -> Profile:
    head = text[: 64 << 10]
    if b'"traceEvents"' in head:
        return _from_viztracer(decode_json(text, _Viztracer))
    if b"speedscope" in head:
        return _from_speedscope(decode_json(text, _Speedscope))
    return _from_pyinstrument(decode_json(text, _Pyinstrument))


def _from_speedscope(file: _Speedscope) -> Profile:
    calls = [_call(frame) for frame in file.shared.frames]
    tally, num_bad = StackTally(), 0
    counts = StackCounts(tally)
    units = {profile.unit for profile in file.profiles}
    is_time = bool(units) and units <= set(SECONDS)
    for profile in file.profiles:
        scale = SECONDS[profile.unit] if is_time else 1.0
        thread = profile.name or None if len(file.profiles) > 1 else None
        if profile.type == "evented":
            num_bad += _add_events(counts, calls, profile.events, scale, thread)
        else:
            weights = (
                profile.weights
                if len(profile.weights) == len(profile.samples)
                else [1.0] * len(profile.samples)
            )
            for sample, weight in zip(profile.samples, weights, strict=True):
                if _is_weight(weight) and all(0 <= index < len(calls) for index in sample):
                    counts.add(_named(calls, sample), weight * scale, thread)
                else:
                    num_bad += 1
    counts.flush()
    exporter = (file.exporter or "").lower()
    tool = next((name for name in ("py-spy", "pyinstrument") if name in exporter), "speedscope")
    notes = (f"{num_bad:,} sample(s) name calls or times that are not there",) if num_bad else ()
    return Profile(tally=tally, tool=tool, unit="seconds" if is_time else "samples", notes=notes)


def _add_events(
    counts: StackCounts,
    calls: Sequence[Call],
    events: Iterable[_Event],
    scale: float,
    thread: str | None,
) -> int:
    """Stacks from openings and closings; how many of these make no sense."""
    stack: list[int] = []
    before, num_bad = math.nan, 0
    for event in events:
        passed = event.at - before
        if stack and passed > 0 and _is_weight(passed):
            counts.add(_named(calls, stack[-MAX_DEPTH:]), passed * scale, thread)
        before = event.at
        if event.type == "O" and 0 <= event.frame < len(calls):
            stack.append(event.frame)
        elif event.type == "C" and stack and stack[-1] == event.frame:
            stack.pop()
        else:
            num_bad += 1
    return num_bad


def _named(calls: Sequence[Call], indices: Iterable[int]) -> tuple[Call, ...]:
    return tuple(calls[index] for index in indices if calls[index].name not in OWN)


def _call(frame: _Frame) -> Call:
    line = int(frame.line) if frame.line is not None and 0 < frame.line < 1e9 else None
    return Call(frame.name[:300], frame.file, line, is_native(frame.name, frame.file))


def _from_pyinstrument(file: _Pyinstrument) -> Profile:
    tally = StackTally()
    counts = StackCounts(tally)
    if file.root_frame is not None:
        _add_tree(counts, file.root_frame)
    for stack, seconds in file.frame_records or ():
        if _is_weight(seconds):
            threads = [
                parts
                for parts in (name.split("\x00") for name in stack[:1])
                if parts[1:2] == ["<thread>"]
            ]
            thread = threads[0][0] if threads else None
            counts.add(tuple(_identified(name) for name in stack[bool(threads) :]), seconds, thread)
    counts.flush()
    return Profile(tally=tally, tool="pyinstrument", unit="seconds")


def _add_tree(counts: StackCounts, root: _Node) -> None:
    """Each frame's own time: what its children, but for those that stand for itself, leave of
    it."""
    pending: list[tuple[_Node, tuple[Call, ...]]] = [(root, ())]
    while pending:
        node, above = pending.pop()
        file = node.file_path or None
        call = Call(node.function[:300], file, node.line_no or None, is_native(node.function, file))
        stack = (*above, call)[-MAX_DEPTH:]
        others = [child for child in node.children if child.function not in OWN]
        own = node.time - sum(child.time for child in others)
        if own > 0 and _is_weight(own):
            counts.add(stack, own, None)
        pending += [(child, stack) for child in others]


def _identified(name: str) -> Call:
    """`function NUL file NUL line SOH attributes`."""
    function, file, line = [*name.partition("\x01")[0].split("\x00"), "", ""][:3]
    number = int(line) if line.isascii() and line.isdigit() and 0 < len(line) < 10 else None
    return Call(function[:300], file or None, number or None, is_native(function, file or None))


def _from_viztracer(file: _Viztracer) -> Profile:
    tally = StackTally()
    counts = StackCounts(tally)
    names = {
        (event.pid, event.tid): _thread_name(event)
        for event in file.events
        if event.ph == "M" and event.name == "thread_name"
    }
    by_thread: dict[tuple[int | str, int | str], list[_Function]] = {}
    num_bad = 0
    for event in file.events:
        if event.ph == "X" and _is_weight(event.dur) and math.isfinite(event.ts):
            by_thread.setdefault((event.pid, event.tid), []).append(event)
        else:
            num_bad += event.ph == "X"
    for key, events in by_thread.items():
        thread = f"{names.get(key) or 'thread'} ({key[1]})"[:300] if len(by_thread) > 1 else None
        _add_nested(counts, events, thread)
    counts.flush()
    notes = (f"{num_bad:,} call(s) without a time",) if num_bad else ()
    return Profile(tally=tally, tool="viztracer", unit="seconds", notes=notes)


def _add_nested(counts: StackCounts, events: list[_Function], thread: str | None) -> None:
    """Calls that lie in one another: a call's time is its own but for what lies in it."""
    events.sort(key=lambda event: (event.ts, -event.dur))
    open_calls: list[tuple[float, tuple[Call, ...]]] = []
    call_by_name: dict[str, Call] = {}
    for event in events:
        while open_calls and open_calls[-1][0] <= event.ts:
            open_calls.pop()
        end, above = open_calls[-1] if open_calls else (math.inf, ())
        call = call_by_name.get(event.name)
        if call is None:
            call = call_by_name[event.name] = _placed(event.name)
        seconds = (min(event.ts + event.dur, end) - event.ts) * 1e-6
        stack = (*above, call)[-MAX_DEPTH:]
        counts.add(stack, seconds, thread)
        if above:
            counts.add(above, -seconds, thread)
        open_calls.append((min(event.ts + event.dur, end), stack))


def _placed(name: str) -> Call:
    """A function of Python has its file and line in its name; one of C has none."""
    function, file, line = parse_location(name)
    if line is None:
        return Call(name[:300], BUILT_IN, None, is_native=True)
    return Call(function, file, line, is_native=False)


def _thread_name(event: _Function) -> str:
    try:
        arguments = decode_json(bytes(event.args), dict[str, str])
    except ValueError:
        return ""
    return arguments.get("name", "")


def _is_weight(value: float) -> bool:
    return 0 <= value < 1e15
