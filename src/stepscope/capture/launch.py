"""Starts the job with the capture in it, passes signals on, and gives back its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.capture.environment import masked_words
from stepscope.runfolder import RUN_FILE, SCHEMA, SITE_FOLDER, write_json

PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1")
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
            from stepscope.capture.site import start
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
    """Makes the run folder; returns what RUN/run.json has by now. `settings` are laid over the job's own."""
    import stepscope

    site = run / SITE_FOLDER
    site.mkdir(parents=True, exist_ok=True)
    assert stepscope.__file__ is not None
    (site / "sitecustomize.py").write_text(SITE.format(init=os.path.abspath(stepscope.__file__)), encoding="utf-8")
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "stepscope": version,
        "command": masked_words(command),
        "options": dict(options),
        "started_wall_ns": time.time_ns(),
        **({"settings": dict(settings)} if settings else {}),
    }
    write_json(run / RUN_FILE, told)
    return told


def environment(run: Path | None) -> dict[str, str]:
    """The job's environment: ours, and the folder that every Python looks into first."""
    if run is None:
        return dict(os.environ)
    site = str((run / SITE_FOLDER).absolute())
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": site if not before else site + os.pathsep + before}


def launch(
    run: Path | None,
    command: Sequence[str],
    told: dict[str, Any],
    *,
    meanwhile: Callable[[], object] | None = None,
    asked: Callable[[], object] | None = None,
) -> int:
    """Runs the command to its end and returns its exit code, 128 + N where signal N ended it.

    Ctrl-C reaches the job by itself, for it is in our process group; we only wait on. SIGUSR2 calls `asked`; `meanwhile` is
    called now and then.
    """
    process = subprocess.Popen(list(command), env=environment(run))
    handlers: dict[int, Any] = {signal.SIGINT: lambda *_: None}
    for name in PASSED_ON:
        if hasattr(signal, name):
            handlers[getattr(signal, name)] = lambda got, _: process.send_signal(got)
    if asked is not None and hasattr(signal, "SIGUSR2"):
        handlers[signal.SIGUSR2] = lambda *_: asked()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = _wait(process, meanwhile)
    finally:
        for number, was in before.items():
            signal.signal(number, was)
    code = 128 - code if code < 0 else code
    if run is not None:
        try:
            write_json(run / RUN_FILE, {**told, "ended_wall_ns": time.time_ns(), "exit_code": code})
        except OSError as problem:
            sys.stderr.write(f"stepscope: {str(run / RUN_FILE)!r} could not be written: {problem.strerror}\n")
    return code


def _wait(process: subprocess.Popen[bytes], meanwhile: Callable[[], object] | None) -> int:
    while True:
        try:
            return process.wait(None if meanwhile is None else LOOK_S)
        except subprocess.TimeoutExpired:
            assert meanwhile is not None
            meanwhile()
