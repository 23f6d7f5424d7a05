"""A job that is forked sees what one sees that is started, and ends alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shutil import rmtree

from tests import forked_jobs
from tests.capture.jobs import LIGHT, environment, run_light, run_to_end, script
from tests.installed import need

need("torch")

SEES = """
import atexit, json, os, signal
before = sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "stepscope"))
"""
TELLS = """
atexit.register(print, "at the end")
print(json.dumps({
    "before": before, "argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__,
    "folder": os.getcwd(), "umask": os.umask(0o22), "session": os.getsid(0),
    "environment": {k: v for k, v in sorted(os.environ.items()) if k != "STEPSCOPE_JOB"},
    "handlers": {n: str(signal.getsignal(n)).partition(" at ")[0] for n in signal.valid_signals()},
    "finders": [each.__name__ for each in sys.meta_path if isinstance(each, type)],
    "torch": [torch.__file__, torch.__spec__.name, torch.__spec__.origin],
    "is main": sys.modules["__main__"].__dict__ is globals(),
    "files": sorted(os.listdir("/dev/fd")),
    "hooked": torch.optim.Optimizer.profile_hook_step.__module__,
}))
"""


def test_a_forked_job_is_as_a_started_one(tmp_path: Path) -> None:
    told_to = TELLS + "raise ValueError('planted')"
    path, run = script(tmp_path, told_to, before="import sys" + SEES + LIGHT), tmp_path / "run"
    words = ["run", "--no-diagnose", "--out", str(run), "--", sys.executable, str(path), "word"]
    where = environment(STEPSCOPE_TOLD="given")
    started = run_to_end(*words, env=where, cwd=tmp_path)
    rmtree(run)
    forked = run_light(*words, env=where, cwd=tmp_path)
    assert (forked.returncode, forked.stderr) == (started.returncode, started.stderr)
    assert started.returncode == 1
    (told, last), (same, and_last) = (
        each.stdout.decode().splitlines() for each in (started, forked)
    )
    assert json.loads(same) == json.loads(told)
    assert and_last == last == "at the end"
    assert json.loads(told)["environment"]["STEPSCOPE_TOLD"] == "given"


def test_a_forked_job_ends_with_the_code_that_it_asks_for() -> None:
    assert forked_jobs._code_of(lambda: sys.exit(3)) == 3
    assert forked_jobs._code_of(sys.exit) == forked_jobs._code_of(lambda: None) == 0


def test_what_a_run_imports_after_its_job_the_next_finds_loaded(tmp_path: Path) -> None:
    """But its job does not, nor does one that comes first."""
    imports = forked_jobs.Imports()
    name = "stepscope.report.html.charts"
    others = {each: module for each, module in sys.modules.items() if each in imports.loaded}
    try:
        sys.modules.pop(name, None)
        imports.loaded.discard(name)
        imports.make([], [name])
        assert name in imports.after
        assert name not in sys.modules
        imports.job_begins()
        assert sys.modules[name] is imports.after[name]
        sys.modules[name] = sys
        imports.job_begins()
        assert sys.modules[name] is sys, "it was imported by the run itself"
    finally:
        sys.modules.update(others)
