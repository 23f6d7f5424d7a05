"""What is gathered of one job's output, line by line, bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stepscope.core.recordings.allocator_message import FAILED, FAILED_MARK, failure_figures
from stepscope.core.recordings.job_output import Hang, JobOutput, OutOfMemory, Said
from stepscope.recordings.job_log.lines import (
    BACKWARD_FILE,
    ENQUEUED,
    ENQUEUED_MARK,
    FORWARD_FILE,
    GROUP,
    HINT,
    HUNG,
    HUNG_MARK,
    OPTIMIZER_FILE,
    REASON,
    REASON_MARK,
    TORCH_FILE,
    TRACEBACK_MARK,
    TRACED,
    TRACED_MARK,
    WORDINGS,
    message_of,
    rank_in,
)

Key = TypeVar("Key")
MAX_SAID = 256
"""Different warnings, failures, and hung collectives that are kept, of each."""
MAX_RANKS = 1 << 16
MAX_DETAILS = 8
ATTENTION = "attention kernels"
"""The kind of warning that says its reasons in lines of their own."""
MAX_FRAMES = 256
"""Frames of a traceback that are kept; of a deeper one those that came last."""
MAX_TRACEBACKS = 256
"""Tracebacks of ranks that write between each other's lines."""
MARKS = (
    *(mark for mark, _, _ in WORDINGS),
    FAILED_MARK,
    HUNG_MARK,
    ENQUEUED_MARK,
    REASON_MARK,
)


@dataclass(slots=True)
class _Seen:
    """The same thing said again and again."""

    line: int
    num: int = 0
    ranks: set[int] = field(default_factory=set)
    frame: str | None = None
    phase: str | None = None

    def again(self, rank: int | None) -> None:
        self.num += 1
        if rank is not None and len(self.ranks) < MAX_RANKS:
            self.ranks.add(rank)


