"""Before a long run: ten steps, and an exit code for schedulers.

COMMAND is started as `stepscope run` would start it, recorded early, and ended as soon as every
rank has made its steps, or after --timeout. The answer is a table on stdout; the job's own output
goes to stderr. Exit code: 0 healthy, 1 not healthy, 2 not known. Nothing of the job stays,
whichever way this command ends. It may be ended in the middle of a save: let it write to a folder
of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.options import real
from stepscope.cli.printing import print_document, progress_bar, say
from stepscope.cli.run import command_of, new_folder, refuse_unrunnable
from stepscope.errors import StepscopeError, UsageError
from stepscope.protocol.options import Options as RecordingOptions

if TYPE_CHECKING:
    from stepscope.core.diagnosis import Finding
    from stepscope.live.judge_health import Outcome
    from stepscope.readers.run_folder.tail import RunTail

NUM_STEPS = 10
RECORDING = RecordingOptions(start_step=5, sample_s=0.25)
LOOK_S = 0.25
SAY_S = 2.0
"""Seconds between two lines that say how far it is."""
PATIENCE_STEPS = 10
"""Further steps in which a recording that has not come may still come."""
CODES = {"ok": 0, "bad": 1, "not known": 2}
_seconds = real(
    "a number of seconds; give a number above 0, such as 600", lambda value: 0 < value < 1e7
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    timeout_s: float = declare.option(
        "--timeout S", "seconds the job may take (default: 600)", _seconds, 600.0
    )
    out: Path | None = declare.option(
        "--out DIR", "keep the recording there (default: it is not kept)", Path
    )
    command: tuple[str, ...] = declare.command()


def run(options: Options) -> int:
    from stepscope.live.judge_health import health

    command = command_of(options.command, "stepscope health -- torchrun train.py")
    refuse_unrunnable(command)
    with _folder(options.out) as folder:
        answer = health(_try(folder, command, options.timeout_s))
    from stepscope.live.report.health import health_document

    print_document(health_document(answer))
    return CODES[answer.state]


def _try(folder: Path, command: Sequence[str], timeout_s: float) -> Outcome:
    """Runs the job as far as is needed, ends it, and says how it went."""
    from stepscope import __version__
    from stepscope.live.judge_health import Outcome, expected_ranks
    from stepscope.live.liveness import liveness
    from stepscope.live.shapes.live import SILENT
    from stepscope.process.job import run_owned
    from stepscope.process.launch import environment, finish, prepare

    try:
        started = prepare(folder, command, RECORDING, __version__)
    except OSError as problem:
        raise UsageError(
            f"nothing can be recorded in {folder}: {problem.strerror}. Give --out a folder with "
            "room"
        ) from None
    progress = _Progress(folder)
    # Our stdout is for the answer alone.
    ended = run_owned(
        command,
        environment(folder),
        stdout=sys.stderr,
        timeout_s=timeout_s,
        is_wanted=progress.is_wanted,
        look_s=LOOK_S,
    )
    tail = progress.tail
    silent = (
        ()
        if ended.is_by_itself
        else tuple(rank.rank for rank in tail.ranks if liveness(rank, tail.wall_ns)[0] == SILENT)
    )
    # Ranks write their last lines as they end.
    tail = progress.look()
    finish(folder, started, ended.exit_code)
    findings, why = _findings(folder) if tail.ranks else (None, "")
    return Outcome(
        ranks=tail.ranks,
        expected=expected_ranks(tail.ranks),
        num_steps=NUM_STEPS,
        exit_code=ended.exit_code if ended.is_by_itself else None,
        has_timed_out=ended.is_timed_out,
        silent=silent,
        findings=findings,
        not_diagnosed=why,
    )


class _Progress:
    """What the ranks have written by now."""

    def __init__(self, folder: Path) -> None:
        from stepscope.readers.run_folder.tail import Follower

        self._follower = Follower(folder)
        self.tail = self.look()
        self._began_s = self._said_s = time.monotonic()
        self._first: tuple[int, float] | None = None
        """Steps when the slowest rank had made one, and when that was."""

    def look(self) -> RunTail:
        self.tail = self._follower.look()
        return self.tail

    def is_wanted(self) -> bool:
        """Whether a rank has not yet what is needed."""
        is_wanted = not _is_enough(self.look())
        if is_wanted and sys.stderr.isatty():
            self._say_how_far()
        return is_wanted

    def _say_how_far(self) -> None:
        """A line now and then, and no bar: the job writes to the same terminal."""
        from stepscope.live.samples import last_step

        done = min((last_step(rank) or 0 for rank in self.tail.ranks), default=0)
        now_s = time.monotonic()
        if done and self._first is None:
            self._first = done, now_s
        if now_s - self._said_s < SAY_S:
            return
        self._said_s = now_s
        left = ""
        if self._first is not None and done > self._first[0]:
            pace_s = (now_s - self._first[1]) / (done - self._first[0])
            left = f", about {max(NUM_STEPS - done, 0) * pace_s:.0f} s left"
        say(f"{done} of {NUM_STEPS} steps after {now_s - self._began_s:.0f} s{left}")


def _is_enough(tail: RunTail) -> bool:
    """Every rank has made its steps and written its recording, or has had time enough to."""
    from stepscope.live.judge_health import expected_ranks
    from stepscope.live.samples import last_step

    if not tail.ranks or expected_ranks(tail.ranks) - {rank.rank for rank in tail.ranks}:
        return False
    steps = [last_step(rank) or 0 for rank in tail.ranks]
    has_recordings = all(rank.num_windows or rank.problem is not None for rank in tail.ranks)
    return min(steps) >= (NUM_STEPS if has_recordings else NUM_STEPS + PATIENCE_STEPS)


def _findings(folder: Path) -> tuple[tuple[Finding, ...] | None, str]:
    from stepscope.pipeline.options import Options as ReadingOptions
    from stepscope.pipeline.recording import diagnose

    if not any(folder.glob("rank-*/window-*.json")):
        return None, "no recording was made in these steps"
    try:
        return diagnose(
            [folder], ReadingOptions(use_cache=False, progress=progress_bar)
        ).findings, ""
    except StepscopeError as problem:
        return None, str(problem)


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is None:
        with tempfile.TemporaryDirectory(
            prefix="stepscope-health-", ignore_cleanup_errors=True
        ) as name:
            yield Path(name)
        return
    yield new_folder(out)
