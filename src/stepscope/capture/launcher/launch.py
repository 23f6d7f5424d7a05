"""Starts the job with the capture in it, passes signals on, and gives back its exit code."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from stepscope.capture.describe.environment import masked_words
from stepscope.capture.launcher.signals import Relay
from stepscope.capture.launcher.stderr import say
from stepscope.capture.launcher.watchdog import Watchdog
from stepscope.runfolder import RUN_FILE, SCHEMA, SITE_FOLDER, write_json

LOOK_S = 0.5
"""Between two looks at the run folder."""
SITE = """\
# Every Python of a job under `stepscope run` starts with this. It never lets a problem of its own reach the job.
import sys

def _start():
    import os
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.version_info >= (3, 10):
        try:
            import importlib.util
            if importlib.util.find_spec("stepscope") is None:
                spec = importlib.util.spec_from_file_location(
                    "stepscope", {init!r}, submodule_search_locations=[os.path.dirname({init!r})])
                module = importlib.util.module_from_spec(spec)
                sys.modules["stepscope"] = module
                spec.loader.exec_module(module)
            from stepscope.capture.launcher.site import start
            start(os.path.dirname(here))
        except Exception:
            pass
    return here

def _next(here):
    # The machine may have a sitecustomize of its own, which ours hides.
    import importlib.machinery
    import os
    rest = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        import importlib.util
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

_next(_start())
"""


def prepare(
    run: Path, command: Sequence[str], options: Mapping[str, Any], version: str, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Makes the run folder; returns what RUN/run.json has by now.

    `settings` are applied on top of the job's own.
    """
    import stepscope

    site = run / SITE_FOLDER
    site.mkdir(parents=True, exist_ok=True)
    assert stepscope.__file__ is not None
    (site / "sitecustomize.py").write_text(SITE.format(init=os.path.abspath(stepscope.__file__)), encoding="utf-8")
    run_info: dict[str, Any] = {
        "schema": SCHEMA,
        "stepscope": version,
        "command": masked_words(command),
        "options": dict(options),
        "started_wall_ns": time.time_ns(),
        **({"settings": dict(settings)} if settings else {}),
    }
    write_json(run / RUN_FILE, run_info)
    return run_info


def environment(run: Path | None) -> dict[str, str]:
    """The job's environment: ours, and the folder that every Python looks into first."""
    if run is None:
        return dict(os.environ)
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": _site(run) if not before else _site(run) + os.pathsep + before}


def _site(run: Path) -> str:
    return str((run / SITE_FOLDER).absolute())


def launch(
    run: Path | None,
    command: Sequence[str],
    run_info: dict[str, Any],
    *,
    meanwhile: Callable[[], object] | None = None,
    on_usr2: Callable[[], object] | None = None,
) -> int:
    """Runs the command to its end and returns its exit code, 128 + N where signal N ended it.

    The job is in our process group, so that a terminal is its terminal; signals that we alone get
    are passed on. SIGUSR2 calls `on_usr2`; `meanwhile` is called now and then.
    """
    with closing(Watchdog("" if run is None else _site(run), is_job_ours=False)) as watchdog:
        relay = Relay(watchdog, on_usr2)
        with relay:
            process = subprocess.Popen(list(command), env=environment(run))
            watchdog.watch(process)
            relay.attach(process)
            code = _wait(process, meanwhile)
    code = 128 - code if code < 0 else code
    if run is not None:
        try:
            write_json(run / RUN_FILE, {**run_info, "ended_wall_ns": time.time_ns(), "exit_code": code})
        except OSError as problem:
            say(f"{str(run / RUN_FILE)!r} could not be written: {problem.strerror}")
    return code


def _wait(process: subprocess.Popen[bytes], meanwhile: Callable[[], object] | None) -> int:
    while True:
        try:
            return process.wait(None if meanwhile is None else LOOK_S)
        except subprocess.TimeoutExpired:
            assert meanwhile is not None
            meanwhile()
