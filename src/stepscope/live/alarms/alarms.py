"""All alarms of a job. Feed it one look after the other at the run folder.

Memory is bounded per rank; each fault is told once, and once when it is over.
"""

from __future__ import annotations

from typing import Any

from stepscope.analyses.run.samples import gpu_util, rss_bytes
from stepscope.live.alarms.clock import RankClock
from stepscope.live.alarms.episodes import Episodes, Trouble, over
from stepscope.live.alarms.level import Level
from stepscope.live.alarms.loss import LossSpikes, RankLoss, losses_of
from stepscope.live.alarms.memory import RankMemory
from stepscope.live.alarms.slow import SlowSteps
from stepscope.live.alarms.steps import StepTable, wall_s
from stepscope.live.alarms.trend import Trend, TrendDetector
from stepscope.live.liveness import liveness
from stepscope.live.samples import device_bytes, last_step
from stepscope.live.shapes.alert import Alert
from stepscope.live.shapes.live import RUNS, SILENT, STALLED, SWITCHED_OFF
from stepscope.readers.run_folder.tail import RankTail, RunTail

IDLER = 0.2
"""Share of the time by which the device has less work."""
IDLER_S = 10.0
"""Seconds that it must last: the driver's figure is an average of its own, and an evaluation is
over by then."""
GIB = 1 << 30


class JobAlarms:
    """The alarms of all ranks; `look` gives what is new."""

    def __init__(self) -> None:
        self._ranks: dict[int, tuple[object, _RankAlarms]] = {}
        """Alarms of each rank with the number of its process: a restarted rank begins anew."""
        self._table, self._slow = StepTable(), SlowSteps()
        self._spikes = LossSpikes()
        self._episodes = Episodes()

    def look(self, run: RunTail) -> tuple[Alert, ...]:
        has_ended = isinstance(run.metadata.get("exit_code"), int)
        troubles: list[Trouble] = []
        live: list[RankTail] = []
        now_s = run.wall_ns / 1e9
        is_restarted = any(
            tail.rank in self._ranks and self._ranks[tail.rank][0] != pid
            for tail in run.ranks
            if isinstance(pid := tail.metadata.get("pid"), int)
        )
        ended = self._begin_anew(now_s) if is_restarted else ()
        for tail in run.ranks:
            if tail.rank not in self._ranks:
                self._ranks[tail.rank] = tail.metadata.get("pid"), _RankAlarms(tail.rank)
            alarms = self._ranks[tail.rank][1]
            samples = alarms.new_samples(tail)
            troubles += alarms.sampled(samples)
            if not has_ended:
                troubles += alarms.absent(tail, run.wall_ns)
            self._slow.add_samples(tail.rank, samples)
            self._slow.add_host(tail.rank, tail.metadata.get("host"))
            if tail.problem is None:
                live.append(tail)
        troubles += self._slow.add(self._table.add(live))
        troubles += self._spiked(run)
        return (*ended, *self._episodes.add(troubles, now_s))

    def _begin_anew(self, now_s: float) -> tuple[Alert, ...]:
        self._table, self._slow, self._spikes = StepTable(), SlowSteps(), LossSpikes()
        self._ranks = {}
        return self._episodes.end_all(now_s)

    def _spiked(self, run: RunTail) -> list[Trouble]:
        losses = [self._ranks[tail.rank][1].loss for tail in run.ranks]
        steps = [last for tail in run.ranks if (last := last_step(tail)) is not None]
        return self._spikes.look(losses, run.wall_ns / 1e9, max(steps, default=None))


