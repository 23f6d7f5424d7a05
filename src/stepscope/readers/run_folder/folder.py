"""Reads a run folder, as `stepscope run` leaves it or as it stands while the job runs."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from stepscope.errors import InputError
from stepscope.protocol.run_folder import (
    ALERTS_FILE,
    ASIDE_FILE,
    ENTERED_FILE,
    EVENTS_FILE,
    FAILURE_NAME,
    OLD_STEP_SUMMARY_FILE,
    PROBLEM_FILE,
    RANK_FILE,
    RANK_FOLDER,
    RUN_FILE,
    SAMPLES_FILE,
    SITE_FOLDER,
    STEP_COLUMNS,
    STEP_SUMMARY_COLUMNS,
    STEP_SUMMARY_FILE,
    STEPS_FILE,
    WINDOW_NAME,
    is_run,
    step_summary_path,
)
from stepscope.protocol.untrusted import (
    MAX_JSON_BYTES,
    is_regular,
    open_regular,
    parse_json_lines,
    problem_line,
    read_json_object,
    read_tail,
)
from stepscope.readers.run_folder.line_tail import read_lines
from stepscope.readers.run_folder.values import Row, sound_object, sound_row, wrong_note

MAX_RANKS = 100_000
MAX_FAILURES = 1_000
MAX_PATH_BYTES = 4096
RANK_FILES = (
    RANK_FILE, STEPS_FILE, STEP_SUMMARY_FILE, OLD_STEP_SUMMARY_FILE, SAMPLES_FILE, EVENTS_FILE,
    PROBLEM_FILE,
)  # fmt: skip
NO_REASON = "it does not say why"
NO_ROOM = "the disk is full; give --out a folder with room"
MIN_FREE_BYTES = 64 * 1024
"""Bytes free on the run's disk; with less not even the reason can be written."""


class RankRecord(Struct, frozen=True, kw_only=True):
    """What one rank wrote, as it wrote it."""

    rank: int
    folder: Path
    metadata: dict[str, Any]
    """RUN/rank-N/rank.json."""
    rows: tuple[Row, ...]
    stretches: tuple[Row, ...] = ()
    """Steps of a long run that are no rows, in the columns of STEP_SUMMARY_COLUMNS."""
    samples: tuple[dict[str, Any], ...]
    events: tuple[dict[str, Any], ...]
    windows: dict[int, Path]
    """Windows by the step they begin with."""
    problem: str | None


class RunRecord(Struct, frozen=True, kw_only=True):
    path: Path
    metadata: dict[str, Any]
    ranks: tuple[RankRecord, ...]
    notes: tuple[str, ...]
    of_alerts: frozenset[int] = frozenset()
    """First steps of the recordings that alerts asked for."""
    failures: tuple[dict[str, Any], ...] = ()
    """What processes wrote that died of memory that ran out."""

    def chosen_windows(self) -> dict[int, Path]:
        """One recording per rank: the one that most ranks made, the latest of those."""
        begun = Counter(step for rank in self.ranks for step in rank.windows)
        # Those that an alert asked for show the fault, and not the run.
        usual = Counter({step: num for step, num in begun.items() if step not in self.of_alerts})
        begun = usual or begun
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
    """The folder's ranks in order. What cannot be read is noted; only a folder that is no run is an
    error."""
    refuse_special_files(path)
    if not is_run(path):
        raise InputError(
            f"{path} is not the folder of a run: it has no {RUN_FILE} that `stepscope run` wrote"
        )
    notes: list[str] = [
        f"the capture did not start in a process: {problem_line(problem) or NO_REASON}"
        for problem in sorted(path.glob("problem-*.txt"))
    ]
    metadata = _object(path / RUN_FILE, RUN_FILE, notes)
    rank_folders: dict[int, list[Path]] = {}
    for folder in path.iterdir():
        match = RANK_FOLDER.match(folder.name)
        if match and folder.is_dir() and len(rank_folders) < MAX_RANKS:
            rank_folders.setdefault(int(match[1]), []).append(folder)
    ranks = []
    for rank, folders in sorted(rank_folders.items()):
        newest = max(folders, key=lambda folder: folder.stat().st_mtime_ns)
        if len(folders) > 1:
            notes.append(
                f"{len(folders)} processes were rank {rank}, one after the other or at once; "
                f"{newest.name} is judged"
            )
        ranks.append(_read_rank(newest, rank, notes))
    notes += _unrecorded(ranks)
    if not ranks and not notes and not (path / SITE_FOLDER / ENTERED_FILE).exists():
        notes.append(_not_let_in(path, metadata))
    return RunRecord(
        path=path,
        metadata=metadata,
        ranks=tuple(ranks),
        notes=tuple(notes),
        of_alerts=frozenset(_asked_by_alerts(path)),
        failures=_failures(path),
    )


def _failures(run: Path) -> tuple[dict[str, Any], ...]:
    files = sorted(run.glob(FAILURE_NAME.format(pid="*")))[:MAX_FAILURES]
    return tuple(read_json_object(file) for file in files if is_regular(file))


def _asked_by_alerts(path: Path) -> Iterator[int]:
    for line in read_lines(path / ALERTS_FILE):
        files = line.get("evidence")
        for file in files if isinstance(files, list) else ():
            match = WINDOW_NAME.match(str(file).rpartition("/")[2])
            if match:
                yield int(match[1])


def problem_of(path: Path) -> str | None:
    """Why the capture ended itself; None where it did not."""
    if not path.is_file():
        return None
    is_full = shutil.disk_usage(path.parent).free < MIN_FREE_BYTES
    return problem_line(path) or (NO_ROOM if is_full else NO_REASON)


