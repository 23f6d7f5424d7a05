"""Hung, slow or running, where, and which rank stands elsewhere than the others.

A collective ends for all when the last rank has come to it: when most ranks stand in one and a rank
does not, they wait for that rank, and where it stands is the place to look.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence

from msgspec.structs import replace

from stepscope.core.numbers import number_ranges
from stepscope.live.shapes.triage import Comparison, Frame, Standing, Stood

IDLE_CORES = 0.02
"""Less than this is no work: a process that only wakes to look whether it may go on."""
NUM_WHERE = 3
LIBRARY = re.compile(r"(site|dist)-packages/|lib/python\d|^<|^/usr/lib/python")
COLLECTIVES = frozenset((
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
    "all_to_all_single", "barrier", "monitored_barrier", "broadcast", "broadcast_object_list",
    "gather", "scatter", "reduce", "reduce_scatter", "reduce_scatter_tensor", "send", "recv",
    "isend", "irecv", "batch_isend_irecv", "wait", "synchronize", "clip_grad_norm_",
    "init_process_group", "_sync_params_and_buffers", "_verify_param_shape_across_processes",
    "unshard", "wait_for_unshard", "post_backward",
))  # fmt: skip
"""Functions under torch/distributed or torch/nn/parallel in which a rank waits for others."""
OURS = re.compile(r"stepscope/capture/")
"""Our hooks stand between the training code and torch's; they are neither."""
DISTRIBUTED = re.compile(r"torch/(distributed|nn/parallel)/|deepspeed/|megatron/")
BACKWARD = ("_engine_run_backward", "backward")
"""Gradients are reduced in here by DistributedDataParallel, in code that is not Python's."""


def compare(stood: Sequence[Stood]) -> Comparison:
    ranks = [standing(process) for process in stood]
    return _compared(
        sorted(ranks, key=lambda process: (process.rank is None, process.rank or 0, process.pid))
    )


def standing(stood: Stood) -> Standing:
    """One process by itself."""
    if stood.problem is not None or not stood.stacks:
        return Standing(
            pid=stood.pid,
            rank=stood.rank,
            state="unknown",
            where=(),
            inside=None,
            collective=None,
            problem=stood.problem,
        )
    last = [frame for frame in stood.stacks[-1] if not OURS.search(frame.file)]
    user = [frame for frame in last if not LIBRARY.search(frame.file)]
    within = last[: last.index(user[0])] if user else last
    return Standing(
        pid=stood.pid,
        rank=stood.rank,
        state=_state(stood),
        where=tuple(user[:NUM_WHERE]),
        inside=_inside(within),
        collective=_collective(within),
    )


def _state(stood: Stood) -> str:
    is_still = len(stood.stacks) > 1 and len(set(stood.stacks)) == 1
    if not is_still:
        return "running" if len(stood.stacks) > 1 else "unknown"
    return "slow" if stood.cpu_share is None or stood.cpu_share > IDLE_CORES else "hung"


def _inside(frames: Sequence[Frame]) -> str | None:
    """The library's function that the training code called."""
    return f"{frames[-1].name} ({_short(frames[-1].file)})" if frames else None


def _collective(frames: Sequence[Frame]) -> str | None:
    """What waits for other ranks, the outermost first:
    that is the name the training code knows it by."""
    for frame in reversed(frames):
        if frame.name in COLLECTIVES and DISTRIBUTED.search(frame.file):
            return frame.name
    if any(frame.name in BACKWARD and "torch/" in frame.file for frame in frames):
        return "backward"
    return None


def _compared(ranks: Sequence[Standing]) -> Comparison:
    seen = [rank for rank in ranks if rank.state != "unknown"]
    if len(seen) < 2:
        return Comparison(ranks=tuple(ranks), summary=_alone(seen))
    locations = Counter(map(_location, seen))
    usual, num = locations.most_common(1)[0]
    in_collective = [rank for rank in seen if rank.collective is not None]
    if 0 < len(in_collective) < len(seen):
        late = {rank.pid for rank in seen if rank.collective is None}
        return Comparison(
            ranks=_marked(ranks, late),
            summary=_late_text(seen, late, in_collective[0].collective or ""),
        )
    if len(locations) == 1:
        return Comparison(ranks=tuple(ranks), summary=_together(seen))
    late = {rank.pid for rank in seen if _location(rank) != usual} if num > len(seen) / 2 else set()
    if not late:
        return Comparison(
            ranks=tuple(ranks),
            summary=f"The ranks stand in {len(locations)} different "
            "places, and most in none of them.",
        )
    return Comparison(
        ranks=_marked(ranks, late), summary=f"{_names(seen, late)} elsewhere than the others."
    )


def _late_text(seen: Sequence[Standing], late: set[int], collective: str) -> str:
    others = [rank for rank in seen if rank.pid not in late]
    waiting = f"{len(others)} of {len(seen)} ranks are in {collective}"
    if collective == "backward":
        waiting += ", which reduces gradients"
    return (
        f"{_names(seen, late)} elsewhere: {waiting} and wait for "
        f"{'it' if len(late) == 1 else 'them'}."
    )


def _together(seen: Sequence[Standing]) -> str:
    first = seen[0]
    if first.collective is not None and all(rank.state == "hung" for rank in seen):
        return (
            f"All {len(seen)} ranks stand in {first.collective}: a rank that is not on this "
            "machine, or the link between them."
        )
    verb = "are"
    if len({rank.state for rank in seen}) == 1:
        verb = {"hung": "stand still", "slow": "stay, using CPU,", "running": "run"}.get(
            first.state, "are"
        )
    return f"All {len(seen)} ranks {verb} in the same place."


def _alone(seen: Sequence[Standing]) -> str:
    if not seen:
        return "Nothing could be looked at."
    words = {
        "hung": "It stands still: the same place each time, and no CPU time used.",
        "slow": "It stays in one place and uses CPU: slow there, or waiting in a loop.",
        "running": "It runs: it was in different places.",
    }
    return words[seen[0].state]


def _location(rank: Standing) -> Hashable:
    """Ranks in the same collective are in the same place,
    whichever line of a library they were seen at."""
    where = rank.where[:1]
    if rank.state == "running" and rank.collective is None:
        return ("running", where[0].file if where else None, where[0].name if where else None)
    return (rank.collective, where)


def _marked(ranks: Sequence[Standing], late: set[int]) -> tuple[Standing, ...]:
    return tuple(replace(rank, is_elsewhere=rank.pid in late) for rank in ranks)


def _names(seen: Sequence[Standing], pids: set[int]) -> str:
    chosen = [rank for rank in seen if rank.pid in pids]
    ranks = [rank.rank for rank in chosen if rank.rank is not None]
    if len(ranks) == len(chosen):
        return (
            f"Rank {ranks[0]} stands" if len(ranks) == 1 else f"Ranks {number_ranges(ranks)} stand"
        )
    numbers = ", ".join(str(rank.pid) for rank in chosen)
    return f"Process {numbers} stands" if len(chosen) == 1 else f"Processes {numbers} stand"


def _short(file: str) -> str:
    return re.split(r"(?:site|dist)-packages/|lib/python[\d.]+/", file)[-1]
