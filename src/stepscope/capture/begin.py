"""Called when torch has just been imported in a process of the job: chooses the run that records
it, and begins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stepscope.capture.hooks.install import begin
from stepscope.capture.own_imports import OwnImports
from stepscope.protocol.options import options_of
from stepscope.protocol.run_folder import ASIDE_FILE, ENTERED_FILE, SITE_FOLDER, read_options


def begin_one_of(runs: Sequence[str]) -> None:
    """One run records a process: the innermost, unless one around it is a trial, which sets what it
    tries and ends the job. The others are told who does."""
    options = {run: options_of(read_options(Path(run))) for run in runs}
    chosen = next((run for run in reversed(runs) if options[run].is_trial), runs[0])
    for run in runs:
        name, text = (ENTERED_FILE, "") if run == chosen else (ASIDE_FILE, chosen)
        with suppress(OSError):
            (Path(run) / SITE_FOLDER / name).write_text(text, encoding="utf-8")
    if not options[chosen].is_trial:
        begin(Path(chosen), options[chosen])
        return
    with OwnImports():
        from stepscope.capture.trial.parts import begin_parts
        from stepscope.capture.trial.session import TrialSession  # noqa: F401 - `begin` needs it
    begin_parts(begin(Path(chosen), options[chosen]))
