"""A running job in Prometheus' text exposition format (version 0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from stepscope.core.live import RAISED, RUNS, LiveView, RankLive

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


METRICS: tuple[tuple[str, str, str, Callable[[RankLive], float | None]], ...] = (
    (
        "stepscope_step_seconds",
        "gauge",
        "Time of a training step, median of the last ones.",
        lambda r: _seconds(r.step_ns),
    ),
    (
        "stepscope_step_baseline_seconds",
        "gauge",
        "The same when the run began.",
        lambda r: _seconds(r.baseline_ns),
    ),
    ("stepscope_steps_total", "counter", "Steps made.", lambda r: r.step),
    (
        "stepscope_loader_wait_seconds",
        "gauge",
        "Wait for the DataLoader in a step.",
        lambda r: _seconds(r.wait_ns),
    ),
    (
        "stepscope_forward_seconds",
        "gauge",
        "Forward pass and the rest of the loop in a step.",
        lambda r: _seconds(r.forward_ns),
    ),
    (
        "stepscope_backward_seconds",
        "gauge",
        "Backward pass in a step, without waits for other ranks.",
        lambda r: _seconds(r.backward_ns),
    ),
    (
        "stepscope_optimizer_seconds",
        "gauge",
        "Optimizer in a step.",
        lambda r: _seconds(r.optimizer_ns),
    ),
    (
        "stepscope_wait_for_ranks_seconds",
        "gauge",
        "Wait for other ranks in a step.",
        lambda r: _seconds(r.others_ns),
    ),
    ("stepscope_loss", "gauge", "The loss last seen.", lambda r: r.loss),
    (
        "stepscope_samples_per_second",
        "gauge",
        "Samples of the training set.",
        lambda r: r.samples_per_s,
    ),
    (
        "stepscope_gpu_utilization_ratio",
        "gauge",
        "Share of time in which kernels ran, by the driver.",
        lambda r: r.gpu_util,
    ),
    (
        "stepscope_device_memory_bytes",
        "gauge",
        "Memory held on the rank's devices.",
        lambda r: r.device_bytes,
    ),
    (
        "stepscope_device_memory_total_bytes",
        "gauge",
        "Memory that these devices have.",
        lambda r: r.device_total_bytes,
    ),
    (
        "stepscope_host_memory_bytes",
        "gauge",
        "Resident memory of the rank's process.",
        lambda r: r.rss_bytes,
    ),
    (
        "stepscope_rank_up",
        "gauge",
        "1 while the rank tells of itself and makes steps.",
        lambda r: float(r.state == RUNS),
    ),
)
"""Name, type, help, and where its value is. A rank that did not measure one has no line for it."""


def exposition(view: LiveView | None) -> str:
    """All metrics of all ranks; nothing but an end of line before there is a look at the run."""
    return "\n".join(_lines(view)) + "\n" if view is not None else "\n"


def _lines(view: LiveView) -> Iterator[str]:
    for name, kind, text, value_of in METRICS:
        values = [
            (rank.rank, value) for rank in view.ranks if (value := value_of(rank)) is not None
        ]
        if values:
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} {kind}"
            yield from (f'{name}{{rank="{rank}"}} {_number(value)}' for rank, value in values)
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
    """As the format has it, which knows NaN and infinities by other names than Python."""
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
