"""The pages of `stepscope serve` in a real browser: silent, fit for a phone and a screen reader."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.http_server import Server
from stepscope.doors.serve.pages import Pages
from stepscope.doors.serve.server import server_of
from tests.browser.reading import SIZES, faults_of
from tests.browser.tabs import Tabs
from tests.installed import need
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.report.test_html import HOSTILE
from tests.shared_data import DEMO, ROOT

need("a browser")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(ROOT / "tests" / "kept" / "run", folder / "stepscope-runs" / "first")
    shutil.copytree(ROOT / "tests" / "kept" / "run", folder / "stepscope-runs" / "again")
    running = write_run(folder / "stepscope-runs" / "second", command=["python", HOSTILE])
    add_steps(write_rank(running, 0), [row(step) for step in range(1, 40)])
    wide = write_run(folder / "stepscope-runs" / "wide")
    for rank in range(64):
        parts = {"wait_ns": 2_000_000, "backward_ns": 4_000_000}
        dur_ms = 70.0 if rank == 7 else 10.0
        rows = [row(step, dur_ms=dur_ms, **parts) for step in range(1, 40)]
        add_steps(write_rank(wide, rank, world_size=64), rows)
    (folder / "log").mkdir()
    shutil.copy(DEMO, folder / "log" / "worker0.1794937251000.pt.trace.json.gz")
    return folder


@pytest.fixture(scope="module")
def server(served: Path) -> Iterator[Server]:
    made = server_of(0, Pages(served).answer)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def opened(tabs: Tabs, server: Server, path: str, **how: Any) -> Any:
    return tabs.open(f"http://127.0.0.1:{server.port}{path}", **how)


@pytest.mark.parametrize("path", ["/", "/live?what=second", "/live?what=wide", "/nothing"])
def test_it_fits_and_a_screen_reader_can_read_it(tabs: Tabs, server: Server, path: str) -> None:
    page = opened(tabs, server, path, bypass=True)
    # The wide window is looked at on the page that has most.
    assert faults_of(page, sizes=SIZES if path == "/" else SIZES[1:]) == []
    # The browser itself says that a page is not there.
    said = [words for words in page.said if path != "/nothing" or "404" not in words]
    assert said == []


def test_one_goes_from_the_list_to_a_report_and_back(
    tabs: Tabs,
    server: Server,
) -> None:
    page = opened(tabs, server, "/")
    page.click("text=worker0.1794937251000")
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("#findings .card").count() >= 1
    page.go_back()
    assert page.locator("#runs tbody tr").count() == 4
    assert page.locator("#runs .trend circle").count() == 2
    assert page.said == []


def test_two_are_compared_by_the_form(tabs: Tabs, server: Server) -> None:
    page = opened(tabs, server, "/")
    page.select_option("select[name=a]", "first")
    page.select_option("select[name=b]", label="log/worker0.1794937251000.pt.trace.json.gz")
    page.click("#compare button[type=submit]")
    page.wait_for_url("**/compare?**")
    assert page.locator("h1").is_visible()
    assert page.said == []


def test_the_pictures_say_which_rank_a_line_is(tabs: Tabs, server: Server) -> None:
    page = opened(tabs, server, "/live?what=wide")
    value = page.locator("#picture-steps .value")
    page.wait_for_selector("#picture-steps path.line >> nth=63", state="attached")
    assert "10 to 70 ms" in value.text_content()
    # The late rank's line is the uppermost.
    page.hover("#picture-steps svg", position={"x": 200, "y": 12})
    assert value.text_content().startswith("rank 7: 70 ms at")
    page.focus("#picture-steps svg")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert value.text_content().startswith("rank 9: 10 ms at")
    assert page.locator("#picture-parts path").count() == 3
    assert page.locator("#picture-loss").is_hidden()
    for _ in range(2):
        with page.expect_response("**/series?**"):
            pass
    assert value.text_content().startswith("rank 9: 10 ms at"), "drawn anew, and still pointed at"
    assert page.said == []


def test_a_running_job_is_drawn_anew_until_it_ends(
    tabs: Tabs,
    server: Server,
    served: Path,
) -> None:
    page = opened(tabs, server, "/live?what=second")
    assert "Step 39" in page.text_content("#frame")
    run = served / "stepscope-runs" / "second"
    add_steps(run / "rank-0", [row(step) for step in range(40, 60)])
    page.wait_for_selector("#frame:has-text('Step 59')")
    assert page.said == []
