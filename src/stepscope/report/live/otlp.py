"""A running job in OpenTelemetry's protocol (OTLP 1.x), as JSON: the metrics that Prometheus gets.

A name and its unit are told apart, as OpenTelemetry has them. A collector that exports to
Prometheus joins them again, so that both ways end in one name.

    stepscope_step_seconds    stepscope.step, unit s
    stepscope_steps_total     stepscope.steps, a sum that only rises
"""

from __future__ import annotations

from typing import Any

from stepscope import __version__
from stepscope.core.live import LiveView
from stepscope.report.live.prometheus import METRICS

UNITS = (("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1"), ("_total", ""))
"""How our names end, and OpenTelemetry's (UCUM's) unit for it."""
CUMULATIVE = 2
"""AGGREGATION_TEMPORALITY_CUMULATIVE: since the run began."""


def otlp_metrics(view: LiveView, now_wall_ns: int) -> dict[str, Any]:
    """The body of a request to /v1/metrics. What a rank did not measure has no point."""
    since_ns = now_wall_ns - int(max(view.running_s or 0.0, 0.0) * 1e9)
    metrics = []
    for name, kind, text, value_of in METRICS:
        points = [
            _point(value, now_wall_ns, since_ns if kind == "counter" else None, rank.rank)
            for rank in view.ranks
            if (value := value_of(rank)) is not None
        ]
        if points:
            metrics.append(_metric(name, kind, text, points))
    alerts = [_point(len(view.alerts), now_wall_ns, since_ns)]
    metrics.append(_metric("stepscope_alerts_total", "counter", "Alerts raised so far.", alerts))
    resource = [
        _attribute("service.name", "stepscope"),
        _attribute("service.instance.id", view.path),
    ]
    scope = {"name": "stepscope", "version": __version__}
    return {
        "resourceMetrics": [
            {
                "resource": {"attributes": resource},
                "scopeMetrics": [{"scope": scope, "metrics": metrics}],
            }
        ]
    }


def name_and_unit(name: str) -> tuple[str, str]:
    """stepscope_step_seconds as `stepscope.step` and `s`."""
    for ending, unit in UNITS:
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", ".", 1), unit
    return name.replace("_", ".", 1), ""


def _metric(name: str, kind: str, text: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    told, unit = name_and_unit(name)
    metric: dict[str, Any] = {"name": told, "unit": unit, "description": text}
    if kind == "counter":
        metric["sum"] = {
            "aggregationTemporality": CUMULATIVE,
            "isMonotonic": True,
            "dataPoints": points,
        }
    else:
        metric["gauge"] = {"dataPoints": points}
    return metric


def _point(
    value: float, now_wall_ns: int, since_wall_ns: int | None, rank: int | None = None
) -> dict[str, Any]:
    """64-bit numbers are text in the protocol's JSON."""
    point: dict[str, Any] = {"timeUnixNano": str(now_wall_ns), "asDouble": float(value)}
    if since_wall_ns is not None:
        point["startTimeUnixNano"] = str(since_wall_ns)
    if rank is not None:
        point["attributes"] = [{"key": "rank", "value": {"intValue": str(rank)}}]
    return point


def _attribute(key: str, text: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": text}}
