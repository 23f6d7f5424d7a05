"""A running job in Prometheus' text exposition format (version 0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

from stepscope.live.shapes.alert import RAISED
from stepscope.live.shapes.live import RUNS, LiveView, RankLive

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(Struct, frozen=True):
    """One number of each rank. A rank that did not measure it has no line for it."""

    name: str
    field: str
    """The field of RankLive."""
    text: str
    kind: str = "gauge"

    def value(self, rank: RankLive) -> float | None:
        if self.field == "state":
            return float(rank.state == RUNS)
        value: float | None = getattr(rank, self.field)
        return value / 1e9 if value is not None and self.field.endswith("_ns") else value


METRICS = (
    Metric(
        "stepscope_step_seconds", "step_ns", "Time of a training step, median of the last ones."
    ),
    Metric("stepscope_step_baseline_seconds", "baseline_ns", "The same when the run began."),
    Metric("stepscope_steps_total", "step", "Steps made.", "counter"),
    Metric("stepscope_loader_wait_seconds", "wait_ns", "Wait for the DataLoader in a step."),
    Metric(
        "stepscope_forward_seconds",
        "forward_ns",
        "Forward pass and the rest of the loop in a step.",
    ),
    Metric(
        "stepscope_backward_seconds",
        "backward_ns",
        "Backward pass in a step, without waits for other ranks.",
    ),
    Metric("stepscope_optimizer_seconds", "optimizer_ns", "Optimizer in a step."),
    Metric("stepscope_wait_for_ranks_seconds", "others_ns", "Wait for other ranks in a step."),
    Metric("stepscope_loss", "loss", "The loss last seen."),
    Metric("stepscope_samples_per_second", "samples_per_s", "Samples of the training set."),
    Metric(
        "stepscope_gpu_utilization_ratio",
        "gpu_util",
        "Share of time in which kernels ran, by the driver.",
    ),
    Metric("stepscope_device_memory_bytes", "device_bytes", "Memory held on the rank's devices."),
    Metric(
        "stepscope_device_memory_total_bytes",
        "device_total_bytes",
        "Memory that these devices have.",
    ),
    Metric("stepscope_host_memory_bytes", "rss_bytes", "Resident memory of the rank's process."),
    Metric("stepscope_rank_up", "state", "1 while the rank tells of itself and makes steps."),
)


def exposition(view: LiveView | None) -> str:
    """All metrics of all ranks; nothing but an end of line before there is a look at the run."""
    return "\n".join(_lines(view)) + "\n" if view is not None else "\n"


def _lines(view: LiveView) -> Iterator[str]:
    for metric in METRICS:
        values = [
            (rank.rank, value) for rank in view.ranks if (value := metric.value(rank)) is not None
        ]
        if values:
            yield f"# HELP {metric.name} {metric.text}"
            yield f"# TYPE {metric.name} {metric.kind}"
            yield from (
                f'{metric.name}{{rank="{rank}"}} {_number(value)}' for rank, value in values
            )
    active = sorted({(alert.kind, rank) for alert in view.active for rank in alert.ranks})
    if active:
        yield "# HELP stepscope_alert_active 1 while this is wrong on the rank."
        yield "# TYPE stepscope_alert_active gauge"
        yield from (
            f'stepscope_alert_active{{kind="{kind}",rank="{rank}"}} 1' for kind, rank in active
        )
    yield "# HELP stepscope_alerts_total Alerts raised so far."
    yield "# TYPE stepscope_alerts_total counter"
    yield f"stepscope_alerts_total {sum(1 for alert in view.alerts if alert.state == RAISED)}"


def _number(value: float) -> str:
    """Number as the format has it, which knows NaN and infinities by other names than Python."""
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
