"""Real public traces against figures computed from their raw events by other means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.readers.open_trace import read_trace
from tests.builders import source
from tests.installed import need

SHARED = Path(__file__).parents[3] / "shared" / "public"
REFERENCE: dict[str, dict[str, Any]] = (
    json.loads((SHARED / "reference.json").read_text())
    if (SHARED / "reference.json").exists()
    else {}
)

need("the shared recordings")


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_every_event_and_every_device_event_is_there(name: str) -> None:
    trace = read_trace(source(SHARED / name), use_cache=False)
    trace.self_check()
    assert trace.num_raw_events == REFERENCE[name]["events"]
    assert int(trace.device_work.sum()) == REFERENCE[name]["device_events"]
    assert trace.unknown == {}
    assert trace.notes == ()


@pytest.mark.parametrize("name", sorted(name for name in REFERENCE if "span_ns" in REFERENCE[name]))
def test_the_device_span_is_exact(name: str) -> None:
    trace = read_trace(source(SHARED / name), use_cache=False)
    work = trace.device_work
    assert int(trace.end_ns[work].max() - trace.start_ns[work].min()) == REFERENCE[name]["span_ns"]
