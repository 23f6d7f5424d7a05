"""The wordings of PyTorch that a job's output is searched for, and what each means.

They were read in the sources of torch 2.13, the older ones in people's reports of them. A mark is a
text that every line of the wording has; the pattern finds where the message begins, and the numbers
in it.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct
from msgspec.json import decode

MAX_TEXT = 300


class Warned(Struct, frozen=True, kw_only=True):
    """A kind of warning, as `wordings.json` has it."""

    kind: str
    means: str
    lines: dict[str, str]
    """A pattern for each mark; empty where the mark itself is all of it."""
    is_one: bool = False
    """Written for so many sizes that all of them are counted as the first."""
    advice: tuple[str, str, str] | None = None
    """The code of the finding, a summary and an action, in which {0} is the first number of the
    line; None is shown in the recording alone: no rule of ours is about it, or it is no fault."""


WARNINGS = decode(Path(__file__).with_name("wordings.json").read_bytes(), type=tuple[Warned, ...])
"""Warnings of PyTorch, and of MIOpen 3 (its solver_finders.cpp, convolutionocl.cpp,
find_controls.cpp, generic_search.hpp and sqlite_db.hpp). MIOpen prints warnings by default; what it
chose, its find mode and its searches with MIOPEN_LOG_LEVEL=5."""
WORDINGS = tuple(
    (mark, re.compile(pattern or re.escape(mark)), warned)
    for warned in WARNINGS
    for mark, pattern in warned.lines.items()
)
MEANS = {warned.kind: warned.means for warned in WARNINGS}
HINT = "[__perf_hints]"
"""Lines of the compiler's log, which have a reader of their own."""

TRACED_MARK = ", line "
TRACED = re.compile(r'File "([^"]{1,1000})", line (\d{1,9}), in (\S{1,200})')
TRACEBACK_MARK = "Traceback (most recent call last)"
TORCH_FILE = re.compile(r"(?:(?:site|dist)-packages/|/pytorch/)(?:torch|functorch|triton)/")
BACKWARD_FILE = re.compile(r"/torch/(?:autograd/|_tensor\.py)")
OPTIMIZER_FILE = re.compile(r"/torch/optim/|/bitsandbytes/optim/|/apex/optimizers/")
FORWARD_FILE = re.compile(r"/torch/nn/modules/module\.py")

HUNG_MARK = "Watchdog caught collective operation timeout: "
HUNG = re.compile(
    r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}))?[^)]{0,80}, "
    r"Timeout\(ms\)=(\d{1,12})\)"
)
ENQUEUED_MARK = "ast enqueued "
ENQUEUED = re.compile(
    r"(?:detected by watchdog at work(?: sequence id)?: (\d{1,18})(?:,| PG status:) last"
    r"|dump signal due to a collective timeout.{0,300} Last)"
    r" enqueued (?:NCCL )?work: (-?\d{1,18})"
)
GROUP = re.compile(r"\[(PG [^\[\]]{1,200}?) ?Rank \d{1,7}\]")
RANKS = (re.compile(r"\[rank(\d{1,7})\]"), re.compile(r"\[(?:PG [^\[\]]{1,200} )?Rank (\d{1,7})\]"))
"""The job's number, which torch writes before its lines; else the one in the group, which for the
whole job's is the same."""
REASON_MARK = "sdp_utils"
REASON = re.compile(r"Warning: (.{1,300}?) \(Triggered internally at [^)]{0,300}sdp_utils")
TRIGGERED = re.compile(r"\s*\(Triggered internally.*$")


def rank_in(text: str) -> int | None:
    """The rank that a line is of, where it says so."""
    match = next((match for pattern in RANKS if (match := pattern.search(text))), None)
    return None if match is None else int(match[1])


def message_of(line: str, start: int) -> str:
    return TRIGGERED.sub("", line[start : start + 2 * MAX_TEXT]).strip()[:MAX_TEXT]
