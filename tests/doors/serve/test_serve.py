"""`stepscope serve` over real HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from stepscope.cli.main import main
from stepscope.core.codec import encode
from stepscope.core.experiments.experiment import PROVEN, UNSETTLED, Interval, Predicted, Verified
from stepscope.core.experiments.fixed import KEPT, REVERTED, Attempt, Fixed
from stepscope.core.http_server import Server
from stepscope.doors.serve.catalogue import catalogue_of
from stepscope.doors.serve.pages import Pages
from stepscope.doors.serve.report import RecordedFiles, index_page
from stepscope.doors.serve.server import is_own_host, server_of
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.shared_data import ROOT, SMALL
from tests.waiting import LONGEST_S
from tests.wording import mentions

HOSTILE = "<img src=x onerror=alert(1)>.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    served = tmp_path / "served"
    shutil.copytree(ROOT / "tests" / "kept" / "run", served / "stepscope-runs" / "first")
    running = write_run(served / "stepscope-runs" / "second")
    add_steps(write_rank(running, 0), [row(step) for step in range(1, 40)])
    logs = served / "log" / "plugins" / "profile" / "x"
    logs.mkdir(parents=True)
    for stamp in (1794937251000, 1794937252000):
        shutil.copy(SMALL, logs / f"worker0.{stamp}.pt.trace.json.gz")
    (served / HOSTILE).write_text("{}")
    (tmp_path / "secret.json").write_text('{"traceEvents": []}')
    (served / "link.json").symlink_to(tmp_path / "secret.json")
    (served / "up").symlink_to(tmp_path)
    return served


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    made = server_of(0, Pages(folder).answer)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def got(
    server: Server, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def written(folder: Path) -> dict[str, int]:
    return {
        str(path): path.lstat().st_mtime_ns for path in folder.rglob("*") if not path.is_symlink()
    }


def test_it_lists_runs_and_recordings(server: Server, folder: Path) -> None:
    before = written(folder)
    status, text, headers = got(server, "/")
    assert status == 200
    for words in ("first", "second", "Compute-bound", "python train.py", "follow"):
        assert words in text
    assert "log/plugins/profile/x" in text
    assert "frame-ancestors" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src &#39;none&#39;" in text
    assert HOSTILE not in text
    assert "&lt;img src=x" in text
    assert written(folder) == before


def test_the_list_has_what_to_do_first_and_how_a_command_has_come_along(
    server: Server, folder: Path
) -> None:
    runs = folder / "stepscope-runs"
    kept = json.loads((runs / "first" / "diagnosis.json").read_text())
    told = json.loads((runs / "first" / "run.json").read_text())
    for number, commit in enumerate(("a" * 40, "b" * 40)):
        again = runs / f"again-{number}"
        again.mkdir()
        command = {"command": ["python", "<b>.py"], "commit": commit}
        (again / "run.json").write_text(json.dumps(told | command))
        kept["step"]["ms"] = 40.0 - 10 * number
        (again / "diagnosis.json").write_text(json.dumps(kept))
    status, text, _ = got(server, "/")
    assert status == 200
    code = kept["findings"][0]["code"]
    assert f"<b>{code}</b>" in text
    assert mentions(text, "not tried", "commit aaaaaaaa", "Step time of 2")
    assert text.count("<circle") == 2
    assert 'class="part-compute"' in text
    assert "<b>.py" not in text
    _, alone, _ = got(server, "/?command=" + quote("python <b>.py"))
    assert mentions(alone, "2 of 4 runs", "again-0", "40.0 ms")
    assert 'href="/report?what=first"' not in alone
    _, none, _ = got(server, "/?command=other")
    assert mentions(none, "0 of 4 runs", "All of them")


def test_what_was_proven_stands_with_the_finding(server: Server, folder: Path) -> None:
    runs = folder / "stepscope-runs"
    told = json.loads((runs / "first" / "run.json").read_text())
    code = json.loads((runs / "first" / "diagnosis.json").read_text())["findings"][0]["code"]
    speedup = Interval(value=1.5, low=1.4, high=1.6, level=0.95)
    for outcome, verdict, expected in (
        (KEPT, PROVEN, "proven 1.50x"),
        (REVERTED, UNSETTLED, "tried: not proven 1.50x"),
    ):
        attempt = Attempt(
            code=code, summary="", action="", outcome=outcome, why="",
            predicted=Predicted(value=2.0),
            verified=Verified(verdict=verdict, because="", speedup=speedup),
        )  # fmt: skip
        trials = runs / "fix"
        shutil.copytree(runs / "second", trials / "01-verify", dirs_exist_ok=True)
        made = encode(Fixed(command=tuple(told["command"]), attempts=(attempt,)))
        (trials / "fix.json").write_text(made)
        assert expected in got(server, "/")[1]


def test_it_opens_a_report_and_writes_nothing(server: Server, folder: Path) -> None:
    before = written(folder)
    status, text, _ = got(server, "/report?what=first")
    assert status == 200
    assert "python train.py" in text
    assert 'id="findings"' in text
    assert got(server, "/report?what=first")[1] == text
    status, text, _ = got(server, "/report?what=" + quote("log/plugins/profile/x"))
    assert status == 200
    assert "several moments" in text
    assert written(folder) == before


def test_it_compares_two(server: Server) -> None:
    what = quote("log/plugins/profile/x/worker0.1794937251000.pt.trace.json.gz")
    status, text, _ = got(server, f"/compare?a={what}&b=first")
    assert status == 200
    assert "stepscope compare" in text


def test_runs_go_by_the_names_that_commands_take(server: Server, folder: Path) -> None:
    """`last`, `last~1`, a tag: as in `stepscope compare last~1 last`."""
    runs = folder / "stepscope-runs"
    assert main(["runs", "--in", str(runs), "tag", "main", str(runs / "first")]) == 0
    by_name = got(server, "/report?what=first")
    assert by_name[0] == 200
    assert got(server, "/report?what=main")[1] == by_name[1]
    assert got(server, "/report?what=last~1")[1] == by_name[1]
    assert "Step 39" in got(server, "/live?what=last")[1]
    status, text, _ = got(server, "/compare?a=last~1&b=main")
    assert status == 200
    assert "first" in text, "the page says which run that is"
    for name in ("last~2", "last~999999999", "last~", "last~-1", "Last"):
        assert got(server, f"/report?what={name}")[0] == 404


def test_it_follows_a_run(server: Server, folder: Path) -> None:
    status, text, _ = got(server, "/live?what=second")
    assert status == 200
    assert "Step 39" in text
    status, text, headers = got(server, "/frame?what=second")
    assert headers["X-Stepscope-Ended"] == "no"
    assert "<html" not in text
    rank = folder / "stepscope-runs" / "second" / "rank-0"
    add_steps(rank, [row(step) for step in range(40, 50)])
    assert "Step 49" in got(server, "/frame?what=second")[1]
    assert got(server, "/frame?what=first")[2]["X-Stepscope-Ended"] == "yes"


@pytest.mark.parametrize(
    "what",
    [
        "../secret.json",
        "/etc/passwd",
        "log/../../secret.json",
        "..%2f..%2fsecret.json",
        "link.json",
        "up/secret.json",
        "stepscope-runs/first/run.json",
        "",
        "x" * 9000,
        "first\x00",
        "%ff%fe",
        "<script>alert(1)</script>",
    ],
)
def test_what_is_not_listed_is_not_opened(server: Server, what: str) -> None:
    for address in ("/report?what=", "/live?what=", "/frame?what=", "/compare?a=first&b="):
        status, text, _ = got(server, address + quote(what, safe="%"))
        assert status == 404, address
        assert "<script>alert" not in text
        assert "root:" not in text


@pytest.mark.parametrize(
    "path", ["/../secret.json", "/etc/passwd", "//evil/", "/report/../../x", "/run.json", "/%2e%2e"]
)
def test_no_other_address_is_answered(server: Server, path: str) -> None:
    assert got(server, path)[0] == 404


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}"],
)
def test_a_name_of_somebody_else_gets_nothing(server: Server, host: str) -> None:
    status, text, _ = got(server, "/", Host=host.format(port=server.port))
    assert status == 403
    assert "first" not in text


def test_localhost_is_ours_and_another_site_is_not(server: Server) -> None:
    assert got(server, "/", Host=f"localhost:{server.port}")[0] == 200
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        assert got(server, "/", **{"Sec-Fetch-Site": site})[0] == status
    assert not is_own_host(None, 1)
    assert not is_own_host(["127.0.0.1:1", "127.0.0.1:1"], 1)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_get_is_answered(server: Server, method: str) -> None:
    assert got(server, "/", method)[0] == 501


def test_head_has_no_body(server: Server) -> None:
    status, text, headers = got(server, "/", "HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 100


def test_it_listens_to_this_machine_alone(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_what_cannot_be_read_is_a_sentence(server: Server) -> None:
    status, text, _ = got(server, "/report?what=" + quote(HOSTILE))
    assert status in (200, 422)
    assert "<img src=x" not in text
    assert "Traceback" not in text


def test_the_folder_of_a_run_is_served_as_that_run(folder: Path) -> None:
    run = folder / "stepscope-runs" / "first"
    assert [entry.name for entry in catalogue_of(run).runs] == ["first"]
    names = [entry.name for entry in catalogue_of(folder / "stepscope-runs").runs]
    assert sorted(names) == ["first", "second"]


def test_mistakes_are_sentences(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path / "nothing")]) == 2
    assert "no folder" in capsys.readouterr().err
    assert main(["serve", str(tmp_path), "--port", str(server.port)]) == 2
    assert "Take another --port" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "--port", "99999"])


def test_the_served_folders_own_recordings_have_a_name() -> None:
    own = RecordedFiles(name=".", num_files=2, size_bytes=9, wall_ns=0)
    text = index_page("log", [], [own, replace(own, name="a.json")], 0, 10**9)
    assert text.count("all in this") == 3
