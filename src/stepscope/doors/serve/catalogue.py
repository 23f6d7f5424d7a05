"""What a served folder holds: recorded runs, and traces of other recorders.

Whatever a browser asks for is looked up here by its name: no path of a request is ever opened.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.contract.runs import RunEntry
from stepscope.doors.serve.report import RecordedFiles
from stepscope.protocol.run_folder import RUNS, is_run
from stepscope.readers.detect import TRACE_NAME
from stepscope.readers.run_folder.kept_runs import LAST, kept_runs

MAX_DEPTH = 4
"""TensorBoard puts a recording into LOGDIR/plugins/profile/RUN."""
MAX_RECORDINGS = 300
MAX_FILES = 100_000
OWN_SCHEMAS = ("tags.json", "run.json", "diagnosis.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The folder as it is now."""

    folder: Path
    runs: tuple[RunEntry, ...]
    """The newest first."""
    recordings: tuple[RecordedFiles, ...]
    num_left_out: int
    """Recordings that are not listed."""

    def listed(self, name: str) -> str | None:
        """What goes by this name: as it is called in the list, or as commands call runs (`last`,
        `last~1`, a tag). None for anything that is not listed."""
        names = [entry.name for entry in self.runs]
        names += [recording.name for recording in self.recordings]
        if name in names:
            return name
        tagged = [entry.name for entry in self.runs if name in entry.tags]
        if tagged:
            return tagged[0]
        back = LAST.fullmatch(name)
        number = len(self.runs) if back is None else int(back[1] or 0)
        return self.runs[number].name if number < len(self.runs) else None

    def path_of(self, name: str) -> Path:
        """The path of what is listed."""
        for entry in self.runs:
            if entry.name == name:
                return Path(entry.path)
        return self.folder / name

    def is_run(self, name: str) -> bool:
        return any(entry.name == name for entry in self.runs)


def catalogue_of(folder: Path) -> Catalogue:
    """Links are left out: they may lead anywhere."""
    roots = [folder, folder / RUNS] if (folder / RUNS).is_dir() else [folder]
    runs = [entry for root in roots for entry in kept_runs(root) if entry.kind == "run"]
    if is_run(folder):
        whole = folder.resolve()
        runs += [entry for entry in kept_runs(whole.parent) if entry.name == whole.name]
    runs.sort(key=lambda entry: (entry.started_wall_ns or 0, entry.name), reverse=True)
    recordings = sorted(_recordings(folder), key=lambda each: (-each.wall_ns, each.name))
    return Catalogue(
        folder=folder,
        runs=tuple(runs),
        recordings=tuple(recordings[:MAX_RECORDINGS]),
        num_left_out=max(0, len(recordings) - MAX_RECORDINGS),
    )


def _recordings(folder: Path) -> list[RecordedFiles]:
    """Every trace by itself, and those of one folder together."""
    recordings: list[RecordedFiles] = []
    count = 0
    for where, folders, names in os.walk(folder):
        here = Path(where)
        depth = len(here.relative_to(folder).parts)
        if is_run(here) or (depth and here.name == RUNS):
            folders[:] = []
            continue
        folders[:] = [
            name
            for name in sorted(folders)
            if depth < MAX_DEPTH and not name.startswith(".") and not (here / name).is_symlink()
        ]
        count += len(names)
        if count > MAX_FILES:
            break
        files = [(name, state) for name in sorted(names) if (state := _trace(here / name))]
        for name, state in files:
            recordings.append(
                RecordedFiles(
                    name=str((here / name).relative_to(folder)),
                    num_files=1,
                    size_bytes=state.st_size,
                    wall_ns=state.st_mtime_ns,
                )
            )
        if len(files) > 1:
            recordings.append(
                RecordedFiles(
                    name=str(here.relative_to(folder)),
                    num_files=len(files),
                    size_bytes=sum(state.st_size for _, state in files),
                    wall_ns=max(state.st_mtime_ns for _, state in files),
                )
            )
    return recordings


def _trace(path: Path) -> os.stat_result | None:
    """A file that is named like a trace."""
    if path.name.startswith(".") or path.name in OWN_SCHEMAS or not TRACE_NAME.search(path.name):
        return None
    try:
        return path.lstat() if path.is_file() and not path.is_symlink() else None
    except OSError:
        return None
