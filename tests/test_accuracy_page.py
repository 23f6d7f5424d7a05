"""docs/accuracy.md says what was measured."""

from __future__ import annotations

from benchmarks import accuracy


def test_the_page_is_made_of_the_results() -> None:
    assert accuracy.PAGE.read_text(encoding="utf-8") == accuracy.page()
