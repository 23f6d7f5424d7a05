"""Where each thread of a process stood at one moment: `py-spy dump`, and what faulthandler prints.

    Thread 4410 (active+gil): "MainThread"
        decode (PIL/ImageFile.py:291)
        __getitem__ (data.py:33)

    Thread 0x00007f51 (most recent call first):
      File "/app/data.py", line 33 in __getitem__

The innermost call comes first. Of each dump the main thread is kept: py-spy names it, faulthandler
writes it last. Several dumps in a file are several looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepscope.recordings.host.profile_json import Profile
from stepscope.recordings.host.profile_stacks import (
    MAX_DEPTH,
    Call,
    StackTally,
    is_native,
    parse_location,
)

TOOL = "a dump of stacks"
LOOKS = "looks"
THREAD = re.compile(
    r"\s{0,8}(?:Current thread|Thread) (?:0x)?[0-9A-Fa-f]{1,16} \((?:active|idle|most recent)"
)
SIGN = re.compile(
    rb"^[ \t]{0,8}(?:Current thread|Thread) (?:0x)?[0-9A-Fa-f]{1,16} "
    rb"\((?:(?:active|idle)(?:\+gil)?\)|most recent call first\):?)",
    re.MULTILINE,
)
START = re.compile(r"\s{0,8}(?:Process \d{1,9}: |Fatal Python error: )")
MAIN = '"MainThread"'
FRAME = re.compile(r"\s{1,16}(\S.{0,400}? \([^()]{1,500}(?::\d{1,9})?\))\s*")
FILE = re.compile(r'\s{0,16}File "([^"]{1,1000})", line (\d{1,9}) in (\S.{0,300}?)\s*')
MAX_THREADS = 100_000


@dataclass(slots=True)
class _Dump:
    threads: list[tuple[bool, list[Call]]] = field(default_factory=list)
    """Whether each is named as the main one, and its calls, the innermost first."""
    is_spy: bool = True

    def main(self) -> list[Call]:
        named = [calls for is_main, calls in self.threads if is_main]
        every = [calls for _, calls in self.threads if calls]
        if named or not every:
            return named[0] if named else []
        return every[0 if self.is_spy else -1]


def is_dump(head: bytes) -> bool:
    return SIGN.search(head) is not None


def read_dumps(lines: Iterable[str]) -> Profile:
    """The main thread's stack of each dump, as one look each."""
    tally, dump, num_left_out = StackTally(), _Dump(), 0
    for line in lines:
        if THREAD.match(line):
            if len(dump.threads) >= MAX_THREADS:
                num_left_out += 1
                continue
            dump.is_spy = "most recent call first" not in line
            dump.threads.append((MAIN in line, []))
        elif START.match(line):
            _count(dump, tally)
            dump = _Dump()
        elif dump.threads and (call := _call(line)) is not None:
            calls = dump.threads[-1][1]
            if len(calls) < MAX_DEPTH:
                calls.append(call)
    _count(dump, tally)
    notes = (f"{num_left_out:,} threads were left out",) if num_left_out else ()
    return Profile(tally=tally, tool=TOOL, unit=LOOKS, notes=notes)


def _count(dump: _Dump, tally: StackTally) -> None:
    calls = dump.main()
    if calls:
        tally.add(tuple(reversed(calls)), 1.0, "MainThread")


def _call(line: str) -> Call | None:
    if match := FILE.fullmatch(line):
        return Call(match[3], match[1], int(match[2]), False)
    match = FRAME.fullmatch(line)
    if match is None:
        return None
    name, file, number = parse_location(match[1])
    return Call(name, file, number, is_native(name, file))
