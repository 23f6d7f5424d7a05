"""The phases of a run: stretches of it whose steps are alike and unlike those of the next, as where
the batch, the sequences or the pictures become larger half way.

Blocks of a few steps stand for them by their medians, so that a slow step now and then is none of
it. The blocks are cut where that makes their logarithms most alike (optimal partitioning, Jackson
et al. 2005); cuts that show too little are taken back.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from stepscope.analyses.run.slow_steps import Usual, lengths_of, usual_step
from stepscope.analyses.steps.unprofiled import Row
from stepscope.protocol.slow_steps import SLOW_TIMES
from stepscope.protocol.untrusted import finite, whole
from stepscope.readers.run_folder.folder import RankRecord

UNLIKE = math.log(1.25)
"""Logarithm of the ratio by which the steps of two phases differ: as much as is told of a job that
becomes slower."""
MIN_STEPS, MIN_SHARE = 16, 0.05
"""Least size of a phase: clean steps, and share of all steps. A shorter one is a disturbance."""
IN_PLACE = 0.9
"""Share of the blocks of two phases that must be nearer to their own: noise goes to and fro."""
IN_BLOCK, MAX_BLOCKS = 4, 240


class Phase(Struct, frozen=True, kw_only=True):
    """Steps from one on, up to the next phase."""

    first_step: int
    usual: Usual


class Phases(Struct, frozen=True, kw_only=True):
    """One, of most runs."""

    each: tuple[Phase, ...]

    def at(self, step: int) -> Usual:
        """What a clean step takes in the phase that the step is in."""
        index = bisect_right(self.each, step, key=lambda phase: phase.first_step)
        return self.each[max(index - 1, 0)].usual

    @property
    def num(self) -> int:
        return sum(phase.usual.num for phase in self.each)

    @property
    def step_ns(self) -> int:
        """The mean of all clean steps."""
        return round(sum(phase.usual.num * phase.usual.step_ns for phase in self.each) / self.num)


class _Block(Struct, frozen=True, kw_only=True):
    """Steps one after the other."""

    first_step: int
    num: int
    log: float
    """Logarithm of the nanoseconds of a step."""


def phases_of(record: RankRecord) -> Phases | None:
    """None where too few steps were timed."""
    whole_run = usual_step(record.rows)
    if whole_run is None:
        return None
    starts = _starts(record)
    while True:
        ends = [*starts[1:], None]
        phases = [
            Phase(first_step=start, usual=_usual(record, start, end, whole_run))
            for start, end in zip(starts, ends, strict=True)
        ]
        work = [_work_ns(record, phase, end) for phase, end in zip(phases, ends, strict=True)]
        alike = [
            phase.first_step
            for (was, now), phase in zip(pairwise(work), phases[1:], strict=True)
            if was is not None and now is not None and abs(math.log(now / was)) < UNLIKE
        ]
        if not alike:
            return Phases(each=tuple(phases))
        starts.remove(alike[0])


def _usual(record: RankRecord, start: int, end: int | None, whole_run: Usual) -> Usual:
    """Usual step of a phase; in one that has hardly a row, by its stretches."""
    if start == 0 and end is None:
        return whole_run
    usual = usual_step([row for row in record.rows if _is_in(row["step"], start, end)])
    stretches = [row for row in record.stretches if _is_in(row["first_step"], start, end)]
    num = sum(row["num_steps"] or 0 for row in stretches)
    if (usual is not None and usual.num >= MIN_STEPS) or not num:
        return usual or whole_run
    step_ns = round(sum(_stretch_ns(row) * (row["num_steps"] or 0) for row in stretches) / num)
    return replace(whole_run, step_ns=step_ns, slow_ns=SLOW_TIMES * step_ns, num=num)


def _is_in(step: int | None, start: int, end: int | None) -> bool:
    return start <= (step or 0) and (end is None or (step or 0) < end)


def _starts(record: RankRecord) -> list[int]:
    """The first step of each phase."""
    points = lengths_of(record.rows)
    if record.stretches:
        first = record.stretches[0]["first_step"] or 0
        points = [(step, ns) for step, ns in points if step < first]
    blocks = _blocks(points, record.stretches)
    cuts = _kept(_cuts(blocks), blocks)
    return [0, *(_exact(points, blocks, cut) for cut in cuts)]


def _blocks(points: Sequence[tuple[int, int]], stretches: Sequence[Row]) -> list[_Block]:
    size = max(IN_BLOCK, math.ceil(len(points) / MAX_BLOCKS))
    blocks = []
    for index in range(0, len(points) - size + 1, size):
        some = points[index : index + size]
        middle = statistics.median(ns for _, ns in some)
        blocks.append(_Block(first_step=some[0][0], num=size, log=math.log(max(middle, 1))))
    blocks += [
        _Block(
            first_step=row["first_step"] or 0,
            num=max(row["num_steps"] or 0, 1),
            log=math.log(max(_stretch_ns(row), 1)),
        )
        for row in stretches
    ]
    apart = math.ceil(len(blocks) / MAX_BLOCKS)
    return [_joined(blocks[at : at + apart]) for at in range(0, len(blocks), max(apart, 1))]


def _joined(blocks: Sequence[_Block]) -> _Block:
    return _Block(
        first_step=blocks[0].first_step,
        num=sum(block.num for block in blocks),
        log=statistics.median(block.log for block in blocks),
    )


def _stretch_ns(row: Row) -> float:
    """A clean step of a stretch."""
    spent = (row["to_ns"] or 0) - (row["from_ns"] or 0)
    return max(spent - (row["save_ns"] or 0) - (row["slow_ns"] or 0), 0) / max(
        row["num_steps"] or 0, 1
    )


def _cuts(blocks: Sequence[_Block]) -> list[int]:
    """Where the blocks are cut: the sum of squares within, and a price for each cut, is least."""
    num = len(blocks)
    if num < 2:
        return []
    logs = np.array([block.log for block in blocks])
    sums, squares = (np.concatenate(([0.0], np.cumsum(each))) for each in (logs, logs**2))
    steps = np.abs(np.diff(logs))
    noise = max(float(np.median(steps)) / 0.954, UNLIKE / 8)
    price = 3 * math.log(num) * noise**2
    best, last = np.zeros(num + 1), np.zeros(num + 1, int)
    for end in range(1, num + 1):
        begins = np.arange(end)
        within = squares[end] - squares[begins] - (sums[end] - sums[begins]) ** 2 / (end - begins)
        costs = best[begins] + within + price
        last[end] = int(np.argmin(costs))
        best[end] = costs[last[end]]
    cuts, end = [], int(last[num])
    while end:
        cuts.append(end)
        end = int(last[end])
    return cuts[::-1]


def _kept(cuts: list[int], blocks: Sequence[_Block]) -> list[int]:
    """Cuts without those that show too little, the least first."""
    least = max(MIN_STEPS, MIN_SHARE * sum(block.num for block in blocks))
    while cuts:
        bounds = [0, *cuts, len(blocks)]
        parts = [blocks[a:b] for a, b in pairwise(bounds)]
        apart = [_apart(before, after, least) for before, after in pairwise(parts)]
        weakest = min(range(len(cuts)), key=lambda index: apart[index])
        if apart[weakest] >= UNLIKE:
            break
        cuts = [cut for index, cut in enumerate(cuts) if index != weakest]
    return cuts


def _apart(before: Sequence[_Block], after: Sequence[_Block], least: float) -> float:
    """Distance of two parts; little where one is short or they are mixed."""
    low, high = (statistics.median(block.log for block in part) for part in (before, after))
    between, sign = (low + high) / 2, 1 if high > low else -1
    in_place = min(
        statistics.fmean(sign * (between - block.log) > 0 for block in before),
        statistics.fmean(sign * (block.log - between) > 0 for block in after),
    )
    is_short = min(sum(block.num for block in part) for part in (before, after)) < least
    if is_short or in_place < IN_PLACE:
        return min(abs(high - low), UNLIKE) * 0.5
    return abs(high - low)


def _exact(points: Sequence[tuple[int, int]], blocks: Sequence[_Block], cut: int) -> int:
    """The step at which it changes: with the fewest steps near it on the wrong side."""
    begin = blocks[cut - 1].first_step
    end = blocks[cut + 1].first_step if cut + 1 < len(blocks) else math.inf
    before, after = blocks[cut - 1].log, blocks[cut].log
    # A slow step may be of either.
    most_ns = SLOW_TIMES * math.exp(max(before, after))
    near = [(step, ns) for step, ns in points if begin <= step < end and ns <= most_ns]
    if len(near) < 2:
        return blocks[cut].first_step
    between = math.exp((before + after) / 2)
    is_after = [(ns > between) == (after > before) for _, ns in near]

    def num_wrong(index: int) -> int:
        return sum(is_after[:index]) + is_after[index:].count(False)

    return near[min(range(1, len(near)), key=num_wrong)][0]


def _work_ns(record: RankRecord, phase: Phase, end: int | None) -> float | None:
    """Time of a step in which the training thread was not queued for a core; None where nobody
    asked. On a full machine the queue is as much longer as there is more to do: it is no work, and
    no phase."""
    shares = [
        share
        for sample in record.samples
        if _is_in(whole(sample.get("step")), phase.first_step, end)
        and (share := finite(sample.get("main_thread_queued_share"))) is not None
    ]
    if not shares:
        return None
    return max((1 - statistics.fmean(shares)) * phase.usual.step_ns, 1.0)
