"""One browser for all pages: Playwright runs once in a process, and a page's tab is used again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.tabs import Tabs
from tests.installed import absent, find_browser, package
from tests.quick import LEFT_OUT


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.config.getoption("quick"):
        # Its driver, once refused, is of no more use to the tests that follow.
        absent(LEFT_OUT)
    playwright = package("playwright.sync_api", "a browser")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def tabs(browser: Any) -> Tabs:
    return Tabs(browser)
