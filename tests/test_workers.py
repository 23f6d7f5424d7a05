"""How the tests themselves are run: by forked workers, and without processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.shared_data import ROOT
from tests.waiting import LONGEST_S

CONFTEST = """
from tests.quick import Quick
from tests.workers import Workers
def pytest_configure(config):
    config.pluginmanager.register({plugin})
"""
TESTS = """
import multiprocessing, os, signal, subprocess, sys, threading, time
import pytest

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")

@pytest.mark.parametrize("number", range(20))
def test_passes(number, shared):
    print("told")

def test_fails():
    os.write(1, b"written")
    assert [1] == [2]

def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass

def test_skips():
    pytest.skip("why")

def test_starts():
    subprocess.run([sys.executable, "-c", ""], check=False)

def test_waits_for_a_thread_that_starts():
    done = threading.Event()
    def start():
        try:
            subprocess.run([sys.executable, "-c", ""], check=False)
        except PermissionError:
            return
        done.set()
    threading.Thread(target=start).start()
    done.wait()

def test_is_long():
    begun = time.process_time()
    while time.process_time() < 0.2 + begun:
        pass

def test_spawns():
    try:
        multiprocessing.get_context("spawn").Process(target=print).start()
    except BaseException:
        pass
"""


def outcomes(folder: Path, plugin: str, *more: str) -> dict[str, tuple[str, str]]:
    """By test: what became of it, and all that is told of it."""
    (folder / "conftest.py").write_text(CONFTEST.format(plugin=plugin))
    for name in ("test_one.py", "test_two.py"):
        (folder / name).write_text(TESTS)
    words = ["-q", "-p", "no:hypothesispytest", "-p", "no:anyio"]
    words += ["--rootdir", str(folder), "-c", os.devnull, "--import-mode=importlib"]
    words += ["--junitxml", str(folder / "out.xml"), str(folder), *more]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    python = [sys.executable, "-m", "pytest"]
    subprocess.run([*python, *words], env=env, capture_output=True, timeout=LONGEST_S, check=False)
    told = {}
    for case in ElementTree.parse(folder / "out.xml").iter("testcase"):  # noqa: S314
        (became,) = [each.tag for each in case if not each.tag.startswith("system-")] or ["passed"]
        text = "".join(f"{each.get('message')} {each.text}" for each in case)
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        assert name not in told, "each is run once"
        told[name] = became, text
    return told


def test_workers_run_each_test_once_and_outlive_one_that_is_killed(tmp_path: Path) -> None:
    told = outcomes(tmp_path, "Workers(3)")
    for file in ("test_one", "test_two"):
        assert all(told[f"{file}.test_passes[{number}]"][0] == "passed" for number in range(20))
        for name in ("after", "starts", "spawns", "waits_for_a_thread_that_starts"):
            assert told[f"{file}.test_{name}"][0] == "passed"
        assert told[f"{file}.test_skips"][0] == "skipped"
        became, text = told[f"{file}.test_fails"]
        assert became == "failure"
        assert "assert [1] == [2]" in text
        assert "written" in text, "each worker keeps its own output"
        became, text = told[f"{file}.test_is_killed"]
        assert became == "failure"
        assert "status -9" in text
    assert len(told) == 2 * 28

    quick = outcomes(tmp_path, "Quick()", "-k", "not killed")
    left_out = {name.partition(".")[2] for name in told if "killed" not in name} - {
        name.partition(".")[2] for name in quick
    }
    # One that nobody waited for may be noticed, or not.
    left_out.discard("test_spawns")
    assert left_out == {"test_is_long", "test_starts", "test_waits_for_a_thread_that_starts"}


def test_quick_leaves_out_what_starts_a_process_even_where_that_is_caught(tmp_path: Path) -> None:
    told = outcomes(tmp_path, "Quick()", "-k", "not killed")
    left_out = {name for name, (_, text) in told.items() if "starts a process" in text}
    starts = {"test_starts", "test_spawns", "test_waits_for_a_thread_that_starts"}
    assert left_out == {f"{file}.{name}" for file in ("test_one", "test_two") for name in starts}
    assert told["test_one.test_passes[0]"][0] == "passed"
