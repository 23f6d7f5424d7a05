"""Where the host's threads stood: py-spy (raw, and any collapsed stacks), torch.profiler's
export_stacks, speedscope, pyinstrument and viztracer files.

    thread (13662): worker-0;Thread.run (threading.py:982);collate (data.py:41) 81
    train.py(6):_<module>;torch/nn/modules/linear.py(130):_forward 2172

Dumps of one moment (`py-spy dump`, faulthandler) are read in stack_dump.py. Each becomes one
HostStacks: functions by their share of the samples, or of the time where the file
has time.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice

from stepscope.api import FormatError, Reader, Source, SystemRecording, TextLines
from stepscope.recordings.host.profile_json import Profile, read_json
from stepscope.recordings.host.profile_stacks import (
    Call,
    StackCounts,
    StackTally,
    is_native,
    parse_location,
)
from stepscope.recordings.host.stack_dump import is_dump, read_dumps

COLLAPSED = re.compile(rb"[^\n;]{1,2000}(?:;[^\n;]{1,2000}){0,2000} \d{1,15}\r?")
LOCATION = re.compile(rb"\([^()\n]{1,500}:\d{1,9}\)(?=[; ])")
EXPORTED = re.compile(rb"\(\d{1,9}\):_[^;\n ]{1,300}(?=[; ])")
"""A frame as export_stacks writes it, with _ for each blank."""
FRAME = re.compile(r"(?P<file>[^()]{1,500})\((?P<line>\d{1,9})\):_(?P<name>.{1,300})")
EXPORTED_NOTE = (
    "the file does not say which time its microseconds are of: the metric that export_stacks was "
    "asked for (self_cpu_time_total, self_cuda_time_total)"
)
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
DUMP_LINES = 100
"""Lines in which the first thread of a dump begins."""
MAX_LINES = 2_000_000
"""Lines of collapsed stacks at most: each is a stack of its own, and equal ones were put together
by the tool."""
NATIVE_NOTE = (
    "compiled code was not recorded: a function's own share may be an operator or a wait it calls "
    "(py-spy record --native shows it)"
)


def is_mine(head: bytes, _name: str) -> bool:
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        # Whether a file that begins like a trace of torch.profiler is viztracer's.
        return any(pattern.match(head) is not None for pattern in (SPEEDSCOPE, PYINSTRUMENT)) or (
            VIZTRACER.search(head) is not None
        )
    return _is_collapsed(head) or is_dump(head)


def _is_collapsed(head: bytes) -> bool:
    """Every one of the first lines a stack with its count, and a file's line named among them."""
    lines = head.split(b"\n", SNIFFED_LINES + 1)
    whole = [
        line for line in (lines[:-1] if len(lines) > 1 else lines)[:SNIFFED_LINES] if line.strip()
    ]
    is_located = LOCATION.search(head) or EXPORTED.search(head)
    if not whole and is_located and b";" in head and b"\x00" not in head:
        return True  # a first line longer than all that is looked at
    return (
        bool(whole)
        and all(COLLAPSED.fullmatch(line) for line in whole)
        and any(LOCATION.search(line) or EXPORTED.search(line) for line in whole)
    )


def read_file(source: Source) -> SystemRecording:
    lines = TextLines(source, max_lines=MAX_LINES)
    if is_dump("\n".join(islice(TextLines(source), DUMP_LINES)).encode()):
        profile = read_dumps(lines)
    else:
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
    tally, num_bad, is_spy, is_exported = StackTally(), 0, False, False
    counts = StackCounts(tally)
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if not stack or not (count.isascii() and count.isdigit() and len(count) <= 15):
            num_bad += bool(line.strip())
            continue
        parts = stack.split(";")
        is_exported = is_exported or FRAME.fullmatch(parts[0]) is not None
        outer = [part for part in parts[:2] if OUTER.match(part)]
        calls = tuple(_call(part) for part in parts[len(outer) :])
        is_spy = is_spy or bool(outer) or any(call.line is not None for call in calls)
        weight = float(count) / 1e6 if is_exported else float(count)
        counts.add(calls, weight, ", ".join(outer) or None)
    counts.flush()
    notes = (f"{num_bad:,} line(s) are no stacks",) if num_bad else ()
    if is_exported:
        return Profile(
            tally=tally, tool="export_stacks", unit="seconds", notes=(*notes, EXPORTED_NOTE)
        )
    return Profile(
        tally=tally, tool="py-spy" if is_spy else "collapsed stacks", unit="samples", notes=notes
    )


@lru_cache(maxsize=65_536)
def _call(text: str) -> Call:
    exported = FRAME.fullmatch(text)
    if exported is not None:
        return Call(exported["name"], exported["file"], int(exported["line"]), False)
    name, file, line = parse_location(text)
    is_compiled = is_native(name, file) or (
        file is not None and line is None and not file.startswith("<")
    )
    return Call(name, file, line, is_compiled)


READER = Reader(is_mine=is_mine, read_file=read_file)
