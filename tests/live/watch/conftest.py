"""What all tests of `watch` have."""

from __future__ import annotations

import pytest

from stepscope.live.watch import poster


@pytest.fixture(autouse=True)
def patient_poster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver is a thread of the test's own process, which a busy machine may keep from its
    core for longer than a user is kept waiting."""
    monkeypatch.setattr(poster, "POST_S", 120.0)
