"""A job with the capture in it: its run folder, its environment, and its run in the foreground."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.process.commit import commit_of
from stepscope.process.job import run_in_foreground
from stepscope.process.stderr import say
from stepscope.protocol.made_here import marked
from stepscope.protocol.options import Options
from stepscope.protocol.run_folder import RUN_FILE, SCHEMA, SITE_FOLDER, write_json
from stepscope.protocol.secrets import masked_words

PACKAGE = Path(__file__).absolute().parents[1] / "__init__.py"
LOOK_S = 0.5
"""Seconds between two looks at the run folder."""
SITE = PACKAGE.parent / "capture" / "site.py"
"""What every Python of a job starts with, but for its last lines."""


def prepare(
    run: Path,
    command: Sequence[str],
    options: Options,
    version: str,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Makes the run folder; returns what RUN/run.json has by now. `settings` are applied on top of
    the job's own."""
    site = run / SITE_FOLDER
    site.mkdir(parents=True, exist_ok=True)
    calls = f"\n\nstart(__file__, {str(PACKAGE)!r})\ngive_way()\n"
    text = SITE.read_text(encoding="utf-8") + calls
    (site / "sitecustomize.py").write_text(text, encoding="utf-8")
    commit = commit_of(Path.cwd())
    run_info: dict[str, Any] = {
        "schema": SCHEMA,
        "stepscope": version,
        "command": masked_words(command),
        **marked(run, masked_words(command)),
        "options": options.values,
        "started_wall_ns": time.time_ns(),
        **({"commit": commit} if commit else {}),
        **({"settings": dict(settings)} if settings else {}),
    }
    write_json(run / RUN_FILE, run_info)
    return run_info


def environment(run: Path | None, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The job's environment: what is given, and the folder that every Python looks into first."""
    if run is None:
        return dict(given)
    site = str((run / SITE_FOLDER).absolute())
    before = given.get("PYTHONPATH")
    return {**given, "PYTHONPATH": site if not before else site + os.pathsep + before}


def finish(run: Path, started: Mapping[str, Any], exit_code: int) -> None:
    """Writes down how the job ended."""
    write_json(run / RUN_FILE, {**started, "ended_wall_ns": time.time_ns(), "exit_code": exit_code})


def launch(
    run: Path | None,
    command: Sequence[str],
    run_info: Mapping[str, Any],
    *,
    meanwhile: Callable[[], object] | None = None,
    on_usr2: Callable[[], object] | None = None,
) -> int:
    """Runs the command in the foreground and returns its exit code, which the run folder gets
    too."""
    code = run_in_foreground(
        command, environment(run), meanwhile=meanwhile, look_s=LOOK_S, on_usr2=on_usr2
    )
    if run is not None:
        try:
            finish(run, run_info, code)
        except OSError as problem:
            say(f"{str(run / RUN_FILE)!r} could not be written: {problem.strerror}")
    return code
