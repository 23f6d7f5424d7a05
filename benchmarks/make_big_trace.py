"""Make a big Kineto trace out of shifted copies of a real one.

    python benchmarks/make_big_trace.py SOURCE OUT --megabytes 520 [--gzip] [--gap-us 1000]

SOURCE is a Kineto trace (.json or .json.gz) in Kineto's own layout, where each event opens with a
line of its own. Copy k has its time stamps, ids and ProfilerStep numbers shifted by k strides, so
that the result reads as one long recording:

- `ts` moves by a whole number of microseconds (the span of the source, plus a gap), so only the
  digits before the point change
  and the decimals stay exactly as Kineto wrote them, whatever their number;
- correlations and flow ids move together (an ac2g flow's id is its correlation), as do Python ids
  and parent ids; External ids, Ev Idx and Sequence numbers each by their own range. 0 is "none" for
  correlations and External ids and stays 0;
- ProfilerStep#N goes on counting;
- metadata events, the profiler's own span and the start and end of the recording stand once, after
  the copies. The end of the recording and the span's duration move with the last copy.

The text is edited where it stands, never parsed and printed again: what a reader meets is what
Kineto writes. The source is streamed once per copy, in pieces of 8 MB, so memory does not grow with
either size. Whole copies only: the size is the nearest to the one asked for. The same source gives
the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, cast

PIECE_BYTES = 8 << 20
# A raw newline cannot stand inside a JSON string, so this is a border between events and nothing
# else.
BORDER = b"\n  },\n  {\n"
OPENING = b'"traceEvents": [\n'
CLOSING = b"\n  ]"

# What moves, as (text before the number, number). Quotes inside a JSON string are escaped, so no
# name or path can match.
NUMBER = re.compile(
    rb'("(?:ts|Ev Idx|Sequence number|Python id|Python parent id)": |"(?:correlation|External '
    rb'id)": (?=[1-9])'
    rb'|"ph": "[sft]", "id": |"name": "ProfilerStep#)(\d+)'
)
# Events that describe the recording rather than the run.
ONCE = re.compile(
    rb'^\s*(?:"ph": "M"|"name": "[^"]*", "ph": "M"|"ph": "X", "cat": "Trace"|"name": "[^"]*", '
    rb'"ph": "i", "s": "g")'
)
STAMP = re.compile(rb'"ts": (\d+)')
SPAN = re.compile(rb'"ts": (\d+)(?:\.\d+)?, "dur": (\d+)')

# Keys that share a range, so that what is equal stays equal across them.
GROUPS = {
    b'"correlation": ': "flow",
    b'"ph": "s", "id": ': "flow",
    b'"ph": "f", "id": ': "flow",
    b'"ph": "t", "id": ': "flow",
    b'"Python id": ': "python",
    b'"Python parent id": ': "python",
    b'"External id": ': "external",
    b'"Ev Idx": ': "event",
    b'"Sequence number": ': "sequence",
    b'"name": "ProfilerStep#': "step",
    b'"ts": ': "time",
}


class LayoutError(Exception):
    """The source is not laid out as Kineto lays out its traces."""


@dataclass(slots=True)
class Source:
    """What one reading of the source found: the parts that stand once, and the ranges that a copy
    must clear."""

    head: bytes
    tail: bytes = b""
    once: list[bytes] = field(default_factory=list)
    body_bytes: int = 0
    num_events: int = 0
    strides: dict[bytes, int] = field(default_factory=dict)


@contextmanager
def open_binary(path: Path, mode: Literal["rb", "wb"]) -> Iterator[IO[bytes]]:
    """Open a plain or gzipped file; a gzip written here carries no name or time, so that equal
    input gives equal bytes."""
    with path.open(mode) as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile(
            filename="", mode=mode, compresslevel=6, fileobj=file, mtime=0
        ) as unzipped:
            yield cast("IO[bytes]", unzipped)


def read_pieces(path: Path) -> Iterator[bytes]:
    """Yield the head (up to the first event), pieces of whole events, then the tail (from the end
    of the list)."""
    with open_binary(path, "rb") as file:
        text = file.read(PIECE_BYTES)
        opening = text.find(OPENING)
        if opening < 0 or not text.startswith(b"  {\n", opening + len(OPENING)):
            raise LayoutError(
                f"{path}: no event list laid out as Kineto does; give a trace as torch.profiler "
                "wrote it"
            )
        start = opening + len(OPENING) + len(b"  {\n")
        yield text[:start]
        text = text[start:]
        while more := file.read(PIECE_BYTES):
            text += more
            border = text.rfind(BORDER)
            if border >= 0 and len(text) > PIECE_BYTES:
                yield text[:border]
                text = text[border + len(BORDER) :]
        closing = text.rfind(b"\n  }" + CLOSING)
        if closing < 0:
            raise LayoutError(
                f"{path}: the event list has no end; the trace is truncated, take a whole one"
            )
        yield text[:closing]
        yield text[closing:]


def context(path: Path, gap_us: int) -> Source:
    """Read the source once: sizes, the events that stand once, and how far each kind of number must
    move per copy."""
    pieces = read_pieces(path)
    source = Source(head=next(pieces))
    lows: dict[str, int] = {}
    highs: dict[str, int] = {}
    source.tail = next(pieces)
    for following in pieces:
        run, once = split_once(source.tail)
        source.tail = following
        source.once += once
        source.body_bytes += len(run) + len(BORDER)
        source.num_events += run.count(BORDER) + 1 if run else 0
        for key, group in GROUPS.items():
            note_range(group, key, run, lows, highs)
    source.strides = {
        key: highs[group] - lows[group] + 1 for key, group in GROUPS.items() if group in highs
    }
    source.strides[b'"ts": '] += gap_us
    return source


def note_range(
    group: str, key: bytes, run: bytes, lows: dict[str, int], highs: dict[str, int]
) -> None:
    """Widen the group's range by the numbers that follow `key`; for time, by where events end as
    well."""
    numbers = [int(text) for text in re.findall(re.escape(key) + rb"(\d+)", run)]
    if group in ("flow", "external"):
        numbers = [number for number in numbers if number]
    if group == "time":
        numbers += [int(ts) + int(dur) + 1 for ts, dur in SPAN.findall(run)]
    if numbers:
        lows[group] = min(lows.get(group, numbers[0]), *numbers)
        highs[group] = max(highs.get(group, numbers[0]), *numbers)


def split_once(piece: bytes) -> tuple[bytes, list[bytes]]:
    """Part a piece into the events of the run, still joined, and those that stand once."""
    if b'"ph": "M"' not in piece and b'"s": "g"' not in piece and b'"cat": "Trace"' not in piece:
        return piece, []
    run: list[bytes] = []
    once: list[bytes] = []
    for event in piece.split(BORDER):
        (once if ONCE.match(event) else run).append(event)
    return BORDER.join(run), once


def shift(run: bytes, strides: dict[bytes, int], copy: int) -> bytes:
    """Move every number of these events that moves, by `copy` strides."""
    parts = NUMBER.split(run)
    offsets = {key: stride * copy for key, stride in strides.items()}
    parts[2::3] = [
        b"%d" % (int(number) + offsets[key])
        for key, number in zip(parts[1::3], parts[2::3], strict=True)
    ]
    return b"".join(parts)


def last_events(source: Source, copies: int) -> list[bytes]:
    """The events that stand once, the recording's end moved to the end of the last copy."""
    moved_us = source.strides[b'"ts": '] * (copies - 1)
    events = []
    for event in source.once:
        if b'"Record Window End"' in event:
            event = STAMP.sub(lambda match: b'"ts": %d' % (int(match[1]) + moved_us), event)
        elif b'"cat": "Trace"' in event:
            event = re.sub(
                rb'"dur": (\d+)', lambda match: b'"dur": %d' % (int(match[1]) + moved_us), event
            )
        events.append(event)
    return events