def refuse_special_files(run: Path) -> None:
    """InputError that names it, where a file of a run's folder is a pipe, a device or far too
    large."""
    try:
        folders = [
            folder for folder in run.iterdir() if RANK_FOLDER.match(folder.name) and folder.is_dir()
        ]
        files = [run / RUN_FILE, *(folder / name for folder in folders for name in RANK_FILES)]
        files += [
            file for folder in folders for file in folder.iterdir() if WINDOW_NAME.match(file.name)
        ]
    except OSError:
        return  # Its reading says what is wrong with it.
    for file in files:
        if not is_regular(file) and file.exists():
            raise InputError(
                f"{file} is not a regular file (a pipe or a device?), so this is no run that "
                "stepscope recorded"
            )
        if (
            file.name in (RUN_FILE, RANK_FILE)
            and file.exists()
            and file.stat().st_size > MAX_JSON_BYTES
        ):
            raise InputError(
                f"{file} is larger than {MAX_JSON_BYTES >> 20} MiB, so this is no run that "
                "stepscope recorded"
            )


def _not_let_in(path: Path, metadata: dict[str, Any]) -> str:
    """Why no process of the job has a word of the capture in it."""
    aside = path / SITE_FOLDER / ASIDE_FILE
    if is_regular(aside):
        where = read_tail(aside, MAX_PATH_BYTES)
        return (
            f"another `stepscope run`, around this one or inside of it, recorded the job: {where}"
        )
    who = "no process that uses torch let the capture in"
    if metadata.get("exit_code"):
        who = "the job failed before it imported torch, or let no capture in"
    return (
        f"{who}: python -I, -E and -S leave PYTHONPATH out, as do launchers that clear the "
        "environment or start the job in a container"
    )


def _unrecorded(ranks: list[RankRecord]) -> list[str]:
    """Why recordings that were due are not there; the same reason once."""
    reasons: dict[str, list[RankRecord]] = {}
    for rank in ranks:
        for problem in {
            e["problem"]
            for e in rank.events
            if e.get("kind") == "window" and isinstance(e.get("problem"), str)
        }:
            reasons.setdefault(problem, []).append(rank)
    notes = []
    for problem, failed in sorted(reasons.items()):
        whose = f"rank {failed[0].rank}" if len(failed) == 1 else f"{len(failed)} ranks"
        notes.append(f"a recording of {whose} did not come about: {problem}")
    return notes


def _read_rank(folder: Path, rank: int, notes: list[str]) -> RankRecord:
    windows = {}
    for file in folder.iterdir():
        match = WINDOW_NAME.match(file.name)
        if match:
            windows[int(match[1])] = file
        elif file.name.startswith("window-") and file.name.endswith(".part"):
            notes.append(
                f"rank {rank} ended while it wrote {file.name}: that recording is not whole and "
                "was left out"
            )
    problem = folder / PROBLEM_FILE
    return RankRecord(
        rank=rank,
        folder=folder,
        metadata=_object(folder / RANK_FILE, f"{folder.name}/{RANK_FILE}", notes),
        rows=tuple(_rows(folder / STEPS_FILE, notes)),
        stretches=tuple(
            _columnar(step_summary_path(folder), STEP_SUMMARY_COLUMNS, ("from_ns", "to_ns"), notes)
        ),
        samples=tuple(_objects(folder / SAMPLES_FILE, notes)),
        events=tuple(_objects(folder / EVENTS_FILE, notes)),
        windows=windows,
        problem=problem_of(problem),
    )


def _rows(path: Path, notes: list[str]) -> Iterator[Row]:
    """Steps in order, each once: those before a recording may stand twice in a long run."""
    rows = _columnar(path, STEP_COLUMNS, ("step", "dur_ns"), notes)
    seen = {step: row for row in rows if (step := row["step"]) is not None}
    return iter([seen[step] for step in sorted(seen)])


def _columnar(
    path: Path, usual: tuple[str, ...], needed: tuple[str, str], notes: list[str]
) -> Iterator[Row]:
    """The lines under their columns, which the file names itself where they are not the usual;
    without those that lack what is needed."""
    columns = usual
    for line in _lines(path, notes):
        if isinstance(line, dict) and isinstance(line.get("columns"), list):
            columns = tuple(map(str, line["columns"]))
        elif isinstance(line, list) and len(line) == len(columns):
            row = dict.fromkeys(usual) | sound_row(columns, line)
            if all(row[name] is not None for name in needed):
                yield row


def _objects(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    wrong: list[str] = []
    for line in _lines(path, notes):
        if isinstance(line, dict):
            sound, names = sound_object(line)
            wrong += names
            yield sound
    if wrong:
        notes.append(wrong_note(_short(path), wrong))


def _lines(path: Path, notes: list[str]) -> Iterator[Any]:
    """Each line's value. A line that is cut off, as by a killed process, is left out."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        return
    except OSError as problem:
        notes.append(f"cannot read {_short(path)}: {problem.strerror or problem}")
        return
    if len(data) > MAX_JSON_BYTES:
        notes.append(
            f"{_short(path)} is larger than {MAX_JSON_BYTES >> 20} MiB; what comes after that was "
            "not read"
        )
    yield from parse_json_lines(data[:MAX_JSON_BYTES])


def _object(path: Path, where: str, notes: list[str]) -> dict[str, Any]:
    sound, wrong = sound_object(read_json_object(path))
    if wrong:
        notes.append(wrong_note(where, wrong))
    if not sound and path.exists():
        notes.append(f"{where} is not JSON that can be read; what it said of the run is not known")
    return sound


def _short(path: Path) -> str:
    """rank-0/steps.jsonl."""
    return f"{path.parent.name}/{path.name}"
