"""Follows a run folder while the job writes it: the ends of its files, and what came since the last
look."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from stepscope.errors import InputError
from stepscope.protocol.run_folder import (
    DIAGNOSIS_FILE,
    LIVE_FILE,
    PROBLEM_FILE,
    RANK_FILE,
    RANK_FOLDER,
    RUN_FILE,
    SAMPLES_FILE,
    STEP_COLUMNS,
    STEP_SUMMARY_COLUMNS,
    STEPS_FILE,
    WINDOW_NAME,
    is_run,
    step_summary_path,
)
from stepscope.readers.run_folder.folder import MAX_RANKS, problem_of, refuse_special_files
from stepscope.readers.run_folder.line_tail import Lines, head_lines, read_object, sound_objects
from stepscope.readers.run_folder.values import Row, sound_row

NUM_HEAD = 100
"""Timed steps from which the run's own baseline is made."""
NUM_ROWS = 64
NUM_SAMPLES = 32


class RankTail(Struct, frozen=True, kw_only=True):
    """What one rank wrote last."""

    rank: int
    metadata: dict[str, Any]
    """RUN/rank-N/rank.json."""
    head: tuple[Row, ...]
    """The run's first timed steps."""
    rows: tuple[Row, ...]
    stretches: tuple[Row, ...]
    samples: tuple[dict[str, Any], ...]
    new_rows: tuple[Row, ...]
    """Rows since the look before; a bounded number, the latest."""
    new_samples: tuple[dict[str, Any], ...]
    num_windows: int
    """Recordings that are written."""
    sign_wall_ns: int
    """When it last wrote a sample, by the clock of its machine."""
    step_wall_ns: int
    """When a step was last seen to be made."""
    problem: str | None


class RunTail(Struct, frozen=True, kw_only=True):
    """One look at a run folder."""

    path: Path
    metadata: dict[str, Any]
    diagnosis: dict[str, Any] | None
    ranks: tuple[RankTail, ...]
    wall_ns: int
    """When it was looked at."""


class Follower:
    """Looks at a run folder again and again. Between two looks it keeps the last few lines of each
    file and where it stood."""

    def __init__(self, path: Path, clock: Callable[[], int] = time.time_ns) -> None:
        refuse_special_files(path)
        if not is_run(path):
            what = "is not the folder of a run" if path.exists() else "does not exist"
            raise InputError(
                f"{path} {what}: name the folder that `stepscope run` named, with {RUN_FILE} in it"
            )
        self.path = path
        self._clock = clock
        self._ranks: dict[str, _RankFollower] = {}

    def look(self) -> RunTail:
        newest: dict[int, _RankFollower] = {}
        for folder in self._folders():
            rank = self._ranks.setdefault(folder.name, _RankFollower(folder))
            other = newest.get(rank.rank)
            if other is None or rank.changed_ns() > other.changed_ns():
                newest[rank.rank] = rank
        return RunTail(
            path=self.path,
            metadata=read_object(self.path / RUN_FILE),
            diagnosis=read_object(self.path / DIAGNOSIS_FILE) or None,
            ranks=tuple(newest[rank].look() for rank in sorted(newest)),
            wall_ns=self._clock(),
        )

    def _folders(self) -> Iterator[Path]:
        try:
            names = sorted(
                folder.name for folder in self.path.iterdir() if RANK_FOLDER.match(folder.name)
            )
        except OSError:
            return
        yield from (self.path / name for name in names[:MAX_RANKS])


class _RankFollower:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        match = RANK_FOLDER.match(folder.name)
        assert match is not None
        self.rank = int(match[1])
        self._metadata: dict[str, Any] = {}
        self._metadata_ns = 0
        self._head: tuple[Row, ...] = ()
        self._rows: deque[Row] = deque(maxlen=NUM_ROWS)
        self._stretches: deque[Row] = deque(maxlen=NUM_ROWS)
        self._samples: deque[dict[str, Any]] = deque(maxlen=NUM_SAMPLES)
        self._row_lines = Lines(folder / STEPS_FILE)
        self._stretch_lines = Lines(step_summary_path(folder))
        self._sample_lines = Lines(folder / SAMPLES_FILE)
        self._live_lines = Lines(folder / LIVE_FILE)
        self._last_step: Any = None
        self._sign_ns: int | None = None
        self._step_ns: int | None = None

    def changed_ns(self) -> int:
        """Time of the last change of its files; of a rank that has just begun, when its folder was
        made."""
        names = ".", SAMPLES_FILE, STEPS_FILE, LIVE_FILE
        return max(_changed_ns(self.folder / name) for name in names)

    def look(self) -> RankTail:
        changed = _changed_ns(self.folder / RANK_FILE)
        if changed != self._metadata_ns:
            self._metadata, self._metadata_ns = read_object(self.folder / RANK_FILE), changed
        if len(self._head) < NUM_HEAD:
            self._head = tuple(_timed(_rows(head_lines(self.folder / STEPS_FILE), STEP_COLUMNS)))[
                :NUM_HEAD
            ]
        # Of a long run: what the other two files are too full for.
        live = self._live_lines.new()
        rows = _rows([*self._row_lines.new(), *live], STEP_COLUMNS)
        samples = sound_objects([*self._sample_lines.new(), *live])
        self._rows.extend(rows)
        self._stretches.extend(_rows(self._stretch_lines.new(), STEP_SUMMARY_COLUMNS))
        self._samples.extend(samples)
        self._note_signs(samples)
        problem = self.folder / PROBLEM_FILE
        return RankTail(
            rank=self.rank,
            metadata=self._metadata,
            head=self._head,
            rows=tuple(self._rows),
            stretches=tuple(self._stretches),
            samples=tuple(self._samples),
            new_rows=tuple(rows),
            new_samples=tuple(samples),
            num_windows=_num_windows(self.folder),
            sign_wall_ns=self._wall(self._sign_ns),
            step_wall_ns=self._wall(self._step_ns),
            problem=problem_of(problem),
        )

    def _wall(self, at_ns: int | None) -> int:
        """A time of the rank's perf_counter on the wall clock: rank.json has one moment on both
        clocks."""
        wall, perf = self._metadata.get("wall_ns"), self._metadata.get("perf_ns")
        if isinstance(wall, int) and isinstance(perf, int) and at_ns is not None:
            return at_ns - perf + wall
        return self.changed_ns()

    def _note_signs(self, samples: Sequence[dict[str, Any]]) -> None:
        for sample in samples:
            at_ns, step = sample.get("at_ns"), sample.get("step")
            if isinstance(at_ns, int):
                self._sign_ns = at_ns
                if step != self._last_step:
                    self._last_step, self._step_ns = step, at_ns


MIN_COLUMNS = 7
"""Columns of a stretch; a step has more."""


def _rows(values: Sequence[Any], columns: Sequence[str]) -> list[Row]:
    """Rows of any version: those of an older one have fewer columns."""
    return [
        dict.fromkeys(columns) | sound_row(columns[: len(value)], value)
        for value in values
        if isinstance(value, list) and MIN_COLUMNS <= len(value) <= len(columns)
    ]


def _timed(rows: Sequence[Row]) -> Iterator[Row]:
    return (row for row in rows if row["state"] == 0 and row["dur_ns"])


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _num_windows(folder: Path) -> int:
    try:
        return sum(1 for file in folder.iterdir() if WINDOW_NAME.match(file.name))
    except OSError:
        return 0
