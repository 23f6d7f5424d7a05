"""Where the host's threads stood: py-spy (raw, and any collapsed stacks), speedscope, pyinstrument
and viztracer files.

    thread (13662): worker-0;Thread.run (threading.py:982);collate (data.py:41) 81

Each becomes one HostStacks: functions by their share of the samples, or of the time where the file
has time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from stepscope.core.recordings.system import SystemRecording, SystemReport
from stepscope.errors import FormatError
from stepscope.readers.host.profile_json import Profile, read_json
from stepscope.readers.host.profile_stacks import (
    Call,
    StackCounts,
    StackTally,
    is_native,
    parse_location,
)
from stepscope.readers.source import Source
from stepscope.readers.text_lines import TextLines

COLLAPSED = re.compile(rb"[^\n;]{1,2000}(?:;[^\n;]{1,2000}){0,2000} \d{1,15}\r?")
LOCATION = re.compile(rb"\([^()\n]{1,500}:\d{1,9}\)(?=[; ])")
OUTER = re.compile(r"(?:thread|process) ")
SPEEDSCOPE = re.compile(
    rb'[\s\xef\xbb\xbf]*\{.{0,65000}?"\$schema"\s*:\s*"https?://www\.speedscope\.app/file-format-schema',
    re.DOTALL,
)
PYINSTRUMENT = re.compile(
    rb'[\s\xef\xbb\xbf]*\{\s*"start_time"\s*:[^{}]{0,4000}"sample_count"\s*:\s*\d', re.DOTALL
)
VIZTRACER = re.compile(rb'"cat"\s*:\s*"(?:fee|FEE)"|"viztracer_metadata"')
"""How viztracer marks its functions; it writes its own name at the file's end alone."""
SNIFFED_LINES = 20
MAX_LINES = 2_000_000
"""Of collapsed stacks: each is a stack of its own, and equal ones were put together by the tool."""
NATIVE_NOTE = (
    "compiled code was not recorded: a function's own share may be an operator or a wait it calls "
    "(py-spy record --native shows it)"
)


def is_viztracer(head: bytes) -> bool:
    """Whether a file that begins like a trace of torch.profiler is viztracer's."""
    return VIZTRACER.search(head) is not None


def is_mine(head: bytes, _name: str) -> bool:
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        return any(
            pattern.match(head) is not None for pattern in (SPEEDSCOPE, PYINSTRUMENT)
        ) or is_viztracer(head)
    return _is_collapsed(head)


def read(sources: Sequence[Source]) -> SystemReport:
    """All files, one Recording each."""
    return SystemReport(recordings=tuple(map(_read, sources)))


def _is_collapsed(head: bytes) -> bool:
    """Every one of the first lines a stack with its count, and a file's line named among them."""
    lines = head.split(b"\n", SNIFFED_LINES + 1)
    whole = [
        line for line in (lines[:-1] if len(lines) > 1 else lines)[:SNIFFED_LINES] if line.strip()
    ]
    if not whole and LOCATION.search(head) and b";" in head and b"\x00" not in head:
        return True  # a first line longer than all that is looked at
    return (
        bool(whole)
        and all(COLLAPSED.fullmatch(line) for line in whole)
        and any(LOCATION.search(line) for line in whole)
    )


def _read(source: Source) -> SystemRecording:
    lines = TextLines(source, max_lines=MAX_LINES)
    profile = _collapsed(lines) if _starts_collapsed(source) else read_json(source)
    if not profile.tally.num_stacks or profile.tally.amount <= 0:
        raise FormatError(
            f"{source.label}: no stack with a weight in it. Record with py-spy record --native -f "
            "speedscope -o host.json -p PID"
        )
    stacks = profile.tally.stacks(tool=profile.tool, path=source.label, unit=profile.unit)
    notes = [
        *lines.notes,
        *(f"{source.label}: {note}" for note in profile.notes),
        *profile.tally.notes(source.label),
    ]
    if not stacks.has_native:
        notes.append(NATIVE_NOTE)
    return SystemRecording(
        format="host-profile", paths=(source.label,), notes=tuple(notes), stacks=(stacks,)
    )


def _starts_collapsed(source: Source) -> bool:
    first = next((line.lstrip("\ufeff \t") for line in TextLines(source) if line.strip()), "")
    return not first.startswith("{")


def _collapsed(lines: TextLines) -> Profile:
    tally, num_bad, is_spy = StackTally(), 0, False
    counts = StackCounts(tally)
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if not stack or not (count.isascii() and count.isdigit() and len(count) <= 15):
            num_bad += bool(line.strip())
            continue
        parts = stack.split(";")
        outer = [part for part in parts[:2] if OUTER.match(part)]
        calls = tuple(_call(part) for part in parts[len(outer) :])
        is_spy = is_spy or bool(outer) or any(call.line is not None for call in calls)
        counts.add(calls, float(count), ", ".join(outer) or None)
    counts.flush()
    notes = (f"{num_bad:,} line(s) are no stacks",) if num_bad else ()
    return Profile(
        tally=tally, tool="py-spy" if is_spy else "collapsed stacks", unit="samples", notes=notes
    )


@lru_cache(maxsize=65_536)
def _call(text: str) -> Call:
    name, file, line = parse_location(text)
    is_compiled = is_native(name, file) or (
        file is not None and line is None and not file.startswith("<")
    )
    return Call(name, file, line, is_compiled)
