"""Applies a trial's settings on top of the job's own, and counts on how many objects each took
effect.

A setting that cannot be applied is noted with its reason, and the job goes on as it would have
without: nothing raised here is ever seen by the job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.trial.applied import Applied
from stepscope.capture.trial.apply_flags import Flags
from stepscope.capture.trial.apply_loader import apply_to_loaders
from stepscope.capture.trial.apply_model import apply_to_models
from stepscope.capture.trial.apply_optimizer import apply_to_optimizers
from stepscope.capture.trial.session import TrialSession

Apply = Callable[[Guard, Any, Applied], None]
APPLIERS: tuple[Apply, ...] = (apply_to_loaders, apply_to_optimizers, apply_to_models)


def apply(
    session: TrialSession, settings: Mapping[str, Any], raised: Collection[str] = ()
) -> Applied:
    """Hooks up what the settings need. torch is imported already, and the job has nothing of it
    yet. Those in `raised` are left where the job has as much."""
    torch = sys.modules["torch"]
    applied = Applied(settings, raised)
    flags = Flags(session, torch, applied)
    for apply_part in (*APPLIERS, flags.apply):
        try:
            apply_part(session.guard, torch, applied)
        except Exception as problem:  # noqa: BLE001 - a part of the boundary: one kind of setting fails, the others go on
            applied.failed_all(problem)
    session.listen(_AppliedWriter(applied, flags))
    return applied


class _AppliedWriter:
    """Settles the flags at the first step, and writes the counts then and at the end."""

    def __init__(self, applied: Applied, flags: Flags) -> None:
        self._applied, self._flags = applied, flags
        self._folder: Path | None = None

    def began(self, folder: Path) -> None:
        self._folder = folder
        self._flags.settle()
        self._applied.write(folder)

    def stepped(self, step: int) -> None:
        pass

    def ended(self) -> None:
        if self._folder is not None:
            self._applied.write(self._folder)
