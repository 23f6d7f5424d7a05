"""From what the user named to Sources: files, folders of rank files, archives of them; and which
rank each is."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope.core.numbers import first_few, number_ranges
from stepscope.core.trace import TraceMeta
from stepscope.errors import InputError
from stepscope.protocol.run_folder import (
    ALERTS_FILE,
    CONTROL_FILE,
    DIAGNOSIS_FILE,
    REPORT_FILE,
    RUN_FILE,
    TAGS_FILE,
    is_run,
)
from stepscope.readers.detect import ARCHIVE_NAME, TRACE_NAME, detect
from stepscope.readers.format import KINETO, NCCL, TRACE, Source
from stepscope.readers.formats import BY_NAME
from stepscope.readers.remote import AnyPath, as_path, find_remote, open_bytes, shown, size_of
from stepscope.readers.stream import Archive, Stream, is_header

if TYPE_CHECKING:
    from typing_extensions import Self

    from stepscope.readers.run_folder.folder import RunRecord

CACHE_SUFFIX = ".stepscope-cache"
RANK = re.compile(r"(?<![a-z])rank[-_.=]?(\d{1,6})(?![\d])", re.IGNORECASE)
MAX_FILES = 100_000
MAX_ARCHIVE_BYTES = 256 << 30
DISK_RESERVE_BYTES = 2 << 30
"""Left free on the disk that a compressed archive is unpacked to."""
IN_RUN = "run folder"
STDIN = "-"
TLPARSE = {"compile_directory.json", "raw.log", "raw.jsonl"}
OWN_FILES = (RUN_FILE, CONTROL_FILE, ALERTS_FILE, DIAGNOSIS_FILE, REPORT_FILE, TAGS_FILE)
WANTED = (
    "Give a trace (.json, .json.gz, .json.zst), several, a folder or a tar of them, or a run that "
    "`stepscope runs` lists."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSources:
    """The sources, in natural order. A context manager: a compressed archive's temporary copy lives
    until it is left."""

    sources: tuple[Source, ...]
    notes: tuple[str, ...]
    logs: tuple[Source, ...] = ()
    """Logs of NCCL that were named or lie beside the traces."""
    others: tuple[Source, ...] = ()
    """What other tools recorded: their formats are no traces."""
    run: RunRecord | None = None
    """The recorded run, where its folder was named, or those of all its machines, and no other
    trace."""
    _held: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_sources(paths: Sequence[str | Path]) -> FoundSources:
    """Every source that `paths` name. InputError says which of them cannot be read, and why."""
    if not paths:
        raise InputError(f"no trace was named. {WANTED}")
    notes: list[str] = []
    runs: list[RunRecord] = []
    with ExitStack() as held:
        sources = [
            source for path in paths for source in _of_path(as_path(str(path)), notes, held, runs)
        ]
        job = _one_job(runs)
        for run in runs if job is None else [job]:
            sources += _windows(run)
        sources = [
            part for source in _without_repeats(sources, notes) for part in _in_parts(source, notes)
        ]
        traces = tuple(_with_rank(source) for source in sources if _is_trace(source))
        logs = tuple(source for source in sources if source.format == NCCL)
        others = tuple(
            source for source in sources if source.format != NCCL and not _is_trace(source)
        )
        is_run_alone = all(trace.rank_source == IN_RUN for trace in traces)
        return FoundSources(
            sources=traces,
            notes=tuple(notes),
            logs=logs,
            others=others,
            run=job if is_run_alone else None,
            _held=held.pop_all(),
        )


def _one_job(runs: Sequence[RunRecord]) -> RunRecord | None:
    """The run that the folders of all its machines are; None where there is none, or several."""
    if not runs:
        return None
    from stepscope.readers.run_folder.several import one_job

    return one_job(runs)


def _of_path(
    path: Path | str, notes: list[str], held: ExitStack, runs: list[RunRecord]
) -> list[Source]:
    try:
        if str(path) == STDIN:
            from stepscope.readers.pasted_file import standard_input

            return _of_named(standard_input(held), notes, held)
        if isinstance(path, str):
            return _of_url(path, notes, held)
        if path.is_dir():
            return _of_folder(path, notes, runs)
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(
                f"{path} is not a regular file (a pipe or a device?). Write it to a file first."
            )
        return _of_file(path, notes, held)
    except FileNotFoundError:
        raise InputError(f"{shown(str(path))} does not exist. {WANTED}") from None
    except (OSError, ValueError) as problem:
        raise InputError(
            f"cannot read {shown(str(path))}: {getattr(problem, 'strerror', None) or problem}"
        ) from None


def _of_url(url: str, notes: list[str], held: ExitStack) -> list[Source]:
    is_folder, files = find_remote(url, MAX_FILES)
    if is_folder:
        return _in_folder(
            shown(url),
            [(file, str(file)) for file in files if not file.name.endswith(CACHE_SUFFIX)],
            notes,
        )
    return _of_file(files[0], notes, held)


def _of_folder(path: Path, notes: list[str], runs: list[RunRecord]) -> list[Source]:
    """A run's folder; or one of traces, and of runs, as a job on several machines leaves it."""
    from stepscope.readers.run_folder.folder import read_run, refuse_special_files

    refuse_special_files(path)
    folders = [path] if is_run(path) else [each for each in path.iterdir() if is_run(each)]
    sources = []
    for folder in sorted(folders, key=lambda each: _natural(each.name)):
        runs.append(read_run(folder))
        notes.extend(runs[-1].notes)
        sources += _of_tools(folder, notes)
    if path in folders:
        return sources
    files = [file for file in _walk(path, notes) if not {*file.parents} & {*folders}]
    if not folders:
        return _in_folder(path, [(file, str(file.relative_to(path))) for file in files], notes)
    return sources + _sources_in(path, [file for file in files if _may_be_recording(file)], notes)


