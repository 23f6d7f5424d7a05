"""Where alerts go beside the terminal: a collector, recordings of their own; and a real job with a
late rank."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from msgspec.structs import replace

from stepscope.live.report.watch.alert_json import alert_json, alert_of
from stepscope.live.report.watch.prometheus import exposition
from stepscope.live.shapes.alert import OVER, RAISED, RECORDED, Alert, Measured
from stepscope.live.watch.alerting import Sinks, read_alerts
from stepscope.live.watch.beside_job import BETWEEN_S, Evidence
from stepscope.live.watch.otlp import Otlp, headers_of
from stepscope.readers.run_folder.folder import read_run
from stepscope.readers.run_folder.tail import Follower
from tests.capture.jobs import LIGHT, environment, stepscope, two_ranks
from tests.http_receiver import Receiver
from tests.installed import need
from tests.json_schema import json_schema
from tests.live.report.test_view import rank, view
from tests.live_runs import add_samples, add_steps, row, sample, write_rank, write_run
from tests.waiting import LONGEST_S, until
from tests.wording import mentions

ALERT = Alert(
    kind="late-rank",
    ranks=(1,),
    step=120,
    words="rank 1: 40 ms more a step",
    at_wall_ns=20_000_000_000,
    number=3,
    began_wall_ns=12_000_000_000,
    measured=Measured(before=80.0, after=120.0, unit="ms"),
    action="Look at its host.",
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    made.start()
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "run")
    for number in range(3):
        folder = write_rank(run, number)
        add_steps(folder, [row(step) for step in range(30)])
        add_samples(folder, [sample(1, 10), sample(2, 30)])
    return run


def test_an_alert_is_read_as_it_was_written_and_fits_its_schema() -> None:
    validator = Draft202012Validator(json_schema(Alert))
    over = replace(ALERT, state=OVER, action="", ended_wall_ns=30_000_000_000)
    recorded = replace(ALERT, state=RECORDED, evidence=("rank-1/window-3.pt.trace.json",))
    for alert in (ALERT, over, recorded, replace(ALERT, measured=None)):
        validator.validate(json.loads(json.dumps(alert_json(alert))))
        assert alert_of(alert_json(alert)) == alert
    validator.validate(json.loads(json.dumps(alert_json(ALERT, "runs/a"))))


@pytest.mark.parametrize(
    "line", [{}, {"kind": 3}, {"kind": 'x"} 1\n', "ranks": [], "words": "", "at_wall_ns": 1}]
)
def test_a_strangers_line_is_no_alert(line: dict[str, Any]) -> None:
    assert alert_of({"step": None, **line}) is None


def test_a_line_of_an_older_version_is_read() -> None:
    line = {"kind": "silent", "ranks": [3], "step": 7, "words": "rank 3: silent", "at_wall_ns": 5}
    alert = alert_of(line)
    assert alert is not None
    assert (alert.kind, alert.number, alert.state) == ("silent", 0, RAISED)


def test_a_collector_gets_alerts_and_numbers(
    run: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b")
    otlp = Otlp(receiver.url, run)
    sinks = Sinks(run, None, otlp)
    sinks.report([ALERT, replace(ALERT, state=OVER)])
    otlp.measured(view([rank(0, loss=float("nan")), rank(1, loss=0.5)], alerts=(ALERT,)))
    otlp.measured(view([]))
    sinks.close()
    otlp.close()
    (logs_path, logs, headers), (metrics_path, metrics, _) = receiver.requests
    assert (logs_path, metrics_path) == ("/v1/logs", "/v1/metrics")
    assert headers["x-key"] == "a b"
    first, last = logs["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert (first["severityText"], last["severityText"]) == ("WARN", "INFO")
    assert mentions(first["body"]["stringValue"], "rank 1: 40 ms more")
    assert first["timeUnixNano"] == "12000000000"
    series = {
        each["name"]: each for each in metrics["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    }
    assert len(series["stepscope.loss"]["gauge"]["dataPoints"]) == 1, "NaN has no JSON"
    assert series["stepscope.steps"]["sum"]["isMonotonic"]
    assert series["stepscope.alert_active"]["gauge"]["dataPoints"][0]["asDouble"] == 1.0


def test_headers_of_the_environment_are_taken_as_far_as_they_are_headers() -> None:
    assert headers_of("") == headers_of("nothing") == headers_of("=x") == {}
    assert headers_of(" a = b ,c=d%2Ce") == {"a": "b", "c": "d,e"}
    assert headers_of("a=b%0d%0aEvil: 1") == {}


def test_what_is_wrong_now_is_a_metric_until_it_is_over() -> None:
    shown = exposition(view([rank(0)], alerts=(ALERT,)))
    assert 'stepscope_alert_active{kind="late-rank",rank="1"} 1' in shown
    assert "stepscope_alerts_total 1" in shown
    shown = exposition(view([rank(0)], alerts=(ALERT, replace(ALERT, state=OVER))))
    assert "alert_active" not in shown
    assert "stepscope_alerts_total 1" in shown


def test_an_alert_asks_for_recordings_of_its_ranks_and_a_peer(run: Path) -> None:
    now = [0.0]
    evidence, follower = Evidence(run, 2, lambda: now[0]), Follower(run)
    assert evidence.look((ALERT,), follower.look()) == ()
    asked = json.loads((run / "control.json").read_text())
    assert asked["ranks"] == [1, 0]
    assert asked["record_from"] > 30
    for number in asked["ranks"]:
        (run / f"rank-{number}" / "window-45.pt.trace.json").write_text("{}")
    (alert,) = evidence.look((), follower.look())
    assert (alert.state, alert.number) == (RECORDED, 3)
    assert alert.evidence == ("rank-0/window-45.pt.trace.json", "rank-1/window-45.pt.trace.json")
    (run / "control.json").unlink()
    evidence.look((ALERT,), follower.look())
    assert not (run / "control.json").exists(), "not so soon again"
    now[0] = BETWEEN_S + 1
    evidence.look((replace(ALERT, kind="loss-nan"),), follower.look())
    assert not (run / "control.json").exists(), "a recording shows nothing of a loss"
    evidence.look((ALERT,), follower.look())
    assert (run / "control.json").exists()
    (run / "control.json").unlink()
    now[0] *= 3
    evidence.look((), follower.look())
    evidence.look((ALERT,), follower.look())
    assert not (run / "control.json").exists(), "two a run"


def test_a_run_is_not_diagnosed_by_what_an_alert_recorded(run: Path) -> None:
    for step in (20, 45):
        for number in range(3):
            (run / f"rank-{number}" / f"window-{step}.pt.trace.json").write_text("{}")
    assert {path.name for path in read_run(run).chosen_windows().values()} == {
        "window-45.pt.trace.json"
    }
    Sinks(run).report(
        [replace(ALERT, state=RECORDED, evidence=("rank-1/window-45.pt.trace.json",))]
    )
    assert {path.name for path in read_run(run).chosen_windows().values()} == {
        "window-20.pt.trace.json"
    }


JOB = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stop = torch.zeros(1)
step = 0
while step < 5000 and not (step % 10 == 0 and stop.item()):
    step += 1
    time.sleep(0.03)
    if rank == 1 and step > 150:
        time.sleep(0.05)
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        stop.fill_(os.path.exists(sys.argv[1]))
        dist.all_reduce(stop)
"""


def test_a_late_rank_of_a_real_job_is_named_while_it_runs(tmp_path: Path) -> None:
    need("torch")
    path, run, stop = tmp_path / "train.py", tmp_path / "run", tmp_path / "stop"
    path.write_text(LIGHT + JOB)
    words = ["run", "--no-diagnose", "--out", str(run), "--"]
    words += two_ranks(tmp_path, str(path), str(stop))
    process = subprocess.Popen(stepscope(*words), env=environment(), stderr=subprocess.DEVNULL)

    def named() -> bool:
        kinds = ("late-rank", "busy-machine")
        return any(a.kind in kinds and a.ranks == (1,) for a in read_alerts(run))

    try:
        until(named)
    finally:
        stop.touch()
        assert process.wait(LONGEST_S) == 0