class JobLogParser:
    def __init__(self) -> None:
        self.num_lines = 0
        self.num_read = 0
        self.num_left_out = 0
        self._said: dict[tuple[str, str, tuple[int, ...]], _Seen] = {}
        self._firsts: dict[str, tuple[str, str, tuple[int, ...]]] = {}
        self._reasons: dict[str, None] = {}
        self._failures: dict[tuple[tuple[str, int | None], ...], _Seen] = {}
        self._traced: dict[int | None, list[tuple[str, str, str]]] = {}
        """Frames of the traceback that is being written, by rank: file, line and function."""
        self._hung: dict[tuple[int, str, int, int | None], _Seen] = {}
        self._enqueued: dict[tuple[str, int], tuple[int | None, int]] = {}
        """Work that timed out, by group and rank, where one did; and the last that was enqueued."""

    def take(self, number: int, line: str) -> None:
        self.num_lines += 1
        if TRACED_MARK in line or TRACEBACK_MARK in line:
            self._take_frame(line)
        if not any(mark in line for mark in MARKS):
            return
        is_read = (
            self._take_failure(number, line)
            or self._take_hang(number, line)
            or self._take_warning(number, line)
        )
        self.num_read += is_read

    def finished(self, path: str) -> JobOutput:
        return JobOutput(
            path=path,
            num_lines=self.num_lines,
            num_read=self.num_read,
            said=tuple(self._warnings()),
            failures=tuple(self._failed()),
            hangs=tuple(self._hangs()),
        )

    def _take_warning(self, number: int, line: str) -> bool:
        for mark, pattern, wording in WORDINGS:
            match = pattern.search(line) if mark in line and HINT not in line else None
            if match is not None:
                numbers = tuple(int(group) for group in match.groups())
                # Two ranks' words on the same differ by nothing but who says them.
                key = (wording.kind, message_of(line, match.start()), numbers)
                key = self._firsts.setdefault(wording.kind, key) if wording.is_one else key
                seen = self._seen(self._said, key, number)
                if seen is not None:
                    seen.again(rank_in(line[: match.start()]))
                return True
        reason = REASON.search(line)
        if reason is not None and len(self._reasons) < MAX_DETAILS:
            self._reasons.setdefault(reason[1])
        return reason is not None

    def _seen(self, kept: dict[Key, _Seen], key: Key, number: int) -> _Seen | None:
        """What was said of it before, or a new entry; None where there are too many."""
        if key not in kept and len(kept) >= MAX_SAID:
            self.num_left_out += 1
            return None
        return kept.setdefault(key, _Seen(number))

    def _take_failure(self, number: int, line: str) -> bool:
        match = FAILED.search(line)
        if match is None:
            return False
        figures = failure_figures(line, match)
        seen = self._seen(self._failures, tuple(figures.items()), number)
        if seen is not None:
            rank = rank_in(line[: match.start()])
            seen.again(rank)
            if seen.frame is None:
                seen.frame, seen.phase = _asked_by(self._traced.get(rank, ()))
        return True

    def _take_frame(self, line: str) -> None:
        rank = rank_in(line)
        if TRACEBACK_MARK in line:
            self._traced.pop(rank, None)
            return
        match = TRACED.search(line)
        if match is not None and (rank in self._traced or len(self._traced) < MAX_TRACEBACKS):
            frames = self._traced.setdefault(rank, [])
            frames.append((match[1], match[2], match[3]))
            del frames[:-MAX_FRAMES]

    def _take_hang(self, number: int, line: str) -> bool:
        hung = HUNG.search(line) if HUNG_MARK in line else None
        if hung is not None:
            key = (int(hung[1]), hung[2], int(hung[4]), int(hung[3]) if hung[3] else None)
            seen = self._seen(self._hung, key, number)
            if seen is not None:
                seen.again(rank_in(line))
        enqueued, group, rank = ENQUEUED.search(line), GROUP.search(line), rank_in(line)
        if (
            enqueued is not None
            and group is not None
            and rank is not None
            and len(self._enqueued) < MAX_RANKS
        ):
            # A rank may write it twice; the first time, it was asked because of the hang.
            work = int(enqueued[1]) if enqueued[1] else None
            self._enqueued.setdefault((group[1].strip(), rank), (work, int(enqueued[2])))
        return hung is not None or enqueued is not None

    def _warnings(self) -> Iterator[Said]:
        has_reasons = False
        for (kind, text, numbers), seen in self._said.items():
            reasons = tuple(self._reasons) if kind == ATTENTION and not has_reasons else ()
            has_reasons |= bool(reasons)
            yield Said(
                kind=kind,
                text=text,
                line=seen.line,
                num=seen.num,
                ranks=tuple(sorted(seen.ranks)),
                numbers=numbers,
                details=reasons,
            )

    def _failed(self) -> Iterator[OutOfMemory]:
        for key, seen in self._failures.items():
            figures: dict[str, Any] = dict(key)
            yield OutOfMemory(
                line=seen.line,
                num=seen.num,
                ranks=tuple(sorted(seen.ranks)),
                frame=seen.frame,
                phase=seen.phase,
                **figures,
            )

    def _hangs(self) -> Iterator[Hang]:
        for (sequence, op, timeout_ms, elements), seen in self._hung.items():
            groups = {
                group
                for (group, rank), (work, _) in self._enqueued.items()
                if work == sequence and rank in seen.ranks
            }
            group = groups.pop() if len(groups) == 1 else None
            behind = {
                rank
                for (name, rank), (_, last) in self._enqueued.items()
                if name == group and last < sequence
            } - seen.ranks
            yield Hang(
                line=seen.line,
                op=op,
                sequence=sequence,
                timeout_s=timeout_ms / 1e3,
                waiting=tuple(sorted(seen.ranks)),
                behind=tuple(sorted(behind)),
                group=group,
                elements=elements,
            )


def _asked_by(frames: Sequence[tuple[str, str, str]]) -> tuple[str | None, str | None]:
    """The innermost frame outside of torch, and the phase that those of torch show."""
    own = next((each for each in reversed(frames) if not TORCH_FILE.search(each[0])), None)
    files = [file for file, _, _ in frames]
    phase = None
    for name, pattern in (
        ("optimizer", OPTIMIZER_FILE),
        ("backward", BACKWARD_FILE),
        ("forward", FORWARD_FILE),
    ):
        if any(pattern.search(file) for file in files):
            phase = name
            break
    if own is None:
        return None, phase
    short = "/".join(own[0].replace("\\", "/").split("/")[-2:])
    return f"{own[2]} ({short}:{own[1]})", phase
