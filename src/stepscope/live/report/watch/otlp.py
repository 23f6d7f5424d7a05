"""A running job for OpenTelemetry: OTLP in the JSON mapping of its protocol buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stepscope import __version__
from stepscope.live.report.watch.alert_json import alert_line
from stepscope.live.report.watch.prometheus import METRICS
from stepscope.live.shapes.alert import OVER, RAISED, Alert
from stepscope.live.shapes.live import LiveView

SEVERITY = {RAISED: (13, "WARN")}
"""Number and name; the rest is information."""
INFO = 9, "INFO"
CUMULATIVE = 2
"""AGGREGATION_TEMPORALITY_CUMULATIVE: since the run began."""
UNITS = (("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1"), ("_total", ""))
"""How our names end, and OpenTelemetry's (UCUM's) unit for it."""
SCOPE = {"name": "stepscope", "version": __version__}


def logs(alerts: Sequence[Alert], run: str) -> dict[str, Any]:
    """The body of /v1/logs."""
    records = [_record(alert) for alert in alerts]
    return {
        "resourceLogs": [
            {"resource": _resource(run), "scopeLogs": [{"scope": SCOPE, "logRecords": records}]}
        ]
    }


def metrics(view: LiveView, wall_ns: int) -> dict[str, Any]:
    """The body of /v1/metrics: the numbers that Prometheus gets. What a rank did not measure has no
    point."""
    since_ns = wall_ns - int(max(view.running_s or 0.0, 0.0) * 1e9)
    series = []
    for metric in METRICS:
        since = since_ns if metric.kind == "counter" else None
        points = [
            _point(value, wall_ns, since, rank=rank.rank)
            for rank in view.ranks
            if (value := metric.value(rank)) is not None and math.isfinite(value)
        ]
        if points:
            series.append(_metric(metric.name, metric.kind, metric.text, points))
    num_raised = sum(1 for alert in view.alerts if alert.state == RAISED)
    raised = [_point(num_raised, wall_ns, since_ns)]
    series.append(_metric("stepscope_alerts_total", "counter", "Alerts raised so far.", raised))
    active = [
        _point(1.0, wall_ns, None, kind=alert.kind, rank=rank)
        for alert in view.active
        for rank in alert.ranks
    ]
    if active:
        series.append(_metric("stepscope_alert_active", "gauge", "What is wrong now.", active))
    return {
        "resourceMetrics": [
            {
                "resource": _resource(view.path),
                "scopeMetrics": [{"scope": SCOPE, "metrics": series}],
            }
        ]
    }


def name_and_unit(name: str) -> tuple[str, str]:
    """stepscope_step_seconds as `stepscope.step` and `s`: OpenTelemetry has them apart, and a
    collector that exports to Prometheus joins them again."""
    for ending, unit in UNITS:
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", ".", 1), unit
    return name.replace("_", ".", 1), ""


def _metric(name: str, kind: str, text: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    otlp_name, unit = name_and_unit(name)
    data: dict[str, Any] = {"gauge": {"dataPoints": points}}
    if kind == "counter":
        total = {"aggregationTemporality": CUMULATIVE, "isMonotonic": True}
        data = {"sum": {"dataPoints": points, **total}}
    return {"name": otlp_name, "unit": unit, "description": text, **data}


def _point(
    value: float, wall_ns: int, since_ns: int | None, **attributes: str | int
) -> dict[str, Any]:
    """64-bit numbers are text in the protocol's JSON."""
    point: dict[str, Any] = {
        "attributes": [_attribute(key, text) for key, text in attributes.items()],
        "timeUnixNano": str(wall_ns),
        "asDouble": float(value),
    }
    if since_ns is not None:
        point["startTimeUnixNano"] = str(since_ns)
    return point


def _record(alert: Alert) -> dict[str, Any]:
    number, name = SEVERITY.get(alert.state, INFO)
    began_ns = alert.ended_wall_ns if alert.state == OVER else alert.began_wall_ns
    attributes = [
        _attribute("stepscope.alert.kind", alert.kind),
        _attribute("stepscope.alert.state", alert.state),
        _attribute("stepscope.alert.number", alert.number),
        _attribute("stepscope.alert.ranks", ",".join(map(str, alert.ranks))),
        *(
            _attribute(f"stepscope.alert.{key}", value)
            for key, value in (("step", alert.step), ("action", alert.action or None))
            if value is not None
        ),
    ]
    return {
        "timeUnixNano": str(began_ns or alert.at_wall_ns),
        "observedTimeUnixNano": str(alert.at_wall_ns),
        "severityNumber": number,
        "severityText": name,
        "body": {"stringValue": alert_line(alert)},
        "attributes": attributes,
    }


def _resource(run: str) -> dict[str, Any]:
    return {
        "attributes": [_attribute("service.name", "stepscope"), _attribute("stepscope.run", run)]
    }


def _attribute(key: str, value: str | int) -> dict[str, Any]:
    typed = {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
    return {"key": key, "value": typed}
