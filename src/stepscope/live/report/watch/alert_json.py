"""An alert as JSON, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from stepscope.core.contract.codec import filled, plain
from stepscope.core.json_decode import convert_value
from stepscope.live.contract.alert import AlertContract, Measured
from stepscope.live.shapes.live import Alert

PLAIN = re.compile(r"[a-z][a-z-]{0,40}")
"""Of a kind, which a later version may have more of: it becomes a label of metrics."""


def alert_json(alert: Alert, run: str | None = None) -> dict[str, Any]:
    """With the run folder, as a webhook gets it."""
    return plain(alert_contract(alert, run))


def alert_contract(alert: Alert, run: str | None = None) -> AlertContract:
    measured = None
    if alert.unit is not None:
        measured = Measured(before=alert.before, after=alert.after, unit=alert.unit)
    return filled(
        AlertContract,
        alert,
        measured=measured,
        run=UNSET if run is None else run,
        text=UNSET if run is None else f"stepscope: {alert_line(alert)}",
    )


def alert_of(line: Mapping[str, Any]) -> Alert | None:
    """None where the line is none."""
    try:
        contract = convert_value({"schema": "stepscope.alert/1", **line}, AlertContract)
    except ValueError:
        return None
    if not PLAIN.fullmatch(contract.kind):
        return None
    names = (name for name in contract.__struct_fields__ if name in Alert.__slots__)
    told = {name: getattr(contract, name) for name in names}
    if contract.measured is not None:
        told |= asdict(contract.measured)
    return Alert(**told)


def alert_line(alert: Alert) -> str:
    """`late-rank at step 7: rank 3: ...`."""
    step = "" if alert.step is None else f" at step {alert.step}"
    action = f" {alert.action}" if alert.action else ""
    end = "" if not action or alert.words.endswith(".") else "."
    return f"{alert.kind}{step}: {alert.words}{end}{action}"
