"""A job's modules of any name are its own: ours neither run them nor stand in their place."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope import capture
from stepscope.capture import begin as beginning
from stepscope.capture.own_imports import OwnImports
from stepscope.process.launch import prepare
from stepscope.protocol.options import Options
from stepscope.protocol.run_folder import ASIDE_FILE, ENTERED_FILE, SITE_FOLDER
from stepscope.readers.run_folder.folder import read_run
from tests.capture.jobs import LOOP, environment, stepscope

REPORT = """
import json, sys
def told(path, **more):
    tops = sorted({name for name in sys.modules if "." not in name})
    json.dump({"modules": tops, "path": sys.path, **more}, open(path, "w"))
"""
TRAINS = """
from torch.utils.data import DataLoader, TensorDataset
batches = DataLoader(TensorDataset(torch.randn(8, 32)), batch_size=4, num_workers=1)
for epoch in range(2):
    for batch in batches:
        model(batch[0]).square().mean().backward()
        optimizer.step()
train(60, pause_s=0.03)
"""
"""Two seconds: counters are asked once a second."""
ALL = """
import importlib
ran = open(MARKS).read().split() if __import__("os").path.exists(MARKS) else []
files = {name: importlib.import_module(name).__file__ for name in NAMES}
told(OUT, ran=ran, files=files)
"""
COPY = """
import os
_path = os.path.join(os.path.dirname(os.__file__), {file!r})
exec(compile(open(_path).read(), _path, "exec"))
"""
"""What a job may have beside its script: a standard module that it brings along, changed or not."""
COPIED = ("platform", "queue", "random", "signal", "socket", "statistics", "uuid")
USES = """
ours = [
    (name, key) for name, module in list(sys.modules.items()) if name.startswith("stepscope.")
    for key, value in list(vars(module).items())
    if getattr(value, "__file__", None) and value.__file__.startswith(HERE)
]
import importlib
told(OUT, files={name: importlib.import_module(name).__file__ for name in NAMES}, ours=ours)
"""


def start(folder: Path, text: str, *, recorded: bool, **env: str) -> Any:
    """Runs a job that writes down what it saw."""
    path, out = folder / "job.py", folder / "out.json"
    path.write_text(f"OUT = {str(out)!r}\n{REPORT}{text}", encoding="utf-8")
    words = [sys.executable, str(path)]
    if recorded:
        words = stepscope("run", "--no-diagnose", "--no-alerts", "--out", str(folder / "run"))
        words += ["--", sys.executable, str(path)]
    ended = subprocess.run(
        words, env=environment(**env), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(out.read_text())


def has_file(name: str) -> bool:
    """Whether it is one of this Python's, and no built-in one, which is found before any file."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.has_location


def test_no_module_beside_the_script_is_run_or_replaced(tmp_path: Path) -> None:
    plain = start(tmp_path, LOOP + TRAINS + "told(OUT)", recorded=False)
    unseen = set(sys.stdlib_module_names) - set(plain["modules"])
    names = sorted(name for name in unseen if name.isalnum() and has_file(name))
    assert {"resource", "tracemalloc", "xml", "sqlite3"} <= set(names)
    marks = tmp_path / "marks"
    for name in names:
        text = f"open({str(marks)!r}, 'a').write(__name__ + '\\n')\n"
        (tmp_path / f"{name}.py").write_text(text)
    asked = f"NAMES, MARKS = {names!r}, {str(marks)!r}\n"
    recorded = start(tmp_path, asked + LOOP + TRAINS + ALL, recorded=True)
    assert recorded["ran"] == []
    assert recorded["files"] == {name: str(tmp_path / f"{name}.py") for name in names}
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.rows
    assert rank.samples
    new = set(recorded["modules"]) - set(plain["modules"]) - set(names)
    assert {name for name in new if not name.startswith("_")} == {"stepscope"}
    assert recorded["path"] == plain["path"]


@pytest.mark.parametrize("has_torch", [False, True])
def test_a_job_that_brings_standard_modules_along_keeps_them(
    tmp_path: Path, has_torch: bool
) -> None:
    for name in COPIED:
        (tmp_path / f"{name}.py").write_text(COPY.format(file=f"{name}.py"))
    text = f"NAMES, HERE = {COPIED!r}, {str(tmp_path)!r}\n"
    text += (LOOP + "train(5)\n" if has_torch else "") + USES
    plain = start(tmp_path, text, recorded=False)
    recorded = start(tmp_path, text, recorded=True)
    assert recorded["files"] == plain["files"]
    assert recorded["files"] == {name: str(tmp_path / f"{name}.py") for name in COPIED}
    assert recorded["ours"] == []
    if not has_torch:
        # A Python that never meets torch is as it would be.
        assert recorded == plain
    assert len(read_run(tmp_path / "run").ranks) == has_torch