def _of_file(path: AnyPath, notes: list[str], held: ExitStack) -> list[Source]:
    with open_bytes(path) as file:
        head = file.read(512)
    if is_header(head):
        return _in_archive(path, path, notes)
    if ARCHIVE_NAME.search(path.name):
        return _in_archive(_unpacked(path, notes, held), path, notes)
    return _of_named(Source(path=path, label=str(path)), notes, held)


def _of_named(source: Source, notes: list[str], held: ExitStack) -> list[Source]:
    """A file that was named, with its formats; or the parts of a text that was pasted into it."""
    found = _with_formats(source, notes)
    known = [BY_NAME[each.format] for each in found if each.format is not None]
    if any(each.kind == TRACE for each in known):
        return found
    from stepscope.readers.pasted_file import pasted_parts

    return pasted_parts(source, known, held) or found


def _in_folder(
    folder: Path | str, named: Sequence[tuple[AnyPath, str]], notes: list[str]
) -> list[Source]:
    """Sources of a folder's files, each with its name in it, that are traces or logs."""
    files = [path for path, _ in sorted(named, key=lambda pair: _natural(pair[1]))]
    sources = _sources_in(folder, files, notes)
    if not sources:
        raise InputError(f"{folder} has no trace in it ({len(files)} other file(s)). {WANTED}")
    return sources


def _sources_in(folder: Path | str, files: Sequence[AnyPath], notes: list[str]) -> list[Source]:
    archives = [path for path in files if ARCHIVE_NAME.search(path.name)]
    if archives:
        notes.append(
            f"{folder}: {len(archives)} archive(s) in it were not opened ({archives[0].name}, "
            "...); name them to read them"
        )
    from stepscope.readers.log_dir import newest_recordings

    sources = []
    for source in (
        Source(path=path, label=str(path), named=False)
        for path in newest_recordings(folder, _of_use(files), _rank_by_name, notes)
        if path not in archives
    ):
        sources += _kept(_with_formats(source, notes), source.path.name)
    return sources


def _windows(run: RunRecord) -> list[Source]:
    """One recording for each rank."""
    return [
        Source(path=path, label=str(path), rank=rank, rank_source=IN_RUN, named=True)
        for rank, path in run.chosen_windows().items()
    ]


def _of_tools(folder: Path, notes: list[str]) -> list[Source]:
    """What other tools wrote into a run's folder, such as NCCL's logs."""
    candidates = [
        Source(path=path, label=str(path), named=False)
        for path in sorted(folder.iterdir())
        if _may_be_recording(path)
    ]
    recordings = [recording for source in candidates for recording in _with_formats(source, notes)]
    return [source for source in recordings if _is_of_a_tool(source)]


def _may_be_recording(path: Path) -> bool:
    """What somebody put into a run's folder: neither ours nor hidden."""
    return (
        path.is_file()
        and not path.name.startswith(".")
        and path.name not in OWN_FILES
        and not path.name.endswith(".part")
    )


