"""Hung, slow or running, where, and which rank stands elsewhere than the others.

A collective ends for all when the last rank has come to it: when most ranks stand in one and a rank does not, they wait for that
rank, and where it stands is the place to look.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from stepscope.core.numbers import number_ranges
from stepscope.core.stacks import Comparison, Frame, Standing, Stood

IDLE_CORES = 0.02
"""Less than this is no work: a process that only wakes to look whether it may go on."""
NUM_WHERE = 3
LIBRARY = re.compile(r"(site|dist)-packages/|lib/python\d|^<|^/usr/lib/python")
COLLECTIVES = frozenset((
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single", "barrier",
    "monitored_barrier", "broadcast", "broadcast_object_list", "gather", "scatter", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "send", "recv", "isend", "irecv", "batch_isend_irecv", "wait", "synchronize", "clip_grad_norm_",
    "init_process_group", "_sync_params_and_buffers", "_verify_param_shape_across_processes", "unshard", "wait_for_unshard",
    "post_backward",
))  # fmt: skip
"""Functions under torch/distributed or torch/nn/parallel in which a rank waits for others."""
OURS = re.compile(r"stepscope/capture/")
"""Our hooks stand between the training code and torch's; they are neither."""
DISTRIBUTED = re.compile(r"torch/(distributed|nn/parallel)/|deepspeed/|megatron/")
BACKWARD = ("_engine_run_backward", "backward")
"""Gradients are reduced in here by DistributedDataParallel, in code that is not Python's."""


def compare(stood: Sequence[Stood]) -> Comparison:
    ranks = [standing(one) for one in stood]
    return _compared(sorted(ranks, key=lambda one: (one.rank is None, one.rank or 0, one.pid)))


def standing(stood: Stood) -> Standing:
    """One process by itself."""
    if stood.problem is not None or not stood.stacks:
        return Standing(
            pid=stood.pid, rank=stood.rank, state="unknown", where=(), inside=None, collective=None, problem=stood.problem
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
    """What waits for other ranks, the outermost first: that is the name the training code knows it by."""
    for frame in reversed(frames):
        if frame.name in COLLECTIVES and DISTRIBUTED.search(frame.file):
            return frame.name
    return "backward" if any(frame.name in BACKWARD and "torch/" in frame.file for frame in frames) else None


def _compared(ranks: Sequence[Standing]) -> Comparison:
    known = [one for one in ranks if one.state != "unknown"]
    if len(known) < 2:
        return Comparison(ranks=tuple(ranks), summary=_alone(known))
    places = Counter(map(_place, known))
    usual, num = places.most_common(1)[0]
    in_collective = [one for one in known if one.collective is not None]
    if 0 < len(in_collective) < len(known):
        late = {one.pid for one in known if one.collective is None}
        return Comparison(ranks=_marked(ranks, late), summary=_late_words(known, late, in_collective[0].collective or ""))
    if len(places) == 1:
        return Comparison(ranks=tuple(ranks), summary=_together(known))
    late = {one.pid for one in known if _place(one) != usual} if num > len(known) / 2 else set()
    if not late:
        return Comparison(
            ranks=tuple(ranks), summary=f"The ranks stand in {len(places)} different places, and most in none of them."
        )
    return Comparison(ranks=_marked(ranks, late), summary=f"{_names(known, late)} elsewhere than the others.")


def _late_words(known: Sequence[Standing], late: set[int], collective: str) -> str:
    others = [one for one in known if one.pid not in late]
    waiting = f"{len(others)} of {len(known)} ranks are in {collective}"
    if collective == "backward":
        waiting += ", which reduces gradients"
    return f"{_names(known, late)} elsewhere: {waiting} and wait for {'it' if len(late) == 1 else 'them'}."


def _together(known: Sequence[Standing]) -> str:
    one = known[0]
    if one.collective is not None and all(rank.state == "hung" for rank in known):
        return f"All {len(known)} ranks stand in {one.collective}: a rank that is not on this machine, or the link between them."
    words = {"hung": "stand still", "slow": "stay, using CPU,", "running": "run"}
    states = {rank.state for rank in known}
    return f"All {len(known)} ranks {words.get(one.state, 'are') if len(states) == 1 else 'are'} in the same place."


def _alone(known: Sequence[Standing]) -> str:
    if not known:
        return "Nothing could be looked at."
    words = {
        "hung": "It stands still: the same place each time, and no CPU time used.",
        "slow": "It stays in one place and uses CPU: slow there, or waiting in a loop.",
        "running": "It runs: it was in different places.",
    }
    return words[known[0].state]


def _place(one: Standing) -> Hashable:
    """Ranks in the same collective are in the same place, whichever line of a library they were seen at."""
    where = one.where[:1]
    if one.state == "running" and one.collective is None:
        return ("running", where[0].file if where else None, where[0].name if where else None)
    return (one.collective, where)


def _marked(ranks: Sequence[Standing], late: set[int]) -> tuple[Standing, ...]:
    return tuple(replace(one, is_elsewhere=one.pid in late) for one in ranks)


def _names(known: Sequence[Standing], pids: set[int]) -> str:
    chosen = [one for one in known if one.pid in pids]
    ranks = [one.rank for one in chosen if one.rank is not None]
    if len(ranks) == len(chosen):
        return f"Rank {ranks[0]} stands" if len(ranks) == 1 else f"Ranks {number_ranges(ranks)} stand"
    numbers = ", ".join(str(one.pid) for one in chosen)
    return f"Process {numbers} stands" if len(chosen) == 1 else f"Processes {numbers} stand"


def _short(file: str) -> str:
    return re.split(r"(?:site|dist)-packages/|lib/python[\d.]+/", file)[-1]
