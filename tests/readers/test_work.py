"""What hostile text costs: the work is counted, not timed, and grows no faster than the text."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.readers.kineto import json_chunks as feed
from stepscope.readers.kineto import json_recovery as rescue
from stepscope.readers.kineto.event_decoder import Scanner
from stepscope.readers.kineto.json_chunks import Feed
from stepscope.readers.kineto.json_recovery import Skimmer
from stepscope.recordings.rocm import json_walk as rocprof_walk
from stepscope.recordings.rocm.json_walk import Walk, WalkError
from tests.counting import CountedPattern, sized

HALF = 30_000
BLOCK = 1 << 13
HEAD = b'{"traceEvents":['
EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":1},'
ROCPROF = b'{"rocprofiler-sdk-tool":[{"buffer_records":{"kernel_dispatch":['


class CountedDecoder:
    """A decoder that adds up what its errors cost: each counts the lines from the text's
    beginning."""

    def __init__(self, decoder: json.JSONDecoder, work: list[int]) -> None:
        self._decoder, self._work = decoder, work
        self.decode = decoder.decode

    def raw_decode(self, text: str, at: int) -> Any:
        try:
            value, end = self._decoder.raw_decode(text, at)
        except json.JSONDecodeError as problem:
            self._work[0] += problem.pos
            raise
        self._work[0] += end - at
        return value, end


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that patterns, decoders and windows have looked at, and calls made."""
    counted = [0]
    modules: tuple[ModuleType, ...] = (feed, rescue, rocprof_walk)
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                monkeypatch.setattr(module, name, CountedPattern(value, counted))
    monkeypatch.setattr(rescue, "_decoder", CountedDecoder(rescue._decoder, counted))
    sized(monkeypatch, Skimmer, "_in_window", counted, lambda _self, window: len(window))
    sized(monkeypatch, rescue, "_walk", counted, lambda page, *_, **__: len(page))
    sized(monkeypatch, Scanner, "scan", counted, lambda _self, chunk: len(chunk))
    sized(monkeypatch, Feed, "_enter_events", counted, lambda self, _: len(self._buffer))
    sized(monkeypatch, Feed, "_leave_events", counted, lambda self, _: len(self._buffer))
    return counted


def blocks(text: bytes) -> Iterator[bytes]:
    return (text[at : at + BLOCK] for at in range(0, len(text), BLOCK))


def read_events(text: bytes) -> None:
    for _ in Feed(Scanner()).run(blocks(text)):
        pass


def walk_records(text: bytes) -> None:
    lists = frozenset({("rocprofiler-sdk-tool", "buffer_records", "kernel_dispatch")})
    decode = json.JSONDecoder().decode

    def is_decoded(_: Any, piece: bytes) -> bool:
        try:
            decode(piece.decode("latin-1"))
        except (ValueError, RecursionError):
            return False
        return True

    with contextlib.suppress(WalkError):
        Walk(blocks=blocks(text), lists=lists, values=frozenset(), try_decode=is_decoded).run()


