"""Pytest plugin: which tests the last run skipped and why, kept in pytest's cache.

`python -m tests.skipped` says it, one line a reason; `--ids` lists what selects them, for another
run with more at hand: `scripts/check --skipped`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

KEPT = "stepscope/skipped"
FILE = Path(".pytest_cache") / "v" / KEPT
NO_CASES = "[NOTSET]"
"""Ends the name of a test that got no cases; it has others where there are some."""


class Skips:
    """Reasons by what selects a test: a file where the whole module was skipped."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.reasons = config, dict[str, str]()

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, (tuple, list)):
            reason = " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
            self.reasons[report.nodeid.removesuffix(NO_CASES)] = reason

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)

    def pytest_sessionfinish(self) -> None:
        # Without it, as by `-p no:cacheprovider`, nothing is kept.
        if cache := getattr(self.config, "cache", None):
            cache.set(KEPT, dict(sorted(self.reasons.items())))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Skips(config))


def summary(reasons: dict[str, str]) -> str:
    """One line a reason, the most frequent first."""
    counts = Counter(reasons.values()).most_common()
    lines = [f"{count:5d}  {reason}" for reason, count in counts]
    return "\n".join([f"skipped: {len(reasons)}", *lines])


def main(*words: str) -> None:
    reasons = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    lines = reasons if words == ("--ids",) else [summary(reasons)]
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
