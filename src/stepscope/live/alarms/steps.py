"""The steps that all ranks have made, side by side: what each took by itself, and what it waited
for others.

Ranks that exchange gradients leave their backward pass together: the one with the shortest pass of
a step waited least, and what the others' take longer they waited. With a device the same holds on
its clock, from where the last backward pass begins. What the host spends in functions of
torch.distributed is judged alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from stepscope.readers.run_folder.tail import RankTail
from stepscope.readers.run_folder.values import Row

IN_STEP = 0.05
"""Ranks that wait for one another take the same time over many steps; these differ by no more."""
NUM_IN_STEP, MIN_IN_STEP = 64, 8
MAX_OPEN = 2_048
"""Steps kept that not all ranks have made."""


class RankStep(Struct, frozen=True, kw_only=True):
    """One rank's part of a step, in nanoseconds."""

    length: int
    own: int
    """Time without waiting for other ranks."""
    waited: int
    loader: int
    exchange: int
    """The part in which ranks exchange gradients, less what this one waited there for others: with
    the computation it is beside."""
    optimizer: int

    @property
    def outside(self) -> int:
        """Time by itself, without the exchange."""
        return self.own - self.exchange

    @property
    def rest(self) -> int:
        """The forward pass, and whatever else the loop does."""
        return self.outside - self.loader - self.optimizer


class JobStep(Struct, frozen=True, kw_only=True):
    """A step that no rank spent with a profiler, a save or an evaluation."""

    step: int
    at_s: float
    """When it ended, on the wall clock."""
    ranks: dict[int, RankStep]
    is_coupled: bool
    """Whether the ranks wait for one another."""


class StepTable:
    """Puts the ranks' rows together as they come."""

    def __init__(self) -> None:
        self._open: dict[int, dict[int, tuple[float, Row]]] = {}
        self._last = -1
        self._lengths: deque[dict[int, int]] = deque(maxlen=NUM_IN_STEP)
        self._uses_device: set[int] = set()

    def add(self, tails: Sequence[RankTail]) -> list[JobStep]:
        """The steps that are complete now, in order."""
        expected = {tail.rank for tail in tails}
        for tail in tails:
            for row in tail.new_rows:
                self._add_row(tail, row)
        whole = sorted(step for step, rows in self._open.items() if expected <= rows.keys())
        steps = [self._joined(step, self._open.pop(step)) for step in whole]
        if whole:
            self._last = whole[-1]
        for step in sorted(self._open):
            if step < self._last or len(self._open) > MAX_OPEN:
                del self._open[step]
        return [step for step in steps if step is not None]

    def _add_row(self, tail: RankTail, row: Row) -> None:
        step, end_ns = row["step"], row["end_ns"]
        if row["device_ns"]:
            self._uses_device.add(tail.rank)
        if step is None or end_ns is None or step <= self._last or not is_plain(row):
            return
        if tail.rank in self._uses_device and not row["device_ns"]:
            # The host may run ahead of the device: what it took says nothing.
            return
        self._open.setdefault(step, {})[tail.rank] = (wall_s(tail, end_ns), row)

    def _joined(self, step: int, rows: dict[int, tuple[float, Row]]) -> JobStep | None:
        lengths = {rank: row["device_ns"] or row["dur_ns"] or 0 for rank, (_, row) in rows.items()}
        self._lengths.append(lengths)
        is_coupled = self._is_coupled(lengths.keys())
        if is_coupled is None:
            return None
        shared = {rank: _shared(row) for rank, (_, row) in rows.items()}
        least = min(shared.values()) if is_coupled else 0
        ranks = {}
        for rank, (_, row) in rows.items():
            waited = min(shared[rank] - least, lengths[rank]) if is_coupled else 0
            on_device = bool(row["device_ns"])
            ranks[rank] = RankStep(
                length=lengths[rank],
                own=lengths[rank] - waited,
                waited=waited,
                loader=min(row["wait_ns"] or 0, lengths[rank] - waited),
                exchange=shared[rank] - waited,
                optimizer=0 if on_device else row["optimizer_ns"] or 0,
            )
        return JobStep(
            step=step,
            at_s=max(at_s for at_s, _ in rows.values()),
            ranks=ranks,
            is_coupled=is_coupled,
        )

    def _is_coupled(self, ranks: object) -> bool | None:
        """None where too few steps are there to tell."""
        recent = [lengths for lengths in self._lengths if lengths.keys() == ranks]
        if len(recent[0]) < 2:
            return False
        if len(recent) < MIN_IN_STEP:
            return None
        sums = [sum(lengths[rank] for lengths in recent) for rank in recent[0]]
        return max(sums) - min(sums) <= IN_STEP * sum(sums) / len(sums)


def is_plain(row: Row) -> bool:
    """A step like the others: no profiler, no checkpoint, no evaluation."""
    return row["state"] == 0 and not row["save_ns"] and not row["num_evals"] and bool(row["dur_ns"])


def wall_s(tail: RankTail, at_ns: int) -> float:
    """A time of the rank's perf_counter on the wall clock."""
    wall, perf = tail.metadata.get("wall_ns"), tail.metadata.get("perf_ns")
    if isinstance(wall, int) and isinstance(perf, int):
        return (at_ns - perf + wall) / 1e9
    return at_ns / 1e9


def _shared(row: Row) -> int:
    """The part of a step in which a rank may wait for others."""
    if row["device_ns"]:
        return min(row["device_backward_ns"] or 0, row["device_ns"])
    return (row["backward_ns"] or 0) + (row["comm_ns"] or 0)
