"""The pages of `stepscope serve` in a real browser: silent, fit for a phone and a screen reader."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.doors.serve.pages import Pages
from stepscope.doors.serve.server import Server, server_of
from tests.browser.reading import SIZES, faults_of
from tests.installed import need
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.report.test_html import HOSTILE
from tests.shared_data import DEMO, ROOT

need("a browser")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(ROOT / "tests" / "kept" / "run", folder / "stepscope-runs" / "first")
    running = write_run(folder / "stepscope-runs" / "second", command=["python", HOSTILE])
    add_steps(write_rank(running, 0), [row(step) for step in range(1, 40)])
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


def opened(
    browser: Any,
    server: Server,
    path: str,
    size: tuple[int, int] = SIZES[0],
    *,
    bypass: bool = False,
) -> Any:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, bypass_csp=bypass)
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda problem: page.said.append(str(problem)))
    page.on(
        "dialog", lambda dialog: (page.said.append(f"dialog {dialog.message}"), dialog.dismiss())
    )
    page.goto(f"http://127.0.0.1:{server.port}{path}")
    return page


@pytest.mark.parametrize("size", SIZES, ids=["desktop", "phone"])
@pytest.mark.parametrize("path", ["/", "/live?what=second", "/nothing"])
def test_it_fits_and_a_screen_reader_can_read_it(
    browser: Any,
    server: Server,
    path: str,
    size: tuple[int, int],
) -> None:
    page = opened(browser, server, path, size, bypass=True)
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert faults_of(page) == []
    # The browser itself says that a page is not there.
    said = [words for words in page.said if path != "/nothing" or "404" not in words]
    assert said == []
    page.context.close()


def test_one_goes_from_the_list_to_a_report_and_back(
    browser: Any,
    server: Server,
) -> None:
    page = opened(browser, server, "/")
    page.click("text=worker0.1794937251000")
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("#findings .card").count() >= 1
    page.go_back()
    assert page.locator("#runs tbody tr").count() == 2
    assert page.said == []
    page.context.close()


def test_two_are_compared_by_the_form(browser: Any, server: Server) -> None:
    page = opened(browser, server, "/")
    page.select_option("select[name=a]", "first")
    page.select_option("select[name=b]", label="log/worker0.1794937251000.pt.trace.json.gz")
    page.click("button[type=submit]")
    page.wait_for_url("**/compare?**")
    assert page.locator("h1").is_visible()
    assert page.said == []
    page.context.close()


def test_a_running_job_is_drawn_anew_until_it_ends(
    browser: Any,
    server: Server,
    served: Path,
) -> None:
    page = opened(browser, server, "/live?what=second")
    assert "Step 39" in page.text_content("#frame")
    run = served / "stepscope-runs" / "second"
    add_steps(run / "rank-0", [row(step) for step in range(40, 60)])
    page.wait_for_selector("#frame:has-text('Step 59')")
    assert page.said == []
    page.context.close()
