"""The usual step of a run, and the steps that took longer than it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from stepscope.analyses.steps.unprofiled import Row, usual_rows
from stepscope.protocol.slow_steps import SLOW_TIMES, longest_usual

TIMED, FIRST = 0, 1
HOST_PARTS, REST = ("between_ns", "wait_ns", "backward_ns", "optimizer_ns"), "rest_ns"
MIN_STEPS = 3
"""Clean steps; of a run that has fewer, those of the warm-up are asked too."""
LOUD_TIMES, NOTED_NS = 2, 1_000_000
"""The median step's logging, and so long beyond it: what logs longer is no usual step."""
PART_SPREADS = 4
"""Median deviations of a part above its median."""
MIN_GROUP = 3
"""Slow steps that can show a period."""
PERIODIC_SHARE = 0.6
"""Share of the slow steps that must keep a period; and of its turns that must be slow."""
MAX_GROUPS = 3
ALIKE = 2
"""Times as long, up to which slow steps may be of one turn."""


class UsualPart(Struct, frozen=True, kw_only=True):
    """A part of HOST_PARTS, or the rest, of a clean step."""

    mean_ns: float
    most_ns: float
    """More is not usual."""


class Usual(Struct, frozen=True, kw_only=True):
    """What a clean step takes."""

    step_ns: int
    """The mean of those that are not slow."""
    slow_ns: float
    """A step longer than this is slow."""
    wait_ns: int
    gc_ns: int
    log_ns: int = 0
    parts: Mapping[str, UsualPart] = {}
    """Parts of it by where the host spent them."""
    is_on_device: bool
    num_batches: float
    num_backwards: float
    num: int


class Turn(Struct, frozen=True, kw_only=True):
    """Slow steps at equal distances."""

    every: int
    phase: int
    once_ns: int

    def holds(self, step: int) -> bool:
        return step % self.every == self.phase

    def is_one(self, step: int, ns: int) -> bool:
        """Whether a slow step is of this turn: at its place, and about as long."""
        return self.holds(step) and ns <= ALIKE * self.once_ns and self.once_ns <= ALIKE * ns


def usual_step(rows: Sequence[Row]) -> Usual | None:
    """Usual step from all steps that no profiler slowed, by the device's clock where it was asked:
    the host may run ahead. None where there is none."""
    clean, is_short = _clean(rows)
    if not clean:
        return None
    lengths = [_length_ns(row) for row in clean]
    slow_ns = longest_usual(lengths)
    if is_short:
        slow_ns = SLOW_TIMES * statistics.median(lengths)
    kept = [row for row in clean if _length_ns(row) <= slow_ns]
    return Usual(
        step_ns=round(statistics.fmean(map(_length_ns, kept))),
        slow_ns=slow_ns,
        wait_ns=_median(kept, "wait_ns"),
        gc_ns=_median(kept, "gc_ns"),
        log_ns=_median(kept, "log_ns"),
        parts=_usual_parts(kept),
        is_on_device=_is_on_device(kept),
        num_batches=statistics.fmean(row["num_batches"] or 0 for row in kept),
        num_backwards=statistics.fmean(row["num_backwards"] or 0 for row in kept),
        num=len(kept),
    )


