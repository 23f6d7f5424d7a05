"""The jobs of a `board.py` like ../shared/board's, timed in turns as our later sets are.

    BOARD=../shared/board/board.py python -m lab.gains --set given --out DIR [--jobs A,B]

Its jobs are dictionaries of knobs; what the timing asks of them are our settings' names.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.gains.job import Settings, TimedJob
from lab.measure import Run

FILE = "BOARD"
SAMPLES = "_per"  # how many times the base's samples a changed step takes


@dataclass(frozen=True, kw_only=True)
class GivenSettings(Settings):
    knobs: Mapping[str, Any]

    def said(self) -> dict[str, Any]:
        return dict(self.knobs)


@dataclass(frozen=True, kw_only=True)
class GivenRun(Run):
    settings: Callable[[], None]

    def enter(self) -> None:
        self.settings()


@dataclass(frozen=True, kw_only=True)
class GivenJob(TimedJob):
    make: Callable[[dict[str, Any]], Any]

    def changed(self, code: str) -> Settings:
        return _settings({**self.base.said(), **self.changes[code]})

    def build(self, settings: Settings) -> Run:
        # Its datasets hold functions, which only a forked worker has.
        multiprocessing.set_start_method("fork", force=True)
        step = self.make(settings.said())
        return GivenRun(step=step, settings=step.settings)


def given_jobs() -> Mapping[str, GivenJob]:
    """Of the file that the environment names; none where it names none."""
    path = os.environ.get(FILE)
    if not path:
        return {}
    spec = importlib.util.spec_from_file_location("given_board", Path(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: _job(*given) for name, given in module.JOBS.items()}


def _job(make: Any, changes: Mapping[str, Mapping[str, Any]]) -> GivenJob:
    return GivenJob(
        make=make,
        base=_settings(make.base),
        changes={
            code: {knob: value for knob, value in change.items() if knob != SAMPLES}
            for code, change in changes.items()
        },
        samples={code: change.get(SAMPLES, 1) for code, change in changes.items()},
    )


def _settings(knobs: Mapping[str, Any]) -> Settings:
    return GivenSettings(
        knobs=dict(knobs),
        batch=knobs["batch"],
        compile=knobs.get("compile"),
        workers=knobs.get("loader"),
        save_every=knobs.get("save") or 0,
    )