@pytest.mark.parametrize("where", ["script", "PYTHONPATH", "none"])
def test_a_sitecustomize_of_the_job_is_the_jobs(tmp_path: Path, where: str) -> None:
    """Imported by Python where PYTHONPATH has it, by its name where it lies beside the script."""
    env = {}
    if where == "PYTHONPATH":
        (tmp_path / "more").mkdir()
        env = {"PYTHONPATH": str(tmp_path / "more")}
    if where != "none":
        path = tmp_path / ("more" if env else "") / "sitecustomize.py"
        path.write_text("SEEN = []\n")
    text = """
is_there = "sitecustomize" in sys.modules
try:
    import sitecustomize
    told(OUT, is_there=is_there, file=sitecustomize.__file__, seen=sitecustomize.SEEN)
except ImportError as problem:
    told(OUT, is_there=is_there, problem=str(problem))
"""
    plain = start(tmp_path, text, recorded=False, **env)
    assert start(tmp_path, text, recorded=True, **env) == plain
    assert ("problem" in plain) == (where == "none")


def test_a_run_inside_of_a_run_records_the_job_once(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(LOOP + "train(10)\nprint('done')\n")
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    ended = subprocess.run(
        [
            *stepscope("run", "--no-diagnose", "--no-alerts", "--out", str(outer), "--"),
            *stepscope("run", "--no-diagnose", "--no-alerts", "--out", str(inner), "--"),
            *(sys.executable, str(tmp_path / "job.py")),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert [len(read_run(folder).ranks) for folder in (outer, inner)] == [0, 1]
    (note,) = read_run(outer).notes
    assert note.endswith(str(inner))


@pytest.mark.parametrize("is_trial", [False, True])
def test_a_trial_around_a_run_is_the_one_that_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trial: bool
) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    prepare(inner, ["job"], Options(), "1")
    prepare(outer, ["job"], Options(max_steps=5) if is_trial else Options(), "1")
    begun = []
    monkeypatch.setattr(beginning, "begin", lambda run, _: begun.append(run))
    monkeypatch.setattr("stepscope.capture.trial.parts.begin_parts", lambda _: None)
    beginning.begin_one_of([str(inner), str(outer)])
    chosen, other = (outer, inner) if is_trial else (inner, outer)
    assert begun == [chosen]
    assert (chosen / SITE_FOLDER / ENTERED_FILE).exists()
    assert (other / SITE_FOLDER / ASIDE_FILE).read_text() == str(chosen)


def test_a_thread_of_the_job_finds_its_own_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    (tmp_path / "sched.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("sched", "tabnanny"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = []
    with OwnImports():
        import tabnanny

        thread = threading.Thread(target=lambda: found.append(importlib.util.find_spec("sched")))
        thread.start()
        thread.join()
    assert tabnanny.__file__ is not None
    assert "tabnanny" not in sys.modules
    assert found[0] is not None
    assert found[0].origin == str(tmp_path / "sched.py")
    with OwnImports():
        # What was imported before is not imported twice.
        assert sys.modules["tabnanny"] is tabnanny


LATE = {"stepscope.capture.begin", "stepscope.capture.own_imports", "sitecustomize"}
"""What hooks a process up, and what finds the next sitecustomize."""


@pytest.mark.parametrize(
    "path", sorted(Path(capture.__file__).parent.rglob("*.py")), ids=lambda path: path.stem
)
def test_nothing_is_imported_once_the_job_runs(path: Path) -> None:
    """A name that is imported inside a function, later, may be the job's by then."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        late = [
            node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        for node in late:
            names = (
                [str(node.module)]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            # Those of a trial are in sys.modules by then: begin.py has imported them.
            left = {name for name in names if not name.startswith("stepscope.capture.trial.")}
            assert left <= LATE, f"{path}:{node.lineno}"


def test_profile_in_the_code_runs_no_module_beside_the_script(tmp_path: Path) -> None:
    for name in ("resource", "statistics", "platform"):
        (tmp_path / f"{name}.py").write_text("RAN = True\n")
    text = """
import stepscope
stepscope.profile
names = ("resource", "statistics", "platform")
ran = [name for name in names if name in sys.modules]
import platform, resource, statistics
told(OUT, ran=ran, files=[module.__file__ for module in (platform, resource, statistics)])
"""
    plain = start(tmp_path, text, recorded=False)
    assert plain["ran"] == []
    assert [Path(file).parent for file in plain["files"]] == [tmp_path] * 3
