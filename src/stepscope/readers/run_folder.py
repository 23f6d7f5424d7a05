"""Reads a run folder, as `stepscope run` leaves it or as it stands while the job runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import InputError
from stepscope.runfolder import (
    ENTERED_FILE,
    EVENTS_FILE,
    PROBLEM_FILE,
    RANK_FILE,
    RANK_FOLDER,
    RUN_FILE,
    SAMPLES_FILE,
    SITE_FOLDER,
    STEP_COLUMNS,
    STEPS_FILE,
    WINDOW_NAME,
    is_run,
)

MAX_FILE_BYTES = 64 << 20
"""Of one of our own files; the writer keeps them far smaller."""
MAX_RANKS = 100_000

Row = dict[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What one rank wrote, as it wrote it."""

    rank: int
    folder: Path
    told: dict[str, Any]
    """RUN/rank-N/rank.json."""
    rows: tuple[Row, ...]
    samples: tuple[dict[str, Any], ...]
    events: tuple[dict[str, Any], ...]
    windows: dict[int, Path]
    """By the step they begin with."""
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run folder, read."""

    path: Path
    told: dict[str, Any]
    ranks: tuple[RankRecord, ...]
    notes: tuple[str, ...]

    def chosen_windows(self) -> dict[int, Path]:
        """One recording per rank: the one that most ranks made, the latest of those."""
        begun = Counter(step for rank in self.ranks for step in rank.windows)
        if not begun:
            return {}
        most = max(begun.values())
        common = max(step for step, num in begun.items() if num == most)
        chosen = {}
        for rank in self.ranks:
            if rank.windows:
                chosen[rank.rank] = rank.windows.get(common) or rank.windows[max(rank.windows)]
        return chosen


def read_run(path: Path) -> RunRecord:
    """The folder's ranks in order. What cannot be read is noted; only a folder that is no run is an error."""
    if not is_run(path):
        raise InputError(f"{path} is not the folder of a run: it has no {RUN_FILE} that `stepscope run` wrote")
    told = _object(path / RUN_FILE)
    notes: list[str] = [f"the capture did not start in a process: {_last_line(p)}" for p in sorted(path.glob("problem-*.txt"))]
    found: dict[int, list[Path]] = {}
    for folder in path.iterdir():
        match = RANK_FOLDER.match(folder.name)
        if match and folder.is_dir() and len(found) < MAX_RANKS:
            found.setdefault(int(match[1]), []).append(folder)
    ranks = []
    for rank, folders in sorted(found.items()):
        newest = max(folders, key=lambda folder: folder.stat().st_mtime_ns)
        if len(folders) > 1:
            notes.append(f"{len(folders)} processes were rank {rank}, one after the other or at once; {newest.name} is judged")
        ranks.append(_read_rank(newest, rank, notes))
    notes += _unrecorded(ranks)
    if not ranks and not notes and not (path / SITE_FOLDER / ENTERED_FILE).exists():
        notes.append(
            "no process that uses torch let the capture in: python -I, -E and -S leave PYTHONPATH out, as do launchers that clear"
            " the environment or start the job in a container"
        )
    return RunRecord(path=path, told=told, ranks=tuple(ranks), notes=tuple(notes))


def _unrecorded(ranks: list[RankRecord]) -> list[str]:
    """Why recordings that were due are not there; the same reason once."""
    reasons: dict[str, list[RankRecord]] = {}
    for rank in ranks:
        for problem in {e["problem"] for e in rank.events if e.get("kind") == "window" and isinstance(e.get("problem"), str)}:
            reasons.setdefault(problem, []).append(rank)
    notes = []
    for problem, told in sorted(reasons.items()):
        whose = f"rank {told[0].rank}" if len(told) == 1 else f"{len(told)} ranks"
        notes.append(f"a recording of {whose} did not come about: {problem}")
    return notes


def _read_rank(folder: Path, rank: int, notes: list[str]) -> RankRecord:
    windows = {}
    for file in folder.iterdir():
        match = WINDOW_NAME.match(file.name)
        if match:
            windows[int(match[1])] = file
        elif file.name.startswith("window-") and file.name.endswith(".part"):
            notes.append(f"rank {rank} ended while it wrote {file.name}: that recording is not whole and was left out")
    problem = folder / PROBLEM_FILE
    return RankRecord(
        rank=rank,
        folder=folder,
        told=_object(folder / RANK_FILE),
        rows=tuple(_rows(folder / STEPS_FILE)),
        samples=tuple(line for line in _lines(folder / SAMPLES_FILE) if isinstance(line, dict)),
        events=tuple(line for line in _lines(folder / EVENTS_FILE) if isinstance(line, dict)),
        windows=windows,
        problem=_last_line(problem) if problem.is_file() else None,
    )


def _rows(path: Path) -> Iterator[Row]:
    """Steps in order, each once: those before a recording may stand twice in a long run."""
    columns: tuple[str, ...] = STEP_COLUMNS
    seen: dict[int, Row] = {}
    for line in _lines(path):
        if isinstance(line, dict) and isinstance(line.get("columns"), list):
            columns = tuple(map(str, line["columns"]))
        elif isinstance(line, list) and len(line) == len(columns) and all(v is None or isinstance(v, int) for v in line):
            row = dict.fromkeys(STEP_COLUMNS) | dict(zip(columns, line, strict=True))
            if row["step"] is not None and row["dur_ns"] is not None:
                seen[row["step"]] = row
    return iter([seen[step] for step in sorted(seen)])


def _lines(path: Path) -> Iterator[Any]:
    """Each line's value. A line that is cut off, as by a killed process, is left out."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except OSError:
        return
    for line in data.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace")[-4000:].strip().splitlines()
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it does not say why"
