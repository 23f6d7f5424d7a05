"""Make a big Kineto trace out of shifted copies of a real one.

    python benchmarks/make_big_trace.py SOURCE OUT --megabytes 520 [--gzip] [--gap-us 1000]
        [--steps N] [--without-stacks]

SOURCE is a Kineto trace (.json or .json.gz) in Kineto's own layout, where each event opens with a
line of its own, indented or not. Copy k has its time stamps, ids and ProfilerStep numbers shifted
by k strides, so that the result reads as one long recording:

- `ts` moves by a whole number of microseconds (the span of the source, plus a gap), so only the
  digits before the point change
  and the decimals stay exactly as Kineto wrote them, whatever their number;
- correlations and flow ids move together (an ac2g flow's id is its correlation), as do Python ids
  and parent ids; External ids, Ev Idx and Sequence numbers each by their own range. 0 is "none" for
  correlations and External ids and stays 0;
- ProfilerStep#N goes on counting. With --steps N there are N marks instead, each over as many
  copies as the next: few long steps;
- --without-stacks leaves out the Python functions and says in the head that none were recorded;
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
OPENING = re.compile(rb'"traceEvents": \[\n( *)\{\n')

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
STEP_MARK = re.compile(rb'"name": "ProfilerStep#\d+"')
HOST_MARK = re.compile(rb'"cat": "user_annotation", "name": "ProfilerStep#\d+"')
DURATION = re.compile(rb'"dur": \d+')
STACK_EVENT = b'"cat": "python_function"'
WITH_STACK = re.compile(rb'\n *"with_stack": 1,')
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
    border: bytes
    """Between two events. A raw newline cannot stand inside a JSON string, so it is nowhere
    else."""
    tail: bytes = b""
    once: list[bytes] = field(default_factory=list)
    body_bytes: int = 0
    num_events: int = 0
    strides: dict[bytes, int] = field(default_factory=dict)
    step_mark: bytes | None = None
    """The host's first ProfilerStep mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of the source is copied."""

    has_step_marks: bool = True
    has_stacks: bool = True

    def is_copied(self, event: bytes) -> bool:
        if not self.has_stacks and STACK_EVENT in event:
            return False
        return self.has_step_marks or STEP_MARK.search(event) is None

    def head(self, head: bytes) -> bytes:
        return head if self.has_stacks else WITH_STACK.sub(b"", head)


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


def border_of(head: bytes) -> bytes:
    """What stands between two events, told by how the first one opens."""
    opening = OPENING.search(head)
    assert opening is not None
    return b"\n%b},\n%b{\n" % (opening[1], opening[1])


def read_pieces(path: Path) -> Iterator[bytes]:
    """Yield the head (up to the first event), pieces of whole events, then the tail (from the end
    of the list)."""
    with open_binary(path, "rb") as file:
        text = file.read(PIECE_BYTES)
        opening = OPENING.search(text)
        if opening is None:
            raise LayoutError(
                f"{path}: no event list laid out as Kineto does; give a trace as torch.profiler "
                "wrote it"
            )
        yield text[: opening.end()]
        border = border_of(text)
        text = text[opening.end() :]
        while more := file.read(PIECE_BYTES):
            text += more
            cut = text.rfind(border)
            if cut >= 0 and len(text) > PIECE_BYTES:
                yield text[:cut]
                text = text[cut + len(border) :]
        closing = text.rfind(b"\n%b}\n%b]" % (opening[1], opening[1]))
        if closing < 0:
            raise LayoutError(
                f"{path}: the event list has no end; the trace is truncated, take a whole one"
            )
        yield text[:closing]
        yield text[closing:]


def context(path: Path, gap_us: int, wanted: Wanted) -> Source:
    """Read the source once: sizes, the events that stand once, and how far each kind of number must
    move per copy."""
    pieces = read_pieces(path)
    head = next(pieces)
    source = Source(head=wanted.head(head), border=border_of(head))
    lows: dict[str, int] = {}
    highs: dict[str, int] = {}
    source.tail = next(pieces)
    for following in pieces:
        marks = HOST_MARK.finditer(source.tail)
        if source.step_mark is None and (mark := next(marks, None)) is not None:
            source.step_mark = event_at(source.tail, mark.start(), source.border)
        run, once = split_once(source.tail, source.border, wanted)
        source.tail = following
        source.once += once
        source.body_bytes += len(run) + len(source.border)
        source.num_events += run.count(source.border) + 1 if run else 0
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


