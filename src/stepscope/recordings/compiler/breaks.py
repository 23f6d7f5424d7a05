"""A graph break in TorchDynamo's words, of any version, as a Break.

Graph break in user code at model.py:61
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, ...

Unsupported Tensor.item() call with capture_scalar_outputs=False
  Explanation: Dynamo does not support tracing `Tensor.item()` with ...
  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True` ...
User code traceback:
  File "model.py", line 61, in f
    if y.sum().item() > 0:
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.core.recordings.compiler import NO_REASON, Break

HEAD = re.compile(r"Graph break(?: \([^)]{1,80}\))? in user code at (.{1,400}:\d{1,9})\s*")
OLD_HEAD = re.compile(r"Graph break: (.{0,1000}?) ?from user code at:?\s*")
"""First line of a break of 2.0 to 2.5: the location is the last one of the stack that follows."""
REASON = re.compile(r"(?:Graph Break )?Reason: (.*)")
FILE = re.compile(r'\s*File "([^"]{1,400})", line (\d{1,9})(?:, in .{1,200})?')
INSTALLED = re.compile(
    r"(?:site|dist)-packages/|/lib/python\d|(?:^|/)torch/(?:_\w+|nn|utils|optim)/|^<frozen "
)
BOILERPLATE = re.compile(
    r"Please report an issue|please file an issue|^This graph break is fundamental"
    r"|^It may be possible to write Dynamo tracing rules"
)
"""Hints that say nothing of the user's code."""
RAISED = re.compile(r"torch\._dynamo\.exc\.\w{1,60}: (.{1,1000})")
GENERIC_REASON = "Encountered graph break when attempting to "
MAX_LINES = 120
"""Lines of one break that are kept: its first words, and the innermost frames of its stack."""
MAX_HINTS = 6
MAX_TEXT = 400


def is_break(text: str) -> bool:
    return HEAD.match(text) is not None or OLD_HEAD.match(text) is not None


def break_of(
    lines: Sequence[str], ident: str, rank: int | None, process: int | None
) -> Break | None:
    """The break of these lines; None where they are about something else."""
    head = HEAD.match(lines[0]) if lines else None
    old = OLD_HEAD.match(lines[0]) if lines and head is None else None
    if head is None and old is None:
        return None
    body = lines[1:]
    reason, explanation, hints = reason_in(body)
    frames = frames_in(body)
    location = head[1] if head else ""
    code, called_from = "", ""
    if frames:
        innermost, code = frames[-1]
        location = location or innermost
        own = [frame for frame in frames if not INSTALLED.search(frame[0])]
        if INSTALLED.search(location) and own:
            called_from = own[-1][0]
    return Break(
        rank=rank,
        process=process,
        id=ident,
        location=location,
        reason=reason or (old[1].strip()[:MAX_TEXT] if old else "") or _raised(body) or NO_REASON,
        explanation=explanation,
        hints=hints,
        code=code,
        called_from=called_from,
    )


def _raised(lines: Sequence[str]) -> str:
    """Error of 2.3 to 2.5: what the compiler's own stack ends with."""
    for line in reversed(lines):
        if match := RAISED.match(line.strip()):
            return match[1].strip()[:MAX_TEXT]
    return ""


def reason_in(lines: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """Reason, explanation and the hints that are of use, from lines as they are logged or
    counted."""
    reason, explanation, hints, is_next = "", "", list[str](), False
    for line in lines:
        text = line.strip()
        if text.startswith(("User code traceback:", "Traceback (most recent")):
            break
        match = REASON.match(text)
        if match and not reason:
            is_next = match[1].startswith(GENERIC_REASON) or not match[1]
            reason = "" if is_next else match[1]
        elif is_next and text:
            reason, is_next = text, False
        elif text.startswith("Explanation: ") and not explanation:
            explanation = text.removeprefix("Explanation: ")
        elif (
            text.startswith("Hint: ")
            and len(hints) < MAX_HINTS
            and not BOILERPLATE.search(text.removeprefix("Hint: "))
        ):
            hints.append(text.removeprefix("Hint: ")[:MAX_TEXT])
    return reason.removeprefix("Unsupported: ")[:MAX_TEXT], explanation[:MAX_TEXT], tuple(hints)


def counted_break(text: str) -> Break:
    """A break in the text that TorchDynamo's counters have: no id, no location."""
    reason, explanation, hints = reason_in(("Reason: " + text).split("\n"))
    return Break(id="", reason=reason or NO_REASON, explanation=explanation, hints=hints)


def frames_in(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Location and code of each frame of the user's stack, the innermost last; the
    compiler's own stack is not one."""
    frames: list[tuple[str, str]] = []
    is_code = is_stack = False
    is_old = not any(line.startswith("User code traceback:") for line in lines)
    for line in lines:
        if line.startswith("User code traceback:"):
            is_stack = True
            continue
        if line.startswith("Traceback (most recent"):
            break
        if not (is_stack or is_old):
            continue
        match = FILE.match(line)
        if match:
            frames.append((f"{match[1]}:{match[2]}", ""))
        elif is_code and frames and line.strip():
            frames[-1] = (frames[-1][0], line.strip()[:MAX_TEXT])
        elif is_stack and not line.strip():
            break
        is_code = match is not None
    return frames
