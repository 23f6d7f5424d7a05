"""The runs that are kept in a folder, and the names they go by: `last`, `last~1`, a folder's own
name, a tag."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import asdict, replace

from stepscope.core.codec import decode
from stepscope.core.contract.runs import RunEntry, RunFinding, RunKind, RunState
from stepscope.core.diagnosis import DiagnosisDocument
from stepscope.errors import InputError, StepscopeError
from stepscope.protocol.run_folder import (
    DIAGNOSIS_FILE,
    RANK_FILE,
    RUN_FILE,
    RUNS,
    TAGS_FILE,
    is_run,
    write_json,
)
from stepscope.protocol.untrusted import read_json_object, read_regular, whole
from stepscope.readers.run_folder.kept_proofs import proofs_of

LAST = re.compile(r"last(?:~(\d{1,6}))?", re.ASCII)
"""`last`, and `last~1` for the one before it."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40,64}", re.ASCII)
MAX_DIAGNOSIS_BYTES = 16 << 20
SILENT_NS = 600 * 10**9
"""Time without a file written after which a run that has no end was broken off."""


def resolve(text: str, folder: Path | None = None, otherwise: str | None = None) -> str:
    """The path of the run that goes by this name. Where it is a path, or no name that is known
    here: the text as it came, or `otherwise`."""
    if os.path.lexists(text) or NAME.fullmatch(text.replace("~", "-")) is None:
        return text if otherwise is None else otherwise
    folder = Path(RUNS) if folder is None else folder
    back = LAST.fullmatch(text)
    if back is not None:
        return str(last_run(folder, int(back[1] or 0)))
    tagged = read_tags(folder).get(text)
    if tagged is not None:
        path = folder / tagged
        if not path.exists():
            raise InputError(
                f"the tag {text} names {path}, which is no longer there. Tag another run: "
                f"stepscope runs tag {text} RUN"
            )
        return str(path)
    if kind_of(folder / text) is not None:
        return str(folder / text)
    return text if otherwise is None else otherwise


def last_run(folder: Path = Path(RUNS), number: int = 0) -> Path:
    """The run that began last, or so many before it."""
    runs = sorted(run_folders(folder), key=begun_ns, reverse=True)
    if not runs:
        raise InputError(
            f"which run? There is none in {folder}/ here. Record one: stepscope run -- COMMAND"
        )
    if number >= len(runs):
        there = (
            "1 run, last" if len(runs) == 1 else f"{len(runs)} runs, last to last~{len(runs) - 1}"
        )
        raise InputError(f"there is no last~{number}: {folder}/ has {there}")
    return runs[number]


def run_folders(folder: Path) -> list[Path]:
    """Recorded runs, in no order. Links are left out: what they lead to is kept elsewhere."""
    return [path for path in _folders(folder) if is_run(path)]


def begun_ns(run: Path) -> tuple[int, str]:
    """When it began, as it says itself; else when its file was written. The name decides between
    two that began at once."""
    started_ns = whole(read_json_object(run / RUN_FILE).get("started_wall_ns"), 0)
    try:
        return (started_ns or (run / RUN_FILE).stat().st_mtime_ns, run.name)
    except OSError:
        return (0, run.name)


def kind_of(path: Path) -> RunKind | None:
    """Whether it is a run, a folder of runs, or none of ours."""
    if not path.is_dir() or path.is_symlink():
        return None
    if is_run(path):
        return "run"
    inside = _folders(path)
    deeper = (below for each in inside for below in _folders(each))
    return "trials" if any(map(is_run, inside)) or any(map(is_run, deeper)) else None


