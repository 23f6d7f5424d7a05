"""A log folder of TensorBoard's profiler plugin: which of its recordings are of one moment of one
job.

`torch.profiler.tensorboard_trace_handler` writes a file for each worker and each recording,

    LOGDIR/HOST_PID.1794937251494978709.pt.trace.json
    LOGDIR/plugins/profile/RUN/worker0.1623143089861.pt.trace.json.gz

so that a folder gathers recordings of several moments, and of several runs. Ranks are compared at
one moment: the last recording of each rank of the newest run is taken, and what is left out is
named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from stepscope.errors import InputError
from stepscope.readers.detect import head_of
from stepscope.readers.format import Source
from stepscope.readers.remote import AnyPath

NAME = re.compile(
    r"(?P<worker>.+)\.(?P<stamp>\d{10}|\d{13}|\d{16}|\d{19})\.pt\.trace\.json(?:\.gz)?"
)
"""The stamp is when it was written: in nanoseconds, milliseconds up to PyTorch 1.9."""
STAMP_DIGITS = 19
GROUP = re.compile(rb'"distributedInfo"\s{0,64}:\s{0,64}\{')
RANK = re.compile(rb'"rank"\s{0,64}:\s{0,64}(\d{1,7})\b')
WORLD = re.compile(rb'"world_size"\s{0,64}:\s{0,64}(\d{1,7})\b')
GROUP_BYTES = 512
"""Bytes of a process group's description in which rank and width stand: lists of all groups
follow."""
MAX_NAMED = 6


class Written(Struct, frozen=True, kw_only=True):
    """One recording of the folder."""

    path: AnyPath
    wall_ns: int
    rank: int | None = None
    """None for a process that is in no process group, and so is a job by itself."""
    world_size: int | None = None


def newest_recordings(
    folder: Path | str,
    files: Sequence[AnyPath],
    rank_of: Callable[[AnyPath], int | None],
    notes: list[str],
) -> list[AnyPath]:
    """The files, of the handler's recordings only the last of each rank of the newest run.
    `rank_of` tells a rank by a file's name."""
    named = {path: match for path in files if (match := NAME.fullmatch(path.name))}
    if len(named) < 2:
        return list(files)
    written = [
        _written(path, match["stamp"], rank_of(path), notes) for path, match in named.items()
    ]
    chosen = {str(each.path) for each in of_one_moment(written)}
    left_out = [each for each in written if str(each.path) not in chosen]
    if left_out:
        names = sorted(str(each.path).removeprefix(f"{folder}/") for each in left_out)
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        notes.append(
            f"{folder} holds {len(written)} recordings of several moments or runs; of the newest "
            f"run the last of each rank was read, {len(chosen)} in all. Left out (name one to read "
            f"it): {', '.join(names[:MAX_NAMED])}{more}"
        )
    left = {str(each.path) for each in left_out}
    return [path for path in files if str(path) not in left]


def of_one_moment(written: Sequence[Written]) -> list[Written]:
    """The newest, and what the other ranks of its job wrote at the same time.

    Ranks record together, so all have written one recording before any writes the next: whatever is
    nearer to the newest rank's recording before that is of that one.
    """
    newest = max(written, key=lambda each: each.wall_ns)
    if newest.rank is None:
        return [newest]
    job = [
        each for each in written if each.rank is not None and each.world_size == newest.world_size
    ]
    before = [
        each.wall_ns for each in job if each.rank == newest.rank and each.wall_ns < newest.wall_ns
    ]
    since_ns = (max(before) + newest.wall_ns) // 2 if before else 0
    last: dict[int | None, Written] = {}
    for each in sorted(job, key=lambda each: each.wall_ns):
        if each.wall_ns > since_ns:
            last[each.rank] = each
    return list(last.values())


def _written(path: AnyPath, stamp: str, rank: int | None, notes: list[str]) -> Written:
    wall_ns = int(stamp.ljust(STAMP_DIGITS, "0"))
    try:
        head = head_of(Source(path=path, label=str(path), named=False))
    except (OSError, InputError) as problem:
        notes.append(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}")
        return Written(path=path, wall_ns=wall_ns, rank=rank)
    group = GROUP.search(head)
    if group is None:
        return Written(path=path, wall_ns=wall_ns, rank=rank)
    text = head[group.end() : group.end() + GROUP_BYTES]
    own, world = RANK.search(text), WORLD.search(text)
    return Written(
        path=path,
        wall_ns=wall_ns,
        rank=rank if own is None else int(own[1]),
        world_size=None if world is None else int(world[1]),
    )