def _is_trace(source: Source) -> bool:
    return source.format is None or BY_NAME[source.format].kind == TRACE


def _is_of_a_tool(source: Source) -> bool:
    """What has a format that no name is needed for."""
    return source.format not in (None, KINETO)


def _with_formats(source: Source, notes: list[str]) -> list[Source]:
    """The source with its format; several times where it has several. A file of a folder that
    cannot be read is noted, and left for later."""
    try:
        formats = detect(source, notes)
    except (OSError, InputError) as problem:
        if source.named:
            raise
        notes.append(f"cannot read {source.label}: {getattr(problem, 'strerror', None) or problem}")
        formats = ()
    return [replace(source, format=each.name) for each in formats] or [source]


def _kept(sources: Sequence[Source], name: str) -> list[Source]:
    """Sources of a folder or an archive that are known, or named like a trace."""
    return [source for source in sources if _is_of_a_tool(source) or TRACE_NAME.search(name)]


def _of_use(files: Sequence[AnyPath]) -> list[AnyPath]:
    """Files without what tlparse writes beside its log: pieces of the compiler, and a timeline of
    its own that is no trace."""
    names = {path.name for path in files}
    if not names & TLPARSE:
        return list(files)
    return [
        path
        for path in files
        if path.name != "chromium_events.json" and f"{os.sep}-_" not in str(path)
    ]


def _walk(folder: Path, notes: list[str]) -> Iterator[Path]:
    def refused(problem: OSError) -> None:
        where = problem.filename or folder
        if Path(where) == folder:
            raise InputError(f"cannot read {where}: {problem.strerror or problem}") from None
        notes.append(f"cannot read {where}: {problem.strerror or problem}")

    count = 0
    for root, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith(".") or name.endswith(CACHE_SUFFIX):
                continue
            if not Path(root, name).is_file():
                if TRACE_NAME.search(name):
                    notes.append(
                        f"{Path(root, name)} was left out: a link that leads nowhere, a pipe or a "
                        "device"
                    )
                continue
            count += 1
            if count > MAX_FILES:
                raise InputError(
                    f"{folder} has more than {MAX_FILES} files in it. Name the folder that holds "
                    "the traces."
                )
            yield Path(root, name)


def _in_archive(tar: AnyPath, archive: AnyPath, notes: list[str]) -> list[Source]:
    sources = []
    with open_bytes(tar) as file:
        walk = Archive(file, size_of(tar))
        for member in walk.members():
            name = PurePosixPath(member.name).name
            if name.startswith("."):
                continue
            label = f"{archive}:{member.name}"
            where = Source(
                path=tar,
                label=label,
                named=False,
                archive=archive,
                offset=member.offset,
                length=member.length,
            )
            sources += _kept(_with_formats(where, notes), name)
        notes.extend(f"{archive}: {note}" for note in walk.notes)
    if not sources:
        raise InputError(f"{archive} is an archive with no trace in it. {WANTED}")
    return sorted(sources, key=lambda source: _natural(source.label))


def _unpacked(path: AnyPath, notes: list[str], held: ExitStack) -> Path:
    """The outer layer of a compressed archive taken off, once, into a folder that goes away with
    the FoundSources."""
    folder = Path(held.enter_context(TemporaryDirectory(prefix="stepscope-")))
    target, stream, size = folder / "archive.tar", Stream(path), 0
    room = min(MAX_ARCHIVE_BYTES, shutil.disk_usage(folder).free - DISK_RESERVE_BYTES)
    with target.open("wb") as file:
        for block in stream.blocks():
            if not size and not is_header(block[:512]):
                raise InputError(
                    f"{path} is named like an archive but does not hold a tar. {WANTED}"
                )
            size += len(block)
            if size > room:
                raise InputError(
                    f"{path} does not fit into {folder.parent} ({room >> 20} MiB). Unpack it and "
                    "name the folder."
                )
            file.write(block)
    if not size:
        raise InputError(f"{path} cannot be unpacked: {stream.problem or 'it is empty'}.")
    if stream.problem:
        notes.append(f"{path} was unpacked only in part: {stream.problem}")
    return target


