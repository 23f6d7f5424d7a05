"""CUPTI is asked to leave only where it can, and only in the process that asked."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.capture import site
from stepscope.capture.recording import cupti
from stepscope.capture.recording.cupti import CUPTI_MARK, CUPTI_VARIABLE
from stepscope.capture.site import forget_parents


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set, then deleted: so that whatever the test sets is gone afterwards.
    for name in (CUPTI_VARIABLE, CUPTI_MARK):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(cupti, "_asked", [])


def test_the_file_that_begins_a_process_has_the_same_names() -> None:
    assert (site.CUPTI_VARIABLE, site.CUPTI_MARK) == (CUPTI_VARIABLE, CUPTI_MARK)


def torch_of(version: str | None) -> Any:
    return SimpleNamespace(version=SimpleNamespace(cuda=version))


@pytest.mark.parametrize(
    ("version", "is_asked"), [("13.0", True), ("12.6", True), ("12.4", False), (None, False)]
)
def test_cupti_leaves_from_cuda_12_6_on(version: str | None, is_asked: bool) -> None:
    cupti.leave_cupti_after(torch_of(version))
    assert (os.environ.get(CUPTI_VARIABLE) == "1") is is_asked


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUPTI_VARIABLE, "0")
    cupti.leave_cupti_after(torch_of("13.0"))
    forget_parents()
    assert os.environ[CUPTI_VARIABLE] == "0"


def test_a_process_that_the_job_starts_takes_our_setting_out() -> None:
    cupti.leave_cupti_after(torch_of("13.0"))
    forget_parents()
    assert CUPTI_VARIABLE not in os.environ


def test_at_the_end_cuda_is_called_where_cupti_was_asked_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    stream = SimpleNamespace(query=lambda: calls.append(1))
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: stream))
    monkeypatch.setattr(cupti, "sys", SimpleNamespace(modules={"torch": torch}))
    cupti.let_cupti_leave()
    assert not calls
    cupti.leave_cupti_after(torch_of("13.0"))
    cupti.let_cupti_leave()
    assert len(calls) == cupti.CALLS
