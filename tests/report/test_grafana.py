"""The dashboard asks Prometheus for what we export, and for nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from importlib import resources
from itertools import combinations
from typing import Any

import pytest

from stepscope.live.report.watch.otlp import metrics as otlp_metrics
from stepscope.live.report.watch.otlp import name_and_unit
from stepscope.live.report.watch.prometheus import METRICS, exposition
from tests.live.report.test_view import rank, view

BOARD: dict[str, Any] = json.loads(
    (resources.files("stepscope") / "data" / "grafana.json").read_text(encoding="utf-8")
)
PANELS: list[dict[str, Any]] = BOARD["panels"]
VARIABLES: list[dict[str, Any]] = BOARD["templating"]["list"]
EXPORTED = {metric.name for metric in METRICS} | {"stepscope_alerts_total"}
OURS = re.compile(r"\bstepscope_\w+")
LABELS = {"job", "instance", "rank"}
"""Prometheus' own two, and ours."""
RATE_INTERVAL = "__rate_interval"
"""Grafana's own: four scrapes at least. A run that is younger than a fixed stretch gets too low a
rate: its increase is divided by all of the stretch."""


def expressions() -> list[str]:
    queries = [each["query"]["query"] for each in VARIABLES if isinstance(each["query"], dict)]
    return [target["expr"] for panel in PANELS for target in panel["targets"]] + queries


def test_every_expression_names_metrics_that_are_exported() -> None:
    for text in expressions():
        names = set(OURS.findall(text))
        assert names, text
        assert names <= EXPORTED, text


def test_every_metric_of_the_board_is_emitted() -> None:
    healthy = rank(0)
    unmeasured = [each.name for each in fields(healthy) if getattr(healthy, each.name) is None]
    shown = view([rank(0, **dict.fromkeys(unmeasured, 1.0))])
    emitted = set(re.findall(r"^(stepscope_\w+)[{ ]", exposition(shown), re.MULTILINE))
    (resource,) = otlp_metrics(shown, 10**18)["resourceMetrics"]
    sent = {metric["name"] for metric in resource["scopeMetrics"][0]["metrics"]}
    for name in {name for text in expressions() for name in OURS.findall(text)}:
        assert name in emitted
        assert name_and_unit(name)[0] in sent


def test_every_label_is_one_that_metrics_have() -> None:
    for text in expressions():
        for matcher in re.findall(r"\{(.*?)\}", text):
            assert set(re.findall(r"(\w+)=~", matcher)) <= LABELS, text
    # Alerts are of the run: a choice of ranks would lose them.
    for text in expressions():
        if "stepscope_alerts_total" in text:
            assert "rank" not in text


def test_counters_are_asked_for_their_rate_and_gauges_are_not() -> None:
    counters = {metric.name for metric in METRICS if metric.kind == "counter"}
    for text in expressions():
        for name in OURS.findall(text):
            if name in counters:
                assert f"rate({name}" in text, text
                assert text.endswith(f"[${RATE_INTERVAL}])"), text
            else:
                assert f"rate({name}" not in text, text


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_is_whole(panel: dict[str, Any]) -> None:
    assert panel["description"]
    assert panel["type"] in ("stat", "timeseries")
    assert panel["datasource"]["uid"] == "${datasource}"
    assert [target["refId"] for target in panel["targets"]] == ["A", "B"][: len(panel["targets"])]
    for target in panel["targets"]:
        text = target["expr"]
        assert text.count("(") == text.count(")")
        assert text.count("{") == text.count("}")
        for name in re.findall(r"\$(\w+)", text):
            assert name in {*(each["name"] for each in VARIABLES), RATE_INTERVAL}


def test_panels_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
        assert one["x"] + one["w"] <= 24
