"""The fastest layouts of a job that fit.

Memory of all of them first, time of those that are left.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from stepscope.core.timings import counted
from stepscope.plan.estimate import SAME, Choice, choices_of, timed, why, with_all_layers
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import RECOMPUTE, Layout, Layouts, mixed_key
from stepscope.plan.memory import host_bytes, memory, partly_recomputed
from stepscope.plan.parameters import Parameters, can_run, parameters
from stepscope.plan.rates import Floats
from stepscope.plan.space import Grid, Space

MAX_PER_PARTITION = 3
"""Shown of one cut of the devices, so that others are seen beside it."""
MANY = 600_000
"""Layouts that are worth starting processes for."""
KEPT_PER_SHOWN = 40
AT_ONCE = 32
"""Pieces that are merged together."""
FRONT_BINS = 256
SLOWEST = 4.0
"""Times the fastest step: who would save memory at a higher price adds devices."""
SAVED = 0.98
"""Share of the memory of the point before it that a point of the front has at most."""

CHECKPOINTS_APART = (2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Layers from one checkpoint to the next, tried where nothing fits with one for each layer: least
is kept near the root of layers x a checkpoint / a whole layer."""

STATES = "weights, gradients and optimizer alone"
ACTIVATIONS = "with activations and buffers"
HOST = "the host's memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search came to."""

    num_layouts: int
    num_fit: int
    too_large: Mapping[str, int]
    """Layouts that do not fit, by what is too large."""
    best: tuple[Choice, ...]
    """The fastest first."""
    front: tuple[Choice, ...]
    """Choices that nothing beats in both memory and time, the fastest first."""


def search(
    job: TrainingJob,
    space: Space | None = None,
    *,
    top: int = 20,
    num_workers: int | None = 1,
) -> SearchResult:
    """Try all of a space.

    `num_workers=None` is a process per core where the space is large enough to be worth it.
    """
    grid = Grid(job, space or Space())
    num_kept = max(top * KEPT_PER_SHOWN, 200)
    part = _Part.empty()
    # What is recommended leaves room; where nothing does, what just fits.
    for limit in (job.cluster.roomy_bytes, job.cluster.usable_bytes):
        asked = _Asked(num_kept=num_kept, limit_bytes=limit)
        parts = [_Part.empty()]
        for piece in _evaluated(grid, asked, num_workers):
            parts.append(piece)
            if len(parts) >= AT_ONCE:
                parts = [_merged(parts, num_kept)]
        part = _merged(parts, num_kept)
        if part.num_fit:
            if grid.space.is_recompute_free:
                part = _with_partial(job, part, limit)
            break
    space = grid.space
    if not part.num_fit and "full" in space.recompute and space.recompute_every == (1,):
        apart = replace(space, recompute=("full",), recompute_every=CHECKPOINTS_APART)
        if job.framework.groups_checkpoints:
            grouped = search(job, apart, top=top, num_workers=num_workers)
            if grouped.best:
                return replace(grouped, num_layouts=part.num + grouped.num_layouts)
    return _result(job, part, top)