def _without_repeats(sources: list[Source], notes: list[str]) -> list[Source]:
    """Each file once, however many paths lead to it."""
    kept: dict[tuple[str, int, str | None], Source] = {}
    for source in sources:
        location = (
            os.path.realpath(source.stem) if isinstance(source.stem, Path) else source.stem.url
        )
        key = (location, source.offset, source.format)
        if key in kept:
            notes.append(f"{source.label} is the same file as {kept[key].label}; it was read once")
        else:
            kept[key] = source
    return list(kept.values())


def _in_parts(source: Source, notes: list[str]) -> list[Source]:
    """The source; or one for each rank, where several share the file."""
    if source.format is None or not BY_NAME[source.format].has_parts:
        return [source]
    parts_of = BY_NAME[source.format].reader().parts
    assert parts_of is not None, source.format
    try:
        parts, part_notes = parts_of(source)
    except (OSError, InputError):
        return [source]  # Its reading says what is wrong with it.
    notes.extend(f"{source.label}: {note}" for note in part_notes)
    if parts and (rank := _with_rank(source).rank) is not None:
        notes.append(
            f"{source.label}: its name tells rank {rank}, and it holds {len(parts)} ranks: the "
            "name's is not used"
        )
    return [_of_part(source, part, words) for part, words in parts] or [source]


def _of_part(source: Source, part: int, words: str) -> Source:
    """One of several ranks: `rank 3` where the file tells it, else `process 4711`."""
    number = words.removeprefix("rank ")
    rank = int(number) if number != words and number.isdecimal() else None
    where = "not known" if rank is None else "process' name"
    return replace(
        source, part=part, label=f"{source.label} ({words})", rank=rank, rank_source=where
    )


def _with_rank(source: Source) -> Source:
    if source.rank is not None or source.part is not None:
        return source
    path = PurePosixPath(source.label.replace(os.sep, "/"))
    names = [(path.name, "file name")] + (
        [] if source.named else [(path.parent.name, "folder name")]
    )
    for name, what in names:
        ranks = set(map(int, RANK.findall(name)))
        if len(ranks) == 1:
            return replace(source, rank=ranks.pop(), rank_source=what)
    return source


def _rank_by_name(path: AnyPath) -> int | None:
    return _with_rank(Source(path=path, label=str(path), named=False)).rank


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A key by which rank10 follows rank9."""
    parts = re.split(r"(\d{1,18})", name)
    return [
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in parts
        if part
    ]


def assign_ranks(metas: Sequence[TraceMeta]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Each trace's rank, those that nothing tells in order of the free numbers; and notes on both
    kinds of doubt."""
    recorded = Counter(meta.rank for meta in metas if meta.rank is not None)
    free = iter(number for number in range(len(metas) + len(recorded)) if number not in recorded)
    ranks = tuple(meta.rank if meta.rank is not None else next(free) for meta in metas)
    notes = []
    guessed = [
        f"{meta.path} is {rank}"
        for meta, rank in zip(metas, ranks, strict=True)
        if meta.rank is None
    ]
    if guessed and len(metas) > 1:
        notes.append(
            f"the rank of {len(guessed)} trace(s) is told neither inside nor by the name; counted "
            f"in order: {first_few(guessed, 4)}"
        )
    for rank, count in sorted(recorded.items()):
        if count > 1:
            names = ", ".join([meta.path for meta in metas if meta.rank == rank][:4])
            apart = "The ranks were not compared with one another"
            notes.append(
                f"rank {rank} is told by {count} traces ({names}); are they of one run? {apart}"
            )
    return ranks, (*notes, *_gaps(metas, ranks))


def _gaps(metas: Sequence[TraceMeta], ranks: Sequence[int]) -> Iterator[str]:
    """What is known to be missing of a job of which several ranks are there."""
    worlds = sorted({meta.world_size for meta in metas if meta.world_size is not None})
    if len(metas) < 2 or not worlds:
        return
    if len(worlds) > 1:
        yield (
            f"the traces tell different numbers of ranks ({', '.join(map(str, worlds[:4]))}); are "
            "they of one run?"
        )
    elif worlds[0] <= MAX_FILES and (missing := sorted(set(range(worlds[0])) - set(ranks))):
        verb = "is" if len(missing) == 1 else "are"
        yield (
            f"{len(missing)} of the job's {worlds[0]} ranks {verb} not among the traces that were "
            f"read: {first_few(number_ranges(missing).split(', '))}"
        )
