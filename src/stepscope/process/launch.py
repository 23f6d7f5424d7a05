"""A job with the capture in it: its run folder, its environment, and its run in the foreground."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.process.job import run_in_foreground
from stepscope.process.stderr import say
from stepscope.protocol.options import Options
from stepscope.protocol.run_folder import RUN_FILE, SCHEMA, SITE_FOLDER, write_json
from stepscope.protocol.secrets import masked_words

PACKAGE = Path(__file__).absolute().parents[1] / "__init__.py"
LOOK_S = 0.5
"""Between two looks at the run folder."""
SITE = """\
# Every Python of a job under `stepscope run` starts with this.
# It never lets a problem of its own reach the job.
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
    (site / "sitecustomize.py").write_text(SITE.format(init=str(PACKAGE)), encoding="utf-8")
    run_info: dict[str, Any] = {
        "schema": SCHEMA,
        "stepscope": version,
        "command": masked_words(command),
        "options": options.values,
        "started_wall_ns": time.time_ns(),
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