def kept_runs(folder: Path, now_ns: int | None = None) -> list[RunEntry]:
    """All that is kept there, the newest first."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    tags: dict[Path, list[str]] = {}
    for tag, target in sorted(read_tags(folder).items()):
        tags.setdefault((folder / target).resolve(), []).append(tag)
    entries = []
    for path in _folders(folder):
        kind = kind_of(path)
        if kind is not None:
            entries.append(_entry(path, kind, tuple(tags.get(path.resolve(), ())), now_ns))
    entries = _with_proofs(entries)
    return sorted(entries, key=lambda entry: (entry.started_wall_ns or 0, entry.name), reverse=True)


def _with_proofs(entries: Sequence[RunEntry]) -> list[RunEntry]:
    """First findings, with what trials of the same command showed of them."""
    shown = {
        (proof.command, proof.code): proof
        for entry in sorted(entries, key=lambda entry: entry.started_wall_ns or 0)
        if entry.kind == "trials"
        for proof in proofs_of(Path(entry.path))
    }
    made = []
    for entry in entries:
        finding = entry.finding
        proof = None if finding is None else shown.get((entry.command, finding.code))
        if finding is not None and proof is not None:
            speedup = proof.speedup or None
            finding = replace(finding, is_proven=proof.is_proven, proven_speedup=speedup)
        made.append(replace(entry, finding=finding))
    return made


def _entry(path: Path, kind: RunKind, tags: tuple[str, ...], now_ns: int) -> RunEntry:
    size, newest_ns = _size(path)
    metadata = read_json_object(path / RUN_FILE) if kind == "run" else {}
    command = metadata.get("command")
    diagnosis, commit = _diagnosis(path / DIAGNOSIS_FILE), metadata.get("commit")
    has_ended = whole(metadata.get("ended_wall_ns"), 0) is not None or _ranks_have_ended(path)
    state: RunState = "ended" if has_ended or kind == "trials" else "broken off"
    if not has_ended and now_ns - newest_ns < SILENT_NS:
        state = "running"
    return RunEntry(
        name=path.name,
        path=str(path),
        kind=kind,
        tags=tags,
        state=state,
        exit_code=whole(metadata.get("exit_code")),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        started_wall_ns=begun_ns(path)[0] if kind == "run" else newest_ns,
        size_bytes=size,
        bound=diagnosis.bound,
        verdict=diagnosis.verdict,
        step_ms=diagnosis.step_ms,
        parts=diagnosis.parts,
        finding=diagnosis.finding,
        commit=commit if isinstance(commit, str) and COMMIT.fullmatch(commit) else None,
    )


def _ranks_have_ended(run: Path) -> bool:
    """Whether the ranks ended by their own word: nothing stands beside a job that records itself
    from its code, and writes the end of the run."""
    ranks = list(run.glob(f"rank-*/{RANK_FILE}"))
    return bool(ranks) and all("ended_ns" in read_json_object(rank) for rank in ranks)


class _Diagnosed(NamedTuple):
    """What a list says of a diagnosis."""

    bound: str | None = None
    verdict: str | None = None
    step_ms: float | None = None
    parts: Mapping[str, float] = {}
    finding: RunFinding | None = None


def _diagnosis(path: Path) -> _Diagnosed:
    try:
        state = path.lstat()
    except OSError:
        return _Diagnosed()
    return _read_diagnosis(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1024)
def _read_diagnosis(path: Path, _changed_ns: int, _size: int) -> _Diagnosed:
    try:
        read = decode(read_regular(path, MAX_DIAGNOSIS_BYTES), DiagnosisDocument, str(path))
    except (OSError, StepscopeError):
        return _Diagnosed()
    first = next(iter(read.findings), None)
    return _Diagnosed(
        bound=read.verdict.bound,
        verdict=read.verdict.summary,
        step_ms=read.step.ms,
        parts=_parts(read),
        finding=None
        if first is None
        else RunFinding(
            code=first.code,
            predicted_speedup=first.predicted_speedup,
            predicted_low=first.predicted_low,
            predicted_high=first.predicted_high,
        ),
    )


def _parts(read: DiagnosisDocument) -> dict[str, float]:
    """Shares of the step, of the rank in the middle."""
    steps = [
        parts
        for rank in read.ranks
        if rank.partition_ms is not None
        and sum((parts := {k: v or 0.0 for k, v in asdict(rank.partition_ms).items()}).values()) > 0
    ]
    if not steps:
        return {}
    middle = sorted(steps, key=lambda parts: sum(parts.values()))[(len(steps) - 1) // 2]
    total = sum(middle.values())
    return {part: ms / total for part, ms in middle.items() if ms > 0}


def _folders(folder: Path) -> list[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        return [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _size(folder: Path) -> tuple[int, int]:
    """Bytes of its files, and when one of them was written last. Links count as links."""
    size = newest_ns = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                state = os.lstat(os.path.join(where, name))
            except OSError:
                continue
            size += state.st_size
            newest_ns = max(newest_ns, state.st_mtime_ns)
    return size, newest_ns


def read_tags(folder: Path) -> dict[str, str]:
    """Each tag, and the path of what it names, seen from the folder."""
    return {
        tag: target
        for tag, target in read_json_object(folder / TAGS_FILE).items()
        if isinstance(target, str) and NAME.fullmatch(tag)
    }


def write_tags(folder: Path, tags: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / TAGS_FILE, dict(sorted(tags.items())))
