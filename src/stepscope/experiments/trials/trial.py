"""A trial: the command is run once, for a short while, and its steps are timed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from stepscope.core.experiments.trials import Change, Trial, Value
from stepscope.errors import UsageError
from stepscope.experiments.trials.record import (
    irregular_step_ns,
    median_rank,
    timed_steps,
    trial_of,
)
from stepscope.process.job import run_owned
from stepscope.process.launch import environment, finish, prepare
from stepscope.protocol.options import AFTER_STEPS, FIRST_STEPS, WARM_STEPS, Options
from stepscope.protocol.run_folder import STDERR_FILE, STDOUT_FILE
from stepscope.protocol.settings import checked, environment_of
from stepscope.readers.run_folder.folder import RunRecord, read_run

MAX_LINE = 300


def last_line(tail: str) -> str:
    """The last line of a job's output that says something."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1][:MAX_LINE] if lines else ""


CALL_S = 0.5
"""Seconds between two calls of on_steps, and two writes of the job while somebody listens."""
WINDOW_STEPS = 3
MAX_OUTPUT_BYTES = 64 << 20
"""Kept of what a job writes to one of its streams: many trials must not fill the disk."""


def run_trial(
    command: Sequence[str],
    folder: Path,
    change: Change = Change(),  # noqa: B008 - frozen
    *,
    max_steps: int | None = None,
    warm_up_steps: int = 10,
    timeout_s: float | None = None,
    with_numerics: bool = False,
    profile: bool = False,
    on_steps: Callable[[Sequence[int]], bool] | None = None,
) -> Trial:
    """Runs the command once with the change applied on top of it; `folder` is made here and then is
    a run folder like any other.

    Steps are numbered from the end of the first optimizer step on. Those up to `warm_up_steps` are
    left out, then `max_steps` are timed, and every rank ends itself. With `profile`, a window is
    recorded after the timed steps. `on_steps` gets the first rank's timed steps so far, about twice
    a second; the trial ends when it returns False.
    """
    from stepscope import __version__

    words = [*command, *change.arguments]
    _check_start(words, folder)
    knobs = _checked(change.knobs)
    skipped = max(warm_up_steps, FIRST_STEPS)
    options = _options(skipped, max_steps, with_numerics=with_numerics, profile=profile)
    options = replace(options, raised=change.raised)
    if on_steps is not None:
        options = replace(options, sample_s=CALL_S)
    watcher = _Watcher(folder, skipped, on_steps)
    try:
        run_info = prepare(folder, words, options, __version__, knobs)
        given = {**os.environ, **environment_of(knobs), **change.environment}
        # Appended to: a file that was cut short goes on where it ends.
        with (folder / STDOUT_FILE).open("a+b") as out, (folder / STDERR_FILE).open("a+b") as err:
            watcher.outputs = out, err
            ended = run_owned(
                words,
                environment(folder, given),
                stdout=out,
                stderr=err,
                timeout_s=timeout_s,
                is_wanted=watcher.is_wanted,
            )
            watcher.cut_outputs()
    except OSError as problem:
        raise UsageError(f"the trial in {folder} could not be started: {problem}") from None
    try:
        finish(folder, run_info, ended.exit_code)
    except OSError as problem:
        raise UsageError(
            f"what the trial in {folder} recorded could not be written: {problem}"
        ) from None
    return trial_of(read_run(folder), change, ended, skipped, max_steps)


def _check_start(words: Sequence[str], folder: Path) -> None:
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"{words[0] if words else 'nothing'} is not a command that can be run here. Is it "
            "spelled right, and on PATH?"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder} is there already and not empty: a trial needs a folder of its own"
        )


def steps_of(run: RunRecord) -> tuple[int, ...]:
    """The usual timed steps of a run that is there already, of the rank whose pace is the
    median."""
    _, steps, _ = median_rank(run, 0)
    return steps


def odd_of(run: RunRecord) -> float:
    """What steps that save or evaluate, which are not usual, add to the mean step of a run that is
    there already."""
    rank, steps, _ = median_rank(run, 0)
    return 0.0 if rank is None else irregular_step_ns(rank.rows, 0, None, steps)


def _options(skipped: int, max_steps: int | None, *, with_numerics: bool, profile: bool) -> Options:
    options = Options(
        trial=True, numerics=with_numerics, num_windows=int(profile), num_steps=WINDOW_STEPS
    )
    if max_steps is None:
        return options
    last = skipped + max_steps
    if not profile:
        return replace(options, max_steps=last)
    after = WARM_STEPS + WINDOW_STEPS + AFTER_STEPS
    return replace(options, start_step=last + 1, max_steps=last + after)


def _checked(knobs: Mapping[str, Value]) -> dict[str, Value]:
    try:
        return checked(knobs)
    except ValueError as problem:
        raise UsageError(str(problem)) from None


class _Watcher:
    """Asks on_steps now and then whether to go on."""

    def __init__(
        self, folder: Path, skipped: int, on_steps: Callable[[Sequence[int]], bool] | None
    ) -> None:
        self._folder, self._skipped, self._on_steps = folder, skipped, on_steps
        self._next_s = 0.0
        self.outputs: tuple[IO[bytes], ...] = ()

    def cut_outputs(self) -> None:
        for output in self.outputs:
            cut_short(output)

    def is_wanted(self) -> bool:
        self.cut_outputs()
        now = time.monotonic()
        if self._on_steps is None or now < self._next_s:
            return True
        self._next_s = now + CALL_S
        ranks = read_run(self._folder).ranks
        steps, _ = timed_steps(ranks[0].rows, self._skipped) if ranks else ((), False)
        return self._on_steps(steps)


def cut_short(output: IO[bytes]) -> None:
    """Keep the end alone of a stream's file that has become too large: it tells most."""
    number = output.fileno()
    size = os.fstat(number).st_size
    if size > MAX_OUTPUT_BYTES:
        end = os.pread(number, MAX_OUTPUT_BYTES // 64, size - MAX_OUTPUT_BYTES // 64)
        output.truncate(0)
        left_out = f"(stepscope: the first {(size - len(end)) >> 20} MB are left out)\n"
        output.write(left_out.encode() + end)
        output.flush()
