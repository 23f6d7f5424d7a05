"""What is worth a warning while a job runs:
slower steps, an idler device, growing memory, a rank gone silent.

Feed it one look after the other at the run folder.
Memory is bounded per rank; each episode is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.analyses.run.change_point import ChangePoint, ChangePointDetector
from stepscope.analyses.run.liveness import liveness
from stepscope.analyses.run.samples import device_bytes, gpu_util, rss_bytes, usual_ns
from stepscope.analyses.run.trend import Trend, TrendDetector
from stepscope.core.live import RUNS, SILENT, STALLED, SWITCHED_OFF, Alert
from stepscope.core.numbers import number_ranges
from stepscope.readers.run_folder.tail import RankTail, RunTail

SLOWER = 1.25
"""Times the step before: a smaller jump is plain in `compare`, and no reason to call somebody."""
IDLER = 0.2
"""Of the time less in which the device has work."""
NUM_UTIL, NUM_UTIL_RECENT = 60, 15
"""Samples, and so seconds: the device's share of busy time is an average of its own already."""
NUM_STRETCHES, NUM_STRETCHES_RECENT = 45, 15
SAME_EPISODE_STEPS = 100
"""A jump on other ranks so soon after is the same: all wait for the slowest."""
QUIET_STEPS = 200
"""Between two alerts of a kind;
doubled after each, so that a job whose step time keeps changing does not fill a log."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankAlert:
    """What one rank's numbers show, before the ranks' alerts are merged."""

    kind: str
    rank: int
    step: int | None
    words: str


class JobAlarms:
    """The alarms of all ranks; `look` gives what is new."""

    def __init__(self) -> None:
        self._ranks: dict[int, tuple[object, _RankAlarms]] = {}
        """With the number of the process: a restarted rank begins anew."""
        self._last_step: dict[str, int] = {}
        self._quiet: dict[str, int] = {}

    def look(self, run: RunTail) -> tuple[Alert, ...]:
        has_ended = isinstance(run.metadata.get("exit_code"), int)
        rank_alerts: list[_RankAlert] = []
        for rank in run.ranks:
            pid, alarms = self._ranks.get(rank.rank, (None, None))
            if alarms is None or pid != rank.metadata.get("pid"):
                alarms = _RankAlarms()
                self._ranks[rank.rank] = rank.metadata.get("pid"), alarms
            rank_alerts += alarms.measured(rank)
            if not has_ended:
                rank_alerts += alarms.absent(rank, run.wall_ns)
        kinds = dict.fromkeys(alert.kind for alert in rank_alerts)
        merged = (
            self._merge(kind, [alert for alert in rank_alerts if alert.kind == kind], run.wall_ns)
            for kind in kinds
        )
        return tuple(alert for alert in merged if alert is not None)

    def _merge(self, kind: str, rank_alerts: Sequence[_RankAlert], wall_ns: int) -> Alert | None:
        first = rank_alerts[0]
        step = min((alert.step for alert in rank_alerts if alert.step is not None), default=None)
        if kind == "step-time" and step is not None and not self._is_new(kind, step):
            return None
        ranks = tuple(sorted({alert.rank for alert in rank_alerts}))
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {number_ranges(ranks)}"
        more = "" if len(ranks) == 1 else f" (rank {first.rank})"
        return Alert(
            kind=kind,
            ranks=ranks,
            step=step,
            words=f"{who}: {first.words}{more}",
            at_wall_ns=wall_ns,
        )

    def _is_new(self, kind: str, step: int) -> bool:
        last = self._last_step.get(kind)
        quiet = self._quiet.get(kind, SAME_EPISODE_STEPS)
        if last is not None and 0 <= step - last < quiet:
            return False
        self._last_step[kind] = step
        self._quiet[kind] = QUIET_STEPS if last is None else 2 * quiet
        return True


class _RankAlarms:
    def __init__(self) -> None:
        self._step = ChangePointDetector(_is_slower)
        self._stretch = ChangePointDetector(
            _is_slower, num_reference=NUM_STRETCHES, num_recent=NUM_STRETCHES_RECENT
        )
        self._util = ChangePointDetector(
            _is_idler, num_reference=NUM_UTIL, num_recent=NUM_UTIL_RECENT
        )
        self._memory: dict[str, tuple[Callable[[dict[str, Any]], int | None], TrendDetector]] = {
            "host-memory": (rss_bytes, TrendDetector()),
            "device-memory": (device_bytes, TrendDetector()),
        }
        self._state = RUNS
        self._last_step = -1

    def measured(self, tail: RankTail) -> list[_RankAlert]:
        """What the steps and samples since the last look show."""
        alerts = []
        for row in tail.new_rows:
            step, length = row["step"], usual_ns(row)
            # Those before a recording are written a second time in a long run.
            if step is not None and step > self._last_step and length is not None:
                self._last_step = step
                alerts += _slower(self._step.add(length), tail.rank, step)
        for stretch in tail.new_stretches:
            first, num, begun, ended = (
                stretch[name] for name in ("first_step", "num_steps", "from_ns", "to_ns")
            )
            if first is not None and num and begun is not None and ended is not None:
                alerts += _slower(self._stretch.add((ended - begun) / num), tail.rank, first + num)
        for sample in tail.new_samples:
            alerts += self._sampled(sample, tail.rank)
        return alerts

    def _sampled(self, sample: dict[str, Any], rank: int) -> list[_RankAlert]:
        step = sample.get("step") if isinstance(sample.get("step"), int) else None
        alerts = []
        util = gpu_util(sample)
        shift = None if util is None else self._util.add(util)
        if shift is not None:
            words = f"the device is busy {shift.after:.0%} of the time, {shift.before:.0%} before"
            alerts.append(_RankAlert(kind="utilisation", rank=rank, step=step, words=words))
        for kind, (size_of, detector) in self._memory.items():
            size = size_of(sample)
            growth = None if size is None else detector.add(size)
            if growth is not None:
                alerts.append(
                    _RankAlert(kind=kind, rank=rank, step=step, words=_growth_words(kind, growth))
                )
        return alerts

    def absent(self, tail: RankTail, wall_ns: int) -> list[_RankAlert]:
        """A rank that writes nothing any more, or makes no steps: once, until it is back."""
        state, quiet_s = liveness(tail, wall_ns)
        previous, self._state = self._state, state
        if state == previous or state in (RUNS, SWITCHED_OFF):
            return []
        step = tail.samples[-1].get("step") if tail.samples else None
        words = {
            SILENT: (
                f"silent for {quiet_s:.0f} s: its process is gone, stopped, inside one long call, "
                "or cannot write"
            ),
            STALLED: (
                f"no step for {quiet_s:.0f} s, though its process lives. `stepscope attach` says "
                "where it stands"
            ),
        }
        return [
            _RankAlert(
                kind=state,
                rank=tail.rank,
                step=step if isinstance(step, int) else None,
                words=words[state],
            )
        ]


def _is_slower(before: float, after: float) -> bool:
    return after >= SLOWER * before


def _is_idler(before: float, after: float) -> bool:
    return after <= before - IDLER


def _slower(shift: ChangePoint | None, rank: int, step: int) -> list[_RankAlert]:
    if shift is None:
        return []
    words = (
        f"steps take {shift.after / 1e6:.3g} ms, {shift.after / shift.before:.2f} times the "
        f"{shift.before / 1e6:.3g} ms before"
    )
    return [_RankAlert(kind="step-time", rank=rank, step=step, words=words)]


def _growth_words(kind: str, growth: Trend) -> str:
    where = "the host's memory" if kind == "host-memory" else "device memory"
    sizes = f"from {growth.first_bytes / GIB:.2f} to {growth.last_bytes / GIB:.2f} GiB"
    return (
        f"{where} rises steadily, {sizes} over {growth.num_samples} samples, and has not levelled "
        "off"
    )
