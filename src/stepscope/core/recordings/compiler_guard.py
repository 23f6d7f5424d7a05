"""A guard of compiled code that failed: what it looked at, and what was there instead.

    tensor 'x' size mismatch at index 1. expected 8, actual 9
    -> a tensor's size, x, dimension 1: 8, 9
    L['self'].k == 3      # return y * self.k  # model.py:14 in forward
    -> a value, self.k: 3

TorchDynamo prints them in words of its own, which change between versions: what is not known here
stays as it was printed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

SIZE, STRIDE, RANK, DTYPE, DEVICE, GRAD, KEYS = (
    "size",
    "stride",
    "rank",
    "dtype",
    "device",
    "requires_grad",
    "dispatch keys",
)
SIZE_BOUND, VALUE, LENGTH, TYPE, IDENTITY, STATE, OTHER = (
    "bound",
    "value",
    "length",
    "type",
    "identity",
    "global state",
    "other",
)
MAX_TEXT = 300
"""Of a guard: the longest real ones, with the user's line behind them, have some 250 letters."""
MAX_VALUES = 16
"""Of one guard that are kept: what they are is seen from a few."""
MAX_SHOWN = 6

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


class Guard(Struct, frozen=True, kw_only=True):
    """One guard that failed, once."""

    text: str
    """As it was printed, without the id of the compiled version that it kept from being used."""
    kind: str = OTHER
    subject: str = ""
    """The tensor's or value's name in the user's code."""
    index: int | None = None
    """The dimension, for sizes and strides."""
    expected: str | None = None
    actual: str | None = None
    code: str = ""
    """The user's line that it comes from."""
    location: str = ""
    hint: str = ""
    """What TorchDynamo says to it."""

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What it looked at, whatever the value."""
        return (self.kind, self.subject or self.text, self.index)

    @property
    def words(self) -> str:
        """What it looked at: `size of tensor x at dimension 1`."""
        if self.kind in (SIZE, STRIDE):
            return f"{self.kind} of tensor {self.subject} at dimension {self.index}"
        if self.kind == SIZE_BOUND:
            return f"bound on the size of tensor {self.subject} at dimension {self.index}"
        if self.kind in (RANK, DTYPE, DEVICE, GRAD, KEYS):
            what = "number of dimensions" if self.kind == RANK else self.kind
            return f"{what} of tensor {self.subject}"
        if self.kind == STATE:
            return f"global state ({self.subject})" if self.subject else "global state"
        return self.text if self.kind == OTHER else f"{self.kind} of {self.subject}"


class GuardCount(Struct, frozen=True, kw_only=True):
    """A guard over all the times that it failed."""

    guard: Guard
    count: int
    values: tuple[str, ...]
    """What was expected and what was there, in order, each once."""

    @property
    def words(self) -> str:
        """`size of tensor x at dimension 0: 8, 16, 24, ...`; with the user's line, where it was
        printed."""
        words, guard = self.guard.words, self.guard
        if self.values:
            words += ": " + ", ".join(self.values[:MAX_SHOWN])
        if len(self.values) > MAX_SHOWN:
            words += ", ..."
        if guard.location:
            code = f": {guard.code}" if guard.code else ""
            words += f" ({guard.location}{code})"
        return words


def count_guards(failures: Iterable[tuple[Guard, ...]]) -> tuple[GuardCount, ...]:
    """Each guard once, the most frequent first. Of one compilation a guard counts once, however
    many versions it kept out."""
    first: dict[object, Guard] = {}
    values: dict[object, dict[str, None]] = {}
    counts: Counter[object] = Counter()
    for guards in failures:
        counts.update({guard.key for guard in guards})
        # The oldest version's first: values then stand in the order in which they came.
        for guard in reversed(guards):
            seen = values.setdefault(guard.key, {})
            first.setdefault(guard.key, guard)
            if guard.expected is not None and len(seen) < MAX_VALUES:
                seen.setdefault(guard.expected)
        for guard in guards:
            if guard.actual is not None and len(values[guard.key]) < MAX_VALUES:
                values[guard.key].setdefault(guard.actual)
    order = sorted(first, key=lambda key: -counts[key])
    return tuple(
        GuardCount(guard=first[key], count=counts[key], values=tuple(values[key])) for key in order
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
