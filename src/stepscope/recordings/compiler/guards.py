"""A guard of compiled code that failed, of the line that says so.

    tensor 'x' size mismatch at index 1. expected 8, actual 9
    -> a tensor's size, x, dimension 1: 8, 9
    L['self'].k == 3      # return y * self.k  # model.py:14 in forward
    -> a value, self.k: 3

TorchDynamo prints them in words of its own, which change between versions: what is not known here
stays as it was printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.core.recordings.compiler_guard import (
    DEVICE,
    DTYPE,
    GRAD,
    IDENTITY,
    KEYS,
    LENGTH,
    OTHER,
    RANK,
    SIZE,
    SIZE_BOUND,
    STATE,
    TYPE,
    VALUE,
    Guard,
)

MAX_TEXT = 300
"""Characters of a guard that are kept: the longest real ones, with the user's line behind them,
have some 250."""
COMPILE_ID = re.compile(r"(?:![\w.]{1,20}/)?[\w.-]{1,40}/\d{1,9}(?:_\d{1,9})?: ")
COMMENT = re.compile(
    r"(.{0,300}?)\s{0,99}# ([^#]{1,300}?:\d{1,9}) in \S{1,200}(?: \(HINT: (.{1,600}))?", re.DOTALL
)
LOCAL = re.compile(r"\b[LG]\['([A-Za-z_]\w{0,80})'\]")
TENSOR = re.compile(r"tensor '(.{1,160}?)' (.{1,200})", re.DOTALL)
AT_INDEX = re.compile(
    r"(size|stride) mismatch at index (\d{1,4})\. expected (-?\d{1,20}), actual (-?\d{1,20})"
)
EXPECTED = re.compile(r"mismatch\. expected (?:requires_grad=)?(.{1,160}?)(?:, actual (.{1,160}))?")
DEVICE_INDEX = re.compile(
    r"Tensor device index mismatch\. Expected device index to be (-?\d{1,6}), actual (-?\d{1,6})"
)
SIZE_IS = re.compile(r"(.{1,160}?)\.size\(\)\[(\d{1,4})\] == (-?\d{1,20})")
IN_BOUNDS = re.compile(
    r"(?:-?\d{1,20} <=? )?([^<>=\s].{0,160}?)\.size\(\)\[(\d{1,4})\] [<>!=]=? .{1,160}"
)
LENGTH_IS = re.compile(r"len\((.{1,160}?)\) == (\d{1,20})")
VALUE_IS = re.compile(r"([^<>=!]{1,160}?) == ([^<>=]{1,120})")
TYPE_IS = re.compile(r"___check_type_id\((.{1,160}?), \d{1,20}\)(?:, type=(.{1,120}))?")
SAME_OBJECT = re.compile(
    r"___check_obj_id\((.{1,160}?), \d{1,20}\).{0,120}|(.{1,160}?) is (?:not )?.{1,120}"
)
GLOBAL = re.compile(
    r"GLOBAL_STATE changed: "
    r"?(.{0,160})|___check_global_state\(\)|___check_(torch_function_mode_stack)\(\)"
)


def guard_of(text: str, frames: Sequence[tuple[str, str]] = ()) -> Guard:
    """The guard of a line; `frames` is the user's stack that may follow it, as locations and lines
    of code."""
    compile_id = COMPILE_ID.match(text)
    text = text[compile_id.end() if compile_id else 0 :][: 4 * MAX_TEXT].strip()
    guard, _, comment = text.partition("  # ")
    guard = guard.strip()
    code, location, hint = _comment(comment)
    if frames:  # A comment's location may have lost its first letters.
        location, code = frames[-1]
    kind, subject, index, expected, actual = _parsed(guard)
    return Guard(
        text=guard[:MAX_TEXT],
        kind=kind,
        subject=plain(subject),
        index=index,
        expected=expected,
        actual=actual,
        code=code,
        location=location,
        hint=hint,
    )


def plain(name: str) -> str:
    """`self.k` for `L['self'].k`."""
    return LOCAL.sub(r"\1", name)


def _comment(comment: str) -> tuple[str, str, str]:
    """Line of code, location and hint of `code  # file:line in function (HINT: ...)`."""
    match = COMMENT.match(comment)
    if match is None:
        return "", "", ""
    return match[1].strip()[:MAX_TEXT], match[2], (match[3] or "").rstrip(") ")[:MAX_TEXT]


def _parsed(text: str) -> tuple[str, str, int | None, str | None, str | None]:
    """Kind, subject, dimension, what was expected, what was there."""
    if tensor := TENSOR.fullmatch(text):
        return _of_tensor(tensor[1], tensor[2])
    if match := SIZE_IS.fullmatch(text):
        return SIZE, match[1], int(match[2]), match[3], None
    if match := IN_BOUNDS.fullmatch(text):
        return SIZE_BOUND, match[1], int(match[2]), text, None
    if match := LENGTH_IS.fullmatch(text):
        return LENGTH, match[1], None, match[2], None
    if match := TYPE_IS.fullmatch(text):
        return TYPE, match[1], None, match[2], None
    if match := GLOBAL.match(text):
        return STATE, (match[1] or match[2] or "").strip(), None, None, None
    if match := VALUE_IS.fullmatch(text):
        return VALUE, match[1].strip(), None, match[2].strip(), None
    if match := SAME_OBJECT.fullmatch(text):
        return IDENTITY, match[1] or match[2], None, None, None
    return OTHER, "", None, None, None


def _of_tensor(name: str, rest: str) -> tuple[str, str, int | None, str | None, str | None]:
    if match := AT_INDEX.fullmatch(rest):
        return match[1], name, int(match[2]), match[3], match[4]
    if match := DEVICE_INDEX.fullmatch(rest):
        return DEVICE, name, None, match[1], match[2]
    words = {"rank": RANK, "dtype": DTYPE, "requires_grad": GRAD, "dispatch key set": KEYS}
    for word, kind in words.items():
        if rest.startswith(word) and (match := EXPECTED.fullmatch(rest.removeprefix(word).strip())):
            return kind, name, None, match[1], match[2]
    return OTHER, "", None, None, None