SHAPES: dict[str, tuple[Callable[[bytes], None], bytes, bytes]] = {
    "quotes": (read_events, HEAD, b'"'),
    "quotes in an event": (read_events, HEAD + b'{"args":{', b'"'),
    "backslashes": (read_events, HEAD + b'{"name":"', b"\\"),
    "escaped quotes": (read_events, HEAD + b'{"name":"', b'\\"'),
    "strings of a backslash": (read_events, HEAD + b'{"args":[' + b"[" * 2000, b'"\\\\"'),
    "brackets": (read_events, HEAD, b"[]"),
    "lists": (read_events, HEAD, b"[],"),
    "objects": (read_events, HEAD, b"{},"),
    "open lists": (read_events, HEAD, b"["),
    "open objects": (read_events, HEAD, b'{"a":'),
    "brackets in deep lists": (read_events, HEAD + b'{"args":' + b"[" * 2000, b"[]"),
    "words": (read_events, HEAD, b"x,"),
    "numbers": (read_events, HEAD, b"1,"),
    "one number": (read_events, HEAD, b"1"),
    "closing braces": (read_events, HEAD, b"}" + b" " * 4000 + b","),
    "spaces": (read_events, HEAD, b" "),
    "broken events": (read_events, HEAD, EVENT.replace(b'"ts":1', b'"ts":')),
    "events without an end": (read_events, HEAD, b'{"ph":"X","name":"a" '),
    "events that nothing tells apart": (read_events, HEAD, b'{"ph"' + b" " * 1100 + b":},"),
    "cuts in a list": (read_events, HEAD + b'{"args":[', b'},{"ph":'),
    "empty arrays": (read_events, b"{", b'"traceEvents":[],'),
    "arrays": (read_events, b"{", b'"traceEvents":[' + EVENT[:-1] + b"],"),
    "records that are empty": (walk_records, ROCPROF, b"{},"),
    "records that are lists": (walk_records, ROCPROF, b"[],"),
    "records in records": (walk_records, ROCPROF + b'{"a":[', b'{"b":1},{"c":[1]},'),
    "processes that are empty": (walk_records, b'{"rocprofiler-sdk-tool":[', b"{},"),
    "fields": (walk_records, b'{"rocprofiler-sdk-tool":[{', b'"a":[[]],'),
    "spaces between records": (walk_records, ROCPROF, b" "),
}
SMALL: tuple[tuple[ModuleType, str, int], ...] = (
    (feed, "CHUNK_BYTES", 1 << 13),
    (feed, "PIECE_BYTES", 1 << 10),
    (feed, "MAX_EVENT_BYTES", 1 << 15),
    (feed, "MAX_ARRAYS", 20),
    (feed, "OVERLAP_BYTES", 256),
    (rescue, "PAGE_BYTES", 1 << 8),
    (rocprof_walk, "PIECE_BYTES", 1 << 13),
    (rocprof_walk, "CUT_WINDOW", 1 << 10),
    (rocprof_walk, "MAX_MALFORMED", 200),
    (rocprof_walk, "MAX_VALUES", 200),
)
"""The readers' sizes to the scale of these texts."""
MAX_PER_BYTE = 40
"""Bytes looked at for each byte of the text, calls counted as one. Each shape took 2 to 30."""


def cost(read: Callable[[bytes], None], text: bytes, work: list[int]) -> int:
    """Bytes looked at, and calls."""
    work[0] = 0

    def count(_frame: FrameType, event: str, _arg: Any) -> None:
        if event in ("call", "c_call"):
            work[0] += 1

    sys.setprofile(count)
    try:
        read(text)
    finally:
        sys.setprofile(None)
    return work[0]


@pytest.mark.parametrize("name", SHAPES)
def test_work_grows_no_faster_than_the_text(
    name: str, work: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, setting, value in SMALL:
        monkeypatch.setattr(module, setting, value)
    read, head, unit = SHAPES[name]
    small, large = ((head + unit * (size // len(unit) + 1))[:size] for size in (HALF, 2 * HALF))
    once, twice = cost(read, small, work), cost(read, large, work)
    assert twice <= MAX_PER_BYTE * len(large)
    assert twice <= 2.6 * once


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b"a", b"[[[", b"}}"]), max_size=80
    ),
    st.integers(1, 90),
)
def test_a_value_ends_where_a_plain_walk_says(pieces: list[bytes], block: int) -> None:
    text = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rescue, "FEW_BYTES", 5)
        patch.setattr(rescue, "FIRST_WINDOW", 7)
        skimmer, end = Skimmer(), None
        for at in range(0, len(text), block):
            end = skimmer.end(text[at : at + block])
            if end is not None:
                end += at
                break
    assert end == plain_end(text)


def plain_end(text: bytes) -> int | None:
    """One character after the other."""
    depth, in_string, escaped = 0, False, False
    for at, char in enumerate(text.decode("latin-1")):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
                if depth == 0:
                    return at + 1
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
            if depth <= 0:
                return at + 1 + min(depth, 0)
    return None
