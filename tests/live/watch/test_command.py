"""`watch`, alerts and metrics, as a user has them."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.live.shapes.alert import Alert
from stepscope.live.watch.alerting import Sinks, read_alerts
from stepscope.live.watch.beside_job import Options, Watching
from stepscope.live.watch.prometheus import Metrics
from tests.capture.jobs import environment, script, stepscope
from tests.installed import need
from tests.live_runs import add_samples, add_steps, row, sample, write_rank, write_run
from tests.ports import free_port, refusing_port
from tests.waiting import LONGEST_S, until
from tests.wording import mentions

ALERT = Alert(kind="silent", ranks=(3,), step=7, words="rank 3: silent for 11 s", at_wall_ns=5)


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "run", exit_code=0)
    rank = write_rank(run, 0)
    add_steps(rank, [row(step) for step in range(30)])
    add_samples(rank, [sample(1, 30)])
    return run


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook, and what it got."""
    got: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook?token=secret", got
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONGEST_S) as answer:
        return str(answer.read().decode())


def test_off_a_terminal_one_frame_is_printed(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--once"]):
        assert main(["watch", str(ended), *more]) == 0
        printed = capsys.readouterr().out
        assert mentions(printed, "exit code 0", "step 30, 10.0 ms", "100 steps/s")


def test_it_ends_with_the_run(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(ended), "--prometheus", str(free_port())]) == 0
    assert mentions(capsys.readouterr().out, "exit code 0")


def test_the_newest_run_is_watched_where_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["watch"]) == 2
    assert mentions(capsys.readouterr().err, "which run", "none in stepscope-runs/")
    write_run(tmp_path / "stepscope-runs" / "one", exit_code=4)
    assert main(["watch"]) == 0
    assert mentions(capsys.readouterr().out, "exit code 4")


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere", "does not exist"), (".", "not the folder of a run")]
)
def test_what_is_no_run_is_refused_in_words(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(tmp_path / name)]) == 2
    assert mentions(capsys.readouterr().err, str(tmp_path / name), said, "`stepscope run`")


def test_alerts_are_said_kept_and_posted(
    ended: Path, receiver: tuple[str, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, got = receiver
    sinks = Sinks(ended, url)
    sinks.report([ALERT])
    sinks.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stepscope: silent ")
    assert mentions(line, "step 7", ALERT.words)
    assert read_alerts(ended) == (ALERT,)
    assert [(one["kind"], one["ranks"], one["run"]) for one in got] == [("silent", [3], str(ended))]
    assert main(["watch", str(ended)]) == 0
    assert mentions(capsys.readouterr().out, f"step 7, {ALERT.words}")


def test_a_webhook_that_fails_is_said_once_without_its_token(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusing_port() as port:
        sinks = Sinks(ended, f"http://127.0.0.1:{port}/hook?token=secret")
        sinks.report([ALERT, ALERT])
        sinks.close()
    said = capsys.readouterr().err
    assert said.count("cannot be reached") == 1
    assert "secret" not in said
    assert len(read_alerts(ended)) == 2


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "host", "http://"])
def test_a_webhook_is_http(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--webhook", url, "--", "true"])
    assert mentions(capsys.readouterr().err, "--webhook", "not an address")


def test_a_port_that_is_taken_is_said_and_no_more(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert Metrics().serve("127.0.0.1", port) is None
        watching = Watching(ended, Options(port=port))
        watching.look()
        watching.close()
    assert mentions(capsys.readouterr().err, "metrics cannot", f"127.0.0.1:{port}")


def test_metrics_are_served_and_other_pages_are_not(ended: Path) -> None:
    port = free_port()
    watching = Watching(ended, Options(port=port))
    try:
        assert fetch(port) == "\n"
        watching.look()
        assert 'stepscope_steps_total{rank="0"} 30' in fetch(port)
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(port, "/etc/passwd")
        refused.value.close()
    finally:
        watching.close()


def test_a_fault_of_ours_switches_the_watching_off(
    ended: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watching = Watching(ended, Options(), now=lambda: 0.0)
    monkeypatch.setattr(watching._follower, "look", lambda: 1 / 0)
    watching.look()
    watching.look()
    (line,) = capsys.readouterr().err.splitlines()
    assert mentions(line, "alerts and metrics", "off", "ZeroDivisionError")


def test_a_running_job_is_watched_and_served(tmp_path: Path) -> None:
    need("torch")
    path = script(
        tmp_path,
        "train(10**9, at_step=lambda s: sys.exit(0) if os.path.exists(sys.argv[1]) else None)",
    )
    run, stop, port = tmp_path / "run", tmp_path / "stop", free_port()
    words = ["run", "--no-diagnose", "--out", str(run), "--prometheus", str(port)]
    process = subprocess.Popen(
        stepscope(*words, "--", sys.executable, str(path), str(stop)), env=environment()
    )
    try:
        until((run / "rank-0" / "samples.jsonl").is_file)
        until(lambda: 'stepscope_step_seconds{rank="0"}' in fetch(port))
        told = subprocess.run(
            stepscope("watch", str(run), "--once"), capture_output=True, text=True, check=True
        )
        assert "Running for " in told.stdout
        assert "steps/s" in told.stdout
    finally:
        stop.touch()
        assert process.wait(LONGEST_S) == 0
