"""Options and fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Golden = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what was rendered into the golden files")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with its golden file, or write the file under --update-golden."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: make it with pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return check