def _with_partial(job: TrainingJob, part: _Part, limit_bytes: float) -> _Part:
    """The answer with layouts that recompute only as many layers as they must."""
    job = with_all_layers(job)
    layouts = partly_recomputed(job, part.recomputed.layouts, limit_bytes)
    if not len(layouts):
        return part
    params = parameters(job, layouts)
    rows = _Rows(
        layouts=layouts,
        step_s=np.broadcast_to(timed(job, layouts, params).step, len(layouts)),
        memory_bytes=np.broadcast_to(memory(job, layouts, params).total, len(layouts)),
    )
    return replace(
        part,
        num=part.num + len(layouts),
        num_fit=part.num_fit + len(layouts),
        fastest=_Rows.joined([part.fastest, rows]),
        front=_front(_Rows.joined([part.front, rows])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked of every piece."""

    num_kept: int
    limit_bytes: float
    """Bytes of a device that a layout may fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The layout with the least memory."""

    layout: Layout
    memory_bytes: float
    host_bytes: float
    """Bytes of a node."""


def least_memory(job: TrainingJob, space: Space | None = None) -> Least | None:
    """The least that any layout needs whose node can hold what is offloaded.

    None where there is none. No look at time.
    """
    space = space or Space()
    if space.micro_batch is None and not job.framework.frees_grads:
        # Nothing grows when micro-batches shrink, but for gradients that several of them add up.
        space = replace(space, micro_batch=(1,))
    grid = Grid(job, space)
    candidates: list[Least] = []
    for layouts in grid.chunks():
        params = parameters(job, layouts)
        on_host = host_bytes(job, layouts, params)
        total = np.where(
            on_host > job.cluster.host_memory_bytes, np.inf, memory(job, layouts, params).total
        )
        index = int(np.argmin(total))
        if np.isfinite(total[index]):
            candidates.append(
                Least(
                    layout=layouts.layout(index),
                    memory_bytes=float(total[index]),
                    host_bytes=float(on_host[index]),
                )
            )
    return min(candidates, key=lambda candidate: candidate.memory_bytes, default=None)


# Pieces.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Some layouts with what decides between them."""

    layouts: Layouts
    step_s: Floats
    memory_bytes: Floats

    def take(self, selection: Any) -> _Rows:
        return _Rows(
            layouts=self.layouts.take(selection),
            step_s=self.step_s[selection],
            memory_bytes=self.memory_bytes[selection],
        )

    @staticmethod
    def joined(parts: Iterable[_Rows]) -> _Rows:
        rows = list(parts)
        columns = {
            field.name: np.concatenate([getattr(row.layouts, field.name) for row in rows])
            for field in fields(Layouts)
        }
        return _Rows(
            layouts=Layouts(**columns),
            step_s=np.concatenate([row.step_s for row in rows]),
            memory_bytes=np.concatenate([row.memory_bytes for row in rows]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a piece of the space came to; pieces add up in any order."""

    num: int
    num_fit: int
    too_large: Mapping[str, int]
    fastest: _Rows
    of_cuts: _Rows
    """The fastest of each cut."""
    front: _Rows
    recomputed: _Rows
    """The fastest of those that recompute every layer."""

    @staticmethod
    def empty() -> _Part:
        none = _Rows(layouts=Layouts.of([]), step_s=np.zeros(0), memory_bytes=np.zeros(0))
        counts = dict.fromkeys((STATES, ACTIVATIONS, HOST), 0)
        names = ("fastest", "of_cuts", "front", "recomputed")
        rows = dict.fromkeys(names, none)
        return _Part(num=0, num_fit=0, too_large=counts, **rows)


def _merged(parts: Sequence[_Part], num_kept: int) -> _Part:
    return _Part(
        num=sum(part.num for part in parts),
        num_fit=sum(part.num_fit for part in parts),
        too_large={
            reason: sum(part.too_large[reason] for part in parts) for reason in parts[0].too_large
        },
        fastest=_first(_Rows.joined([part.fastest for part in parts]), num_kept),
        # No cut is in two pieces.
        of_cuts=_Rows.joined([part.of_cuts for part in parts]),
        front=_front(_Rows.joined([part.front for part in parts])),
        recomputed=_first(_Rows.joined([part.recomputed for part in parts]), num_kept),
    )


def _evaluated(grid: Grid, asked: _Asked, num_workers: int | None) -> Iterator[_Part]:
    pieces = grid.pieces()
    if num_workers is None:
        num_workers = _num_cores() if len(grid) > MANY else 1
    if num_workers <= 1 or len(pieces) < 2:
        for bounds in counted("searching", pieces, len(pieces)):
            yield _evaluate(grid, bounds, asked)
        return
    from concurrent.futures import ProcessPoolExecutor

    from stepscope.core.spawning import WithoutMain

    start = (grid.job, grid.space, asked)
    with ProcessPoolExecutor(
        num_workers, mp_context=WithoutMain(), initializer=_start_worker, initargs=start
    ) as pool:
        evaluated = pool.map(_evaluate_in_worker, pieces, chunksize=4)
        yield from counted("searching", evaluated, len(pieces))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# What a worker process was started with.
_worker_arguments: list[tuple[Grid, _Asked]] = []


def _start_worker(job: TrainingJob, space: Space, asked: _Asked) -> None:
    _worker_arguments.append((Grid(job, space), asked))


def _evaluate_in_worker(bounds: tuple[int, int]) -> _Part:
    grid, asked = _worker_arguments[-1]
    return _evaluate(grid, bounds, asked)


def _evaluate(grid: Grid, bounds: tuple[int, int], asked: _Asked) -> _Part:
    job, layouts = grid.job, grid.piece(*bounds)
    params = parameters(job, layouts)
    parts = memory(job, layouts, params)
    total = np.broadcast_to(parts.total, len(layouts))
    too_large = (total > asked.limit_bytes) | ~can_run(job, layouts)
    bursts_host = _bursts_host(job, layouts, params)
    states = parts.weights + parts.gradients + parts.optimizer + parts.context > asked.limit_bytes
    counts = {
        STATES: too_large & states,
        ACTIVATIONS: too_large & ~states,
        HOST: ~too_large & bursts_host,
    }
    fits = np.flatnonzero(~too_large & ~bursts_host)
    fitting = layouts.take(fits)
    step = np.zeros(0)
    if len(fitting):
        whole = with_all_layers(job)
        theirs = params.take(fits) if whole is job else parameters(whole, fitting)
        times = timed(whole, fitting, theirs)
        step = np.broadcast_to(times.step, len(fitting))
    rows = _Rows(layouts=fitting, step_s=step, memory_bytes=total[fits])
    return _Part(
        num=len(layouts),
        num_fit=len(fitting),
        too_large={reason: int(mask.sum()) for reason, mask in counts.items()},
        fastest=_first(rows, asked.num_kept),
        of_cuts=_of_cuts(rows),
        front=_front(rows),
        recomputed=_first(rows.take(fitting.recompute == RECOMPUTE.index("full")), asked.num_kept),
    )


def _bursts_host(job: TrainingJob, layouts: Layouts, params: Parameters) -> Floats:
    if not layouts.offload.any():
        return np.zeros(len(layouts), dtype=bool)
    return host_bytes(job, layouts, params) > job.cluster.host_memory_bytes


def _first(rows: _Rows, num: int) -> _Rows:
    if len(rows.step_s) <= num:
        return rows
    return rows.take(np.argpartition(rows.step_s, num)[:num])


def _of_cuts(rows: _Rows) -> _Rows:
    """The fastest of each cut, whose layouts stand together."""
    if not len(rows.step_s):
        return rows
    keys = mixed_key(
        rows.layouts.tp,
        rows.layouts.pp,
        rows.layouts.cp,
        rows.layouts.ep,
        rows.layouts.dp,
        rows.layouts.micro_batch,
    )
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    fastest = np.minimum.reduceat(rows.step_s, starts)
    nums = np.diff(np.concatenate([starts, [len(keys)]]))
    indices = np.flatnonzero(rows.step_s == np.repeat(fastest, nums))
    _, first = np.unique(keys[indices], return_index=True)
    return rows.take(indices[first])


def _front(rows: _Rows) -> _Rows:
    """Rows that are faster than all with no more memory."""
    rows = rows.take(_near_front(rows))
    order = np.lexsort((rows.step_s, rows.memory_bytes))
    step = rows.step_s[order]
    before = np.minimum.accumulate(np.concatenate([[np.inf], step]))[:-1]
    return rows.take(order[step < before * (1 - SAME)])


def _near_front(rows: _Rows) -> Floats:
    """Where nothing with clearly less memory is as fast: few are left to sort."""
    memory_bytes, step_s = rows.memory_bytes, rows.step_s
    if len(step_s) <= FRONT_BINS:
        return np.arange(len(step_s))
    least = memory_bytes.min()
    width = max(float(memory_bytes.max() - least), 1.0) / FRONT_BINS
    bins = np.minimum((memory_bytes - least) / width, FRONT_BINS - 1).astype(np.int64)
    fastest = np.full(FRONT_BINS + 1, np.inf)
    np.minimum.at(fastest[1:], bins, step_s)
    return np.flatnonzero(step_s < np.minimum.accumulate(fastest)[bins])


# The answer.


def _result(job: TrainingJob, part: _Part, top: int) -> SearchResult:
    rows = _Rows.joined([part.fastest, part.of_cuts])
    best = choices_of(job, rows.layouts.take(_shown(rows, top)))
    front = choices_of(job, part.front.layouts.take(_bends(part.front)))
    return SearchResult(
        num_layouts=part.num,
        num_fit=part.num_fit,
        too_large={reason: num for reason, num in part.too_large.items() if num},
        best=tuple(replace(choice, why=why(choice, best[0])) for choice in best),
        front=tuple(front),
    )


def _bends(front: _Rows) -> list[int]:
    """Indices on the front, the fastest first, where memory falls by a noticeable amount."""
    order: list[int] = np.argsort(front.step_s, kind="stable").tolist()
    bends = order[:1]
    for index in order[1:]:
        is_slow = front.step_s[index] > SLOWEST * front.step_s[order[0]]
        if not is_slow and front.memory_bytes[index] <= SAVED * front.memory_bytes[bends[-1]]:
            bends.append(index)
    return bends


def _shown(rows: _Rows, top: int) -> list[int]:
    """Indices of the layouts to show: of variants the plainest, and few of one cut."""
    layouts = rows.layouts
    # One number for those whose devices have the same work. Half a sequence of two is one whole
    # sequence.
    _, sequences = np.unique(layouts.micro_batch / layouts.cp, return_inverse=True)
    keys = mixed_key(layouts.tp, layouts.pp, layouts.ep, layouts.dp * layouts.cp, sequences)
    variants: list[list[int]] = []
    of_cut: dict[int, list[list[int]]] = {}
    of_devices: dict[tuple[int, ...], int] = {}
    for index in np.argsort(rows.step_s, kind="stable").tolist():
        step = rows.step_s[index]
        if len(variants) >= top and step > rows.step_s[variants[-1][0]] * (1 + SAME):
            break
        variant = next(
            (
                indices
                for indices in of_cut.get(keys[index], [])
                if step <= rows.step_s[indices[0]] * (1 + SAME)
            ),
            None,
        )
        if variant is not None:
            variant.append(index)
            continue
        devices = tuple(
            int(column[index])
            for column in (layouts.tp, layouts.pp, layouts.cp, layouts.ep, layouts.dp)
        )
        if len(variants) >= top or of_devices.get(devices, 0) >= MAX_PER_PARTITION:
            continue
        of_devices[devices] = of_devices.get(devices, 0) + 1
        variants.append([index])
        of_cut.setdefault(keys[index], []).append(variants[-1])
    chosen = [
        min(indices, key=lambda index: (_plainness(layouts.layout(index)), rows.step_s[index]))
        for indices in variants
    ]
    return sorted(chosen, key=lambda index: float(rows.step_s[index]))


def _plainness(layout: Layout) -> tuple[int, ...]:
    """Less is plainer: what a user would rather not have to set up."""
    return (
        layout.offload != "none",
        layout.cp,
        layout.schedule != "1f1b",
        layout.zero_stage == 3,
        layout.shard > 0,
        layout.recompute != "none",
        layout.recompute_layers > 0,
        layout.recompute_every,
        layout.vpp,
        layout.zero_stage,
        not layout.is_sequence_parallel and layout.tp > 1,
        not layout.is_flash,
    )
