"""Options and fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# The tests' processes share the cores already; a second thread in each of them would only wait for
# one. numpy asks as it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from stepscope.capture.guard import Guard
from stepscope.pipeline import measure, recording
from stepscope.rules import judge_job as judge_job_module
from stepscope.rules import verdict
from tests.capture import jobs
from tests.measured import MeasuredOnce
from tests.quick import LEFT_BY_CUT_OFF, Quick
from tests.workers import Workers

pytest_plugins = ["tests.skipped"]

Golden = Callable[[Path, str], None]

# A busy machine is slow; that is no fault of what is tested. CI judges a change, and takes the same
# examples each time; new ones are tried wherever else the tests run. STEPSCOPE_EVERY=1 takes more.
settings.register_profile(
    "stepscope",
    max_examples=100 if os.environ.get("STEPSCOPE_EVERY") else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("stepscope")

# A test's trace is many small objects, and next to none of them garbage: python's own pace, made
# for few, is a tenth of the time. Of what is collected nothing is.
gc.set_threshold(50_000, 20, 10)
gc.disable()

# Hundreds of tests start a python of their own: what one has compiled, the next need not, however
# the tests were started.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Where a shell runs the tests in the background, signals of the keyboard are ignored, and so they
# would be in every job that a test starts; with nohup that of a terminal that closes, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what was rendered into the golden files"
    )
    parser.addoption(
        "--workers", type=int, default=1, metavar="N", help="run the tests in N forked processes"
    )
    parser.addoption("--quick", action="store_true", help="leave out tests that start a process")


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    if config.option.workers > 1:
        config.pluginmanager.register(Workers(config.option.workers))
    if config.option.quick:
        config.pluginmanager.register(Quick())
        # What a test leaves that is cut off is found while a later one runs.
        for left in LEFT_BY_CUT_OFF:
            config.addinivalue_line("filterwarnings", f"ignore::{left}")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with its golden file, or write the file under --update-golden."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: make it with pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests leave the user's caches and key alone, and are not helped by them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_process_stays() -> Iterator[None]:
    yield
    jobs.let_go()


_folders: list[Path] = []
"""Made for tests since the last one ended."""


@pytest.fixture(autouse=True, scope="session")
def folders_of_tests() -> Iterator[None]:
    make = pytest.TempPathFactory.mktemp

    def mktemp(factory: pytest.TempPathFactory, *args: Any, **kwargs: Any) -> Path:
        _folders.append(make(factory, *args, **kwargs))
        return _folders[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest.TempPathFactory, "mktemp", mktemp)
        yield


@pytest.fixture(autouse=True)
def recorder_stays_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """A recorder that meets a problem switches itself off and leaves the job alone: of such a job a
    test would see nothing that fails. So no test has one, in this process or in a job's, but those
    that plant it."""
    problems: list[str] = []
    off = Guard.off

    def noting_off(guard: Guard, problem: str | None = None) -> None:
        if guard.is_on and problem is not None:
            problems.append(problem)
        off(guard, problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Guard, "off", noting_off)
        yield
    for folder in _folders:
        written = [path for path in folder.rglob("problem*.txt") if path.is_file()]
        texts = [path.read_text(encoding="utf-8") for path in written]
        # What a test wrote there by hand has no line of the recorder.
        problems += [text for text in texts if "stepscope/capture/" in text]
    _folders.clear()
    is_planted = request.node.get_closest_marker("planted") is not None
    assert is_planted or not problems, "the recorder switched itself off:\n" + "\n".join(problems)


@pytest.fixture(scope="session")
def measured() -> MeasuredOnce:
    return MeasuredOnce(measure.measure_job, judge_job_module.judge_job)


@pytest.fixture(scope="module")
def measured_once(measured: MeasuredOnce) -> Iterator[None]:
    """The demo and the recorded traces are measured and judged once by each test process: for tests
    of what is done with the figures. Not for tests that measure the same files twice to see that it
    comes to the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "measure_job", measured.measure)
        patch.setattr(recording, "measure_job", measured.measure)
        patch.setattr(verdict, "judge_job", measured.judge)
        yield