class _RankAlarms:
    """What one rank's samples tell by themselves."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.loss, self._memory, self._clock = RankLoss(rank), RankMemory(rank), RankClock(rank)
        self._idle = Level(lambda _: IDLER, lasts_s=IDLER_S)
        self._trends = {"host-memory": TrendDetector(), "device-memory": TrendDetector()}
        self._told: dict[str, Trouble] = {}
        self._state = RUNS
        self._last_ns = -1

    def new_samples(self, tail: RankTail) -> list[tuple[float, dict[str, Any]]]:
        """Samples with their times on the wall clock."""
        samples = []
        for sample in tail.new_samples:
            at_ns = sample.get("at_ns")
            if isinstance(at_ns, int) and at_ns > self._last_ns:
                self._last_ns = at_ns
                losses = [(wall_s(tail, ns), loss) for ns, loss in losses_of(sample)]
                samples.append((wall_s(tail, at_ns), {**sample, "losses": losses}))
        return samples

    def sampled(self, samples: list[tuple[float, dict[str, Any]]]) -> list[Trouble]:
        troubles: list[Trouble] = []
        for at_s, sample in samples:
            step = sample.get("step") if isinstance(sample.get("step"), int) else None
            troubles += self.loss.add(sample["losses"], step)
            troubles += self._memory.add(at_s, sample)
            troubles += self._clock.add(at_s, sample)
            troubles += self._idler(at_s, sample)
            troubles += self._leaks(at_s, sample, step)
        return troubles

    def _idler(self, at_s: float, sample: dict[str, Any]) -> list[Trouble]:
        util = gpu_util(sample)
        # Less is worse, and a level rises.
        if util is None or not self._idle.add(-util, at_s):
            return []
        rise = self._idle.rise
        if rise is None:
            told = self._told.pop("utilisation", None)
            return [] if told is None else [over(told, at_s)]
        words = f"the device is busy {-rise.after:.0%} of the time, {-rise.before:.0%} before"
        trouble = Trouble(
            kind="utilisation",
            ranks=(self._rank,),
            words=words,
            since_s=rise.since_s,
            before=-rise.before,
            after=-rise.after,
            unit="share",
        )
        self._told["utilisation"] = trouble
        return [trouble]

    def _leaks(self, at_s: float, sample: dict[str, Any], step: int | None) -> list[Trouble]:
        """Slow growth, over minutes and hours."""
        troubles = []
        for kind, size in (
            ("host-memory", rss_bytes(sample)),
            ("device-memory", device_bytes(sample)),
        ):
            trend = None if size is None else self._trends[kind].add(size)
            if trend is not None:
                troubles.append(_leak(kind, self._rank, step, trend, at_s))
        return troubles

    def absent(self, tail: RankTail, wall_ns: int) -> list[Trouble]:
        """A rank that writes nothing any more, or makes no steps: once, until it is back."""
        state, quiet_s = liveness(tail, wall_ns)
        if isinstance(tail.metadata.get("ended_ns"), int):
            # It said so itself; what started it may take longer to end.
            state = RUNS
        previous, self._state = self._state, state
        if state == previous:
            return []
        told = self._told.pop(previous, None)
        troubles = [] if told is None else [over(told, wall_ns / 1e9)]
        if state in (RUNS, SWITCHED_OFF):
            return troubles
        step = tail.samples[-1].get("step") if tail.samples else None
        words = {
            SILENT: (
                f"silent for {quiet_s:.0f} s: its process is gone, stopped, inside one long call, "
                "or cannot write"
            ),
            STALLED: f"no step for {quiet_s:.0f} s, though its process lives",
        }
        trouble = Trouble(
            kind=state,
            ranks=(self._rank,),
            words=words[state],
            since_s=wall_ns / 1e9 - (quiet_s or 0.0),
            step=step if isinstance(step, int) else None,
            after=quiet_s,
            unit="s",
        )
        self._told[state] = trouble
        return [*troubles, trouble]


def _leak(kind: str, rank: int, step: int | None, trend: Trend, at_s: float) -> Trouble:
    where = "the host's memory" if kind == "host-memory" else "device memory"
    sizes = f"from {trend.first_bytes / GIB:.2f} to {trend.last_bytes / GIB:.2f} GiB"
    return Trouble(
        kind=kind,
        ranks=(rank,),
        words=(
            f"{where} rises steadily, {sizes} over {trend.num_samples} samples, and has not "
            "levelled off"
        ),
        since_s=at_s - trend.num_samples,
        step=step,
        before=trend.first_bytes,
        after=trend.last_bytes,
        unit="bytes",
    )
