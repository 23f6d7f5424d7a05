"""A run while it runs: where each rank stands, and what is worth a warning.

A field is None when it was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.live.shapes.alert import OVER, RAISED, Alert

RUNS, SILENT, STALLED, SWITCHED_OFF = "runs", "silent", "stalled", "switched off"
"""silent: its process tells nothing any more; stalled: it tells, but makes no steps; switched off:
the capture in it gave up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLive:
    """One rank, by what it wrote last."""

    rank: int
    state: str
    """One of the four above."""
    quiet_s: float | None = None
    """How long it has written nothing, or made no step, where `state` says so."""
    step: int | None = None
    step_ns: float | None = None
    """The median of the last steps that no profiler slowed; their mean in a long run."""
    step_deviation: float | None = None
    """Standard deviation of those steps, as a share of their mean; None where only a mean is
    known."""
    baseline_ns: float | None = None
    """The median of the run's first good steps."""
    wait_share: float | None = None
    """Share of those last steps, in next() of a DataLoader."""
    wait_ns: float | None = None
    """A step."""
    samples_per_s: float | None = None
    gpu_util: float | None = None
    """Share of the last seconds in which a kernel ran, by the driver; the mean over the rank's
    devices."""
    device_bytes: int | None = None
    device_total_bytes: int | None = None
    rss_bytes: int | None = None
    loss: float | None = None
    """The last one; NaN and infinity too."""
    forward_ns: float | None = None
    """Median of the last steps, on the device's clock where it is read: the forward pass and
    whatever else the loop does."""
    backward_ns: float | None = None
    """Time without the waits for other ranks."""
    optimizer_ns: float | None = None
    others_ns: float | None = None
    """Waiting for other ranks; None where that cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Ranks that are alike, and one of them in the middle that stands for all."""

    ranks: tuple[int, ...]
    typical: RankLive
    is_outlier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """All of a run that a glance should show."""

    path: str
    command: tuple[str, ...]
    exit_code: int | None
    """None while it runs."""
    running_s: float | None
    ranks: tuple[RankLive, ...]
    groups: tuple[RankGroup, ...]
    """The ranks in few lines."""
    num_outliers_left_out: int
    world_size: int | None
    """What the ranks say there should be."""
    bound: str
    """What limits the run, as far as can be said by now, in words."""
    alerts: tuple[Alert, ...] = ()

    @property
    def active(self) -> tuple[Alert, ...]:
        """The alerts of what is still wrong."""
        over = {alert.number for alert in self.alerts if alert.state == OVER and alert.number}
        return tuple(
            alert
            for alert in self.alerts
            if alert.state == RAISED and alert.number and alert.number not in over
        )

    @property
    def step_ns(self) -> float | None:
        """The job's step: the median over ranks."""
        steps_ns = sorted(rank.step_ns for rank in self.ranks if rank.step_ns is not None)
        return steps_ns[(len(steps_ns) - 1) // 2] if steps_ns else None

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks together; None where that of one of them is not known."""
        rates = [rank.samples_per_s for rank in self.ranks if rank.samples_per_s is not None]
        return sum(rates) if rates and len(rates) == len(self.ranks) else None