def event_at(piece: bytes, index: int, border: bytes) -> bytes:
    """The event around an index of a piece."""
    before = piece.rfind(border, 0, index)
    after = piece.find(border, index)
    start = 0 if before < 0 else before + len(border)
    return piece[start:] if after < 0 else piece[start:after]


def split_once(piece: bytes, border: bytes, wanted: Wanted) -> tuple[bytes, list[bytes]]:
    """Part a piece into the events of the run that are copied, still joined, and those that stand
    once."""
    has_once = any(text in piece for text in (b'"ph": "M"', b'"s": "g"', b'"cat": "Trace"'))
    if not has_once and wanted == Wanted():
        return piece, []
    run: list[bytes] = []
    once: list[bytes] = []
    for event in piece.split(border):
        if ONCE.match(event):
            once.append(event)
        elif wanted.is_copied(event):
            run.append(event)
    return border.join(run), once


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


def step_marks(source: Source, copies: int, steps: int) -> dict[int, bytes]:
    """The mark that each step begins with, by the copy it stands in: as the source's first one is
    written, over all copies of the step."""
    assert source.step_mark is not None
    unnumbered = STEP_MARK.sub(b'"name": "ProfilerStep#"', source.step_mark)
    marks = {}
    for step in range(steps):
        copy, following = step * copies // steps, (step + 1) * copies // steps
        dur_us = source.strides[b'"ts": '] * (following - copy) - 1
        mark = shift(unnumbered, source.strides, copy)
        mark = mark.replace(b'ProfilerStep#"', b'ProfilerStep#%d"' % step)
        marks[copy] = DURATION.sub(b'"dur": %d' % dur_us, mark, count=1)
    return marks


def make_big_trace(
    source_path: Path,
    out_path: Path,
    *,
    megabytes: float,
    gap_us: int = 1000,
    steps: int | None = None,
    has_stacks: bool = True,
) -> int:
    """Write about `megabytes` (10^6 bytes of JSON) of copies to `out_path` (gzipped when it ends in
    .gz); return the events."""
    wanted = Wanted(has_step_marks=steps is None, has_stacks=has_stacks)
    source = context(source_path, gap_us, wanted)
    border = source.border
    if not source.body_bytes:
        raise LayoutError(f"{source_path}: no events to copy; give a trace of a run")
    if steps is not None and source.step_mark is None:
        raise LayoutError(f"{source_path}: no ProfilerStep mark to lengthen; leave out --steps")
    fixed = (
        len(source.head) + len(source.tail) + sum(len(event) + len(border) for event in source.once)
    )
    copies = max(1, round((megabytes * 1e6 - fixed) / source.body_bytes))
    marks = {} if steps is None else step_marks(source, copies, min(steps, copies))
    partial = out_path.with_name("." + out_path.name)
    with open_binary(partial, "wb") as out:
        out.write(source.head)
        joint = b""
        for copy in range(copies):
            pieces = read_pieces(source_path)
            next(pieces)
            piece = next(pieces)
            if copy in marks:
                out.write(joint + marks[copy])
                joint = border
            for following in pieces:
                run, _ = split_once(piece, border, wanted)
                if run:
                    out.write(joint + shift(run, source.strides, copy))
                    joint = border
                piece = following
        out.writelines(border + event for event in last_events(source, copies))
        out.write(source.tail)
    partial.rename(out_path)
    return source.num_events * copies + len(marks) + len(source.once)


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
    parser.add_argument("--steps", type=int, help="step marks in all (those of every copy)")
    parser.add_argument(
        "--without-stacks", action="store_true", help="leave out the Python functions"
    )
    parser.add_argument("--gzip", action="store_true", help="write OUT.gz instead")
    args = parser.parse_args()
    if args.steps is not None and args.steps < 1:
        parser.error("--steps: at least 1")
    out = (
        args.out.with_name(args.out.name + ".gz")
        if args.gzip and args.out.suffix != ".gz"
        else args.out
    )
    try:
        num_events = make_big_trace(
            args.source,
            out,
            megabytes=args.megabytes,
            gap_us=args.gap_us,
            steps=args.steps,
            has_stacks=not args.without_stacks,
        )
    except (LayoutError, OSError) as error:
        parser.exit(2, f"make_big_trace: {error}\n")
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {num_events} events")


if __name__ == "__main__":
    main()
