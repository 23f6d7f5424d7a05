"""AMD's devices are not told of nvidia-smi."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.field.asking import ask
from tests.wording import mentions


def told(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def test_a_throttled_mi300_is_asked_with_amd_smi(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look = {
        "gpu": 0,
        "usage": {"gfx_activity": told(97, "%")},
        "clock": {"gfx_0": {"clk": told(1200, "MHz"), "max_clk": told(2100, "MHz")}},
        "temperature": {"hotspot": told(105, "C")},
        "throttle": {"socket_thermal_violation_status": "ACTIVE"},
    }
    path = tmp_path / "metric.json"
    path.write_text(json.dumps([look] * 10))
    answer = ask(capsys, "diagnose", path, "-v")
    assert mentions(answer, "throttled-gpu", "amd-smi metric"), answer
    assert not mentions(answer, "nvidia-smi -q"), answer
