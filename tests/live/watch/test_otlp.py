"""Metrics for an OpenTelemetry collector: what it gets, and what becomes of one that is away."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.live.report.watch.otlp import metrics as otlp_metrics
from stepscope.live.report.watch.otlp import name_and_unit
from stepscope.live.report.watch.prometheus import METRICS, exposition
from stepscope.live.shapes.live import LiveView
from stepscope.live.view import live_view
from stepscope.live.watch.beside_job import Options, Watching
from stepscope.live.watch.otlp import Otlp
from stepscope.readers.run_folder.tail import Follower
from tests.installed import package
from tests.live_runs import WALL_NS, add_samples, add_steps, row, sample, write_rank, write_run

PROTOCOL = "OpenTelemetry's protocol"
MESSAGES = "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"
FORMAT = "google.protobuf.json_format"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", exit_code=0)
    for number in range(2):
        rank = write_rank(folder, number)
        add_steps(rank, [row(step) for step in range(30)])
        add_samples(rank, [sample(1, 30)])
    return folder


@pytest.fixture
def view(run: Path) -> LiveView:
    return live_view(Follower(run).look(), [])


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, dict[str, str], Any]]]]:
    """A collector, and what it got."""
    got: list[tuple[str, dict[str, str], Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, dict(self.headers), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    thread.join()
    server.server_close()


def by_name(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (resource,) = body["resourceMetrics"]
    (scope,) = resource["scopeMetrics"]
    return {metric["name"]: metric for metric in scope["metrics"]}


def test_it_says_what_prometheus_is_told(view: LiveView) -> None:
    metrics = by_name(otlp_metrics(view, WALL_NS))
    lines = {
        line.partition("{")[0]
        for line in exposition(view).splitlines()
        if line and not line.startswith("#")
    }
    names = {line.split()[0] for line in lines}
    assert {name_and_unit(name)[0] for name in names} == set(metrics)
    step = metrics["stepscope.step"]
    assert step["unit"] == "s"
    points = step["gauge"]["dataPoints"]
    assert [point["attributes"][0]["value"]["intValue"] for point in points] == ["0", "1"]
    assert points[0]["asDouble"] == pytest.approx(0.01)
    steps = metrics["stepscope.steps"]["sum"]
    assert steps["isMonotonic"] is True
    assert int(steps["dataPoints"][0]["startTimeUnixNano"]) <= WALL_NS


def test_every_name_comes_back_as_prometheus_has_it() -> None:
    endings = {"s": "_seconds", "By": "_bytes", "1": "_ratio", "": ""}
    for metric in METRICS:
        told, unit = name_and_unit(metric.name)
        total = "_total" if metric.kind == "counter" else ""
        assert told.replace(".", "_") + endings[unit] + total == metric.name


def test_watch_sends_to_the_collector(
    run: Path,
    collector: tuple[str, list[tuple[str, dict[str, str], Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, got = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-team = ml")
    assert main(["watch", str(run), "--otlp", url]) == 0
    path, headers, body = got[-1]
    assert path == "/v1/metrics"
    assert headers["Content-Type"] == "application/json"
    sent = {name.lower(): value for name, value in headers.items()}
    assert sent["api-key"] == "a b"
    assert sent["x-team"] == "ml"
    assert "stepscope.step" in by_name(body)


def test_run_sends_beside_its_job(
    run: Path, collector: tuple[str, list[tuple[str, dict[str, str], Any]]]
) -> None:
    url, got = collector
    watching = Watching(run, Options(alerts=False, otlp=url))
    watching.look()
    watching.close()
    assert "stepscope.step" in by_name(got[-1][2])


def test_a_collector_that_is_away_is_said_once(
    run: Path, view: LiveView, capsys: pytest.CaptureFixture[str]
) -> None:
    collector = Otlp("http://127.0.0.1:9/secret", run, now=iter(range(0, 1000, 20)).__next__)
    collector.measured(view)
    collector.measured(view)
    collector.close()
    err = capsys.readouterr().err
    assert err.count("cannot be reached") == 1
    assert "secret" not in err


def test_the_protocols_own_messages_take_it_all(view: LiveView) -> None:
    """A field that OpenTelemetry does not know, or of another type, is refused there."""
    service, json_format = package(MESSAGES, PROTOCOL), package(FORMAT, PROTOCOL)
    body = otlp_metrics(view, WALL_NS)
    message = json_format.ParseDict(body, service.ExportMetricsServiceRequest())
    (resource,) = message.resource_metrics
    (scope,) = resource.scope_metrics
    (step,) = [metric for metric in scope.metrics if metric.name == "stepscope.step"]
    assert step.gauge.data_points[1].attributes[0].value.int_value == 1
    (steps,) = [metric for metric in scope.metrics if metric.name == "stepscope.steps"]
    assert steps.sum.is_monotonic
    assert steps.sum.aggregation_temporality == 2
    assert [point.as_double for point in steps.sum.data_points] == [30, 30]
    assert {point.time_unix_nano for point in steps.sum.data_points} == {WALL_NS}
