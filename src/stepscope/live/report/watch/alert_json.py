"""An alert as JSON, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from stepscope.core.codec import convert_value, plain
from stepscope.live.shapes.alert import Alert

PLAIN = re.compile(r"[a-z][a-z-]{0,40}")
"""Pattern of a kind, which a later version may have more of: it becomes a label of metrics."""


def alert_json(alert: Alert, run: str | None = None) -> dict[str, Any]:
    """Alert with the run folder, as a webhook gets it."""
    if run is not None:
        alert = replace(alert, run=run, text=f"stepscope: {alert_line(alert)}")
    return plain(alert)


def alert_of(line: Mapping[str, Any]) -> Alert | None:
    """None where the line is none."""
    try:
        alert = convert_value({"schema": "stepscope.alert/1", **line}, Alert)
    except ValueError:
        return None
    return alert if PLAIN.fullmatch(alert.kind) else None


def alert_line(alert: Alert) -> str:
    """`late-rank at step 7: rank 3: ...`."""
    step = "" if alert.step is None else f" at step {alert.step}"
    action = f" {alert.action}" if alert.action else ""
    end = "" if not action or alert.words.endswith(".") else "."
    return f"{alert.kind}{step}: {alert.words}{end}{action}"
