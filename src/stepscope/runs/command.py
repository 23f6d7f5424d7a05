"""The runs that are kept here: verdicts, names, and a clean-up.

Without an action they are listed, the newest first. Every command that takes a run takes its name
in place of a path: `last`, `last~1` for the one before it, a folder's own name, or a tag.

    stepscope runs                                      what is kept in stepscope-runs/
    stepscope runs tag main last                        call the last run `main`
    stepscope diagnose last --baseline main --fail-if "step_ms > baseline * 1.05"
    stepscope runs prune --keep 10                      what a clean-up would remove; --yes does it
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.options import count
from stepscope.cli.printing import note, print_document, put
from stepscope.errors import UsageError
from stepscope.protocol.run_folder import RUNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.contract.runs import RunEntry

AGE = re.compile(r"(\d{1,6})([dhm])", re.ASCII)
AGE_NS = {"d": 86_400 * 10**9, "h": 3_600 * 10**9, "m": 60 * 10**9}


def _age(text: str) -> int:
    match = AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: give 30d, 12h or 90m")
    return int(match[1]) * AGE_NS[match[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    name: str = declare.option("NAME", "letters, digits, - _ .")
    run_path: str = declare.option(
        "RUN", "a run, its name, or a diagnosis as JSON (default: last)", default="last", nargs="?"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Untag:
    name: str = declare.option("NAME", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    keep: int | None = declare.option("--keep N", "all but the newest N", count)
    older_than: int | None = declare.option(
        "--older-than AGE", "those older than 30d, 12h, 90m", _age
    )
    yes: bool = declare.option("--yes", "remove them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    folder: Path = declare.option(
        "--in DIR", f"where the runs are kept (default: {RUNS})", Path, Path(RUNS)
    )
    format: str = declare.style()
    action: Tag | Untag | Prune | None = declare.actions(
        {
            "tag": (Tag, "give a run a name that stays"),
            "untag": (Untag, "take the name away; the run stays"),
            "prune": (Prune, "what a clean-up would remove; tagged and running ones stay"),
        },
        title="actions",
        metavar="ACTION",
    )


def run(options: Options) -> int:
    match options.action:
        case Tag() as tag:
            return _tag(options.folder, tag.name, tag.run_path)
        case Untag() as tag:
            return _untag(options.folder, tag.name)
        case Prune() as prune:
            return _prune(options, prune)
    folder = options.folder
    from stepscope.readers.run_folder.kept_runs import kept_runs
    from stepscope.runs.view import runs_document, runs_json

    now_ns = time.time_ns()
    entries = kept_runs(folder, now_ns)
    if options.format == "json":
        put(runs_json(str(folder), entries) + "\n")
    else:
        print_document(runs_document(str(folder), entries, now_ns), options.format)
    return 0


def _tag(folder: Path, name: str, text: str) -> int:
    from stepscope.readers.run_folder.kept_runs import LAST, NAME, read_tags, resolve, write_tags

    if NAME.fullmatch(name) is None or LAST.fullmatch(name) is not None:
        raise UsageError(
            f"{name!r} cannot be a tag: take letters, digits, - _ . and not `last`, which is the "
            "newest run"
        )
    if (folder / name).exists():
        raise UsageError(f"{folder / name} is a run of that name already: take another tag")
    path = Path(resolve(text, folder))
    if not path.exists():
        raise UsageError(f"there is no {path}: name a run, as `stepscope runs` lists them")
    tags = read_tags(folder)
    tags[name] = _seen_from(path, folder)
    try:
        write_tags(folder, tags)
    except OSError as problem:
        raise UsageError(f"the tag cannot be kept in {folder}: {problem.strerror}") from None
    note(f"{name} is {path}")
    return 0


def _seen_from(path: Path, folder: Path) -> str:
    """Name of a run where it lies in the folder, so that the folder may be moved; else all of its
    path."""
    whole = path.resolve()
    return whole.name if whole.parent == folder.resolve() else str(whole)


def _untag(folder: Path, name: str) -> int:
    from stepscope.readers.run_folder.kept_runs import read_tags, write_tags

    tags = read_tags(folder)
    if name not in tags:
        raise UsageError(f"there is no tag {name}; there is {', '.join(sorted(tags)) or 'none'}")
    del tags[name]
    write_tags(folder, tags)
    note(f"{name} is no tag any more; its run stays")
    return 0


def _prune(options: Options, asked: Prune) -> int:
    from stepscope.readers.run_folder.kept_runs import kept_runs
    from stepscope.runs.view import pruned_document, runs_json

    folder = options.folder
    if asked.keep is None and asked.older_than is None:
        raise UsageError("which runs? Give --keep N, --older-than 30d, or both")
    now_ns = time.time_ns()
    entries = kept_runs(folder, now_ns)
    chosen = prunable(entries, asked.keep, asked.older_than, now_ns)
    if asked.yes:
        for entry in chosen:
            _remove(folder, entry)
    if options.format == "json":
        put(runs_json(str(folder), entries, [entry.name for entry in chosen]) + "\n")
        return 0
    num_kept = len(entries) - len(chosen)
    print_document(
        pruned_document(str(folder), chosen, num_kept, now_ns, is_done=asked.yes),
        options.format,
    )
    return 0


def prunable(
    entries: Sequence[RunEntry], keep: int | None, older_ns: int | None, now_ns: int
) -> list[RunEntry]:
    """Runs that both limits allow to go. A tag keeps a run, and so does a job that still writes to
    it."""
    chosen = []
    for number, entry in enumerate(entries):
        age_ns = now_ns - (entry.started_wall_ns or now_ns)
        is_over = keep is None or number >= keep
        is_old = older_ns is None or age_ns > older_ns
        if is_over and is_old and not entry.tags and entry.state != "running":
            chosen.append(entry)
    return chosen


def _remove(folder: Path, entry: RunEntry) -> None:
    """A folder that lies in ours, by its name alone; rmtree follows no link."""
    assert os.sep not in entry.name
    try:
        shutil.rmtree(folder / entry.name)
    except OSError as problem:
        raise UsageError(f"cannot remove {folder / entry.name}: {problem.strerror}") from None
