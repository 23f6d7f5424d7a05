"""A running job for OpenTelemetry: OTLP in the JSON mapping of its protocol buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stepscope import __version__
from stepscope.core.live import OVER, RAISED, Alert, LiveView
from stepscope.report.live.alert_json import alert_line
from stepscope.report.live.prometheus import METRICS

SEVERITY = {RAISED: (13, "WARN")}
"""Number and name; the rest is information."""
INFO = 9, "INFO"
CUMULATIVE = 2
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
    """The body of /v1/metrics: the numbers that Prometheus gets, under the same names."""
    series = []
    for name, kind, text, value_of in METRICS:
        points = [
            {
                "attributes": [_attribute("rank", rank.rank)],
                "timeUnixNano": str(wall_ns),
                "asDouble": float(value),
            }
            for rank in view.ranks
            if (value := value_of(rank)) is not None and math.isfinite(value)
        ]
        if points:
            series.append({"name": name, "description": text, **_data(kind, points)})
    active = [
        {
            "attributes": [_attribute("kind", alert.kind), _attribute("rank", rank)],
            "timeUnixNano": str(wall_ns),
            "asDouble": 1.0,
        }
        for alert in view.active
        for rank in alert.ranks
    ]
    if active:
        series.append({"name": "stepscope_alert_active", **_data("gauge", active)})
    return {
        "resourceMetrics": [
            {
                "resource": _resource(view.path),
                "scopeMetrics": [{"scope": SCOPE, "metrics": series}],
            }
        ]
    }


def _data(kind: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "counter":
        total = {"aggregationTemporality": CUMULATIVE, "isMonotonic": True}
        return {"sum": {"dataPoints": points, **total}}
    return {"gauge": {"dataPoints": points}}


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