def make_big_trace(
    source_path: Path, out_path: Path, *, megabytes: float, gap_us: int = 1000
) -> int:
    """Write about `megabytes` (10^6 bytes of JSON) of copies to `out_path` (gzipped when it ends in
    .gz); return the events."""
    source = context(source_path, gap_us)
    if not source.body_bytes:
        raise LayoutError(f"{source_path}: no events to copy; give a trace of a run")
    fixed = (
        len(source.head) + len(source.tail) + sum(len(event) + len(BORDER) for event in source.once)
    )
    copies = max(1, round((megabytes * 1e6 - fixed) / source.body_bytes))
    partial = out_path.with_name("." + out_path.name)
    with open_binary(partial, "wb") as out:
        out.write(source.head)
        joint = b""
        for copy in range(copies):
            pieces = read_pieces(source_path)
            next(pieces)
            piece = next(pieces)
            for following in pieces:
                run, _ = split_once(piece)
                if run:
                    out.write(joint + shift(run, source.strides, copy))
                    joint = BORDER
                piece = following
        out.writelines(BORDER + event for event in last_events(source, copies))
        out.write(source.tail)
    partial.rename(out_path)
    return source.num_events * copies + len(source.once)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a Kineto trace, .json or .json.gz")
    parser.add_argument("out", type=Path, help="where to write")
    parser.add_argument(
        "--megabytes", type=float, default=520.0, help="size of the JSON, in 10^6 bytes (520)"
    )
    parser.add_argument(
        "--gap-us", type=int, default=1000, help="time between copies, in whole microseconds (1000)"
    )
    parser.add_argument("--gzip", action="store_true", help="write OUT.gz instead")
    args = parser.parse_args()
    out = (
        args.out.with_name(args.out.name + ".gz")
        if args.gzip and args.out.suffix != ".gz"
        else args.out
    )
    try:
        num_events = make_big_trace(args.source, out, megabytes=args.megabytes, gap_us=args.gap_us)
    except (LayoutError, OSError) as error:
        parser.exit(2, f"make_big_trace: {error}\n")
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {num_events} events")


if __name__ == "__main__":
    main()