def lengths_of(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """(step, nanoseconds) of the steps that are neither recorded nor hold anything else, slow ones
    too; without what stands between them and the steps before."""
    clean, _ = _clean(rows)
    between = _median(clean, "between_ns") if clean else 0
    return [(row["step"] or 0, _length_ns(row) - _pause_ns(row, between)) for row in clean]


def _pause_ns(row: Row, usual_ns: int) -> int:
    """Extra time before the step's batch is asked for, longer than usual, saves left out."""
    if row["device_ns"]:
        return 0
    more = (row["between_ns"] or 0) - usual_ns - (row["save_ns"] or 0)
    return max(min(more, net_ns(row)), 0)


def _clean(rows: Sequence[Row]) -> tuple[list[Row], bool]:
    """Clean steps, and whether they are so few that those of the warm-up count."""
    timed = [row for row in rows if row["dur_ns"]]
    clean = usual_rows([row for row in timed if row["state"] == TIMED])
    is_short = len(clean) < MIN_STEPS
    if is_short:
        clean = usual_rows([row for row in timed if row["state"] in (TIMED, FIRST)])
    if clean:
        clean = _quiet(clean)
    measured = [row for row in clean if row["device_ns"]]
    return (measured if len(measured) >= MIN_STEPS else clean), is_short


def _is_on_device(rows: Sequence[Row]) -> bool:
    return sum(bool(row["device_ns"]) for row in rows) >= MIN_STEPS


def _quiet(rows: list[Row]) -> list[Row]:
    """Steps without those that log for longer than most do."""
    most = LOUD_TIMES * _median(rows, "log_ns") + NOTED_NS
    return [row for row in rows if (row["log_ns"] or 0) <= most]


def turns_of(slow: Sequence[tuple[int, int]]) -> tuple[Turn, ...]:
    """Periods in (step, nanoseconds more than usual) of slow steps, the most costly first."""
    left, turns = list(slow), []
    for _ in range(MAX_GROUPS):
        turn = _turn(left)
        if turn is None:
            break
        turns.append(turn)
        left = [(step, ns) for step, ns in left if not turn.is_one(step, ns)]
    return tuple(turns)


def _turn(slow: Sequence[tuple[int, int]]) -> Turn | None:
    """The period of the largest that have one: those of half the greatest length and more, else of
    a quarter, and so on."""
    lengths = [ns for _, ns in slow]
    least_ns, greatest_ns, num = min(lengths, default=0), max(lengths, default=0), 0
    while greatest_ns >= least_ns > 0:
        greatest_ns //= 2
        large = sorted((step, ns) for step, ns in slow if ns >= greatest_ns)
        turn = _turn_of(large) if len(large) > num else None
        if turn is not None:
            return turn
        num = len(large)
    return None


def _turn_of(large: Sequence[tuple[int, int]]) -> Turn | None:
    if len(large) < MIN_GROUP:
        return None
    gaps = [after[0] - before[0] for before, after in pairwise(large)]
    every = Counter(gaps).most_common(1)[0][0]
    phase = Counter(step % every for step, _ in large).most_common(1)[0][0]
    mine = [(step, ns) for step, ns in large if step % every == phase]
    middle = statistics.median(ns for _, ns in mine)
    mine = [(step, ns) for step, ns in mine if ns <= ALIKE * middle]
    num_turns = 1 + (mine[-1][0] - mine[0][0]) // every
    if every < 2 or len(mine) < max(MIN_GROUP, PERIODIC_SHARE * max(len(large), num_turns)):
        return None
    return Turn(every=every, phase=phase, once_ns=round(statistics.fmean(ns for _, ns in mine)))


def host_parts(row: Row) -> dict[str, int]:
    """Parts of a step by where the host spent them, saves and all."""
    parts = {name: row[name] or 0 for name in HOST_PARTS}
    left = (row["dur_ns"] or 0) - sum(parts.values())
    if left < 0:
        # The batch was asked for behind the backward pass.
        left += parts.pop("between_ns")
    return {**parts, REST: left}


def _usual_parts(rows: Sequence[Row]) -> dict[str, UsualPart]:
    parts = [host_parts(row) for row in rows]
    return {
        name: _usual_part([part.get(name, 0) for part in parts]) for name in (*HOST_PARTS, REST)
    }


def _usual_part(lengths: Sequence[int]) -> UsualPart:
    middle = statistics.median(lengths)
    spread = statistics.median(abs(ns - middle) for ns in lengths)
    return UsualPart(mean_ns=statistics.fmean(lengths), most_ns=middle + PART_SPREADS * spread)


def net_ns(row: Row) -> int:
    """The step without its saves."""
    return max((row["dur_ns"] or 0) - (row["save_ns"] or 0), 0)


def _length_ns(row: Row) -> int:
    return row["device_ns"] or net_ns(row)


def _median(rows: Sequence[Row], name: str) -> int:
    return round(statistics.median(row[name] or 0 for row in rows))
