"""Whatever happens to the capture, the job goes on; whatever happens to the job, what was recorded
stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.jobs import environment, record, script, stepscope
from tests.installed import need
from tests.waiting import LONGEST_S, until
from tests.wording import mentions

need("torch")

WINDOW = ("--start-step", "8", "--steps", "2")


@pytest.mark.planted
def test_a_failing_hook_switches_the_capture_off_and_is_told(tmp_path: Path) -> None:
    text = """
def broken(self, now):
    raise ValueError("planted")
def at_step(step):
    if step == 10:
        import stepscope.capture.session as session
        session.Session._keep = broken
train(40, at_step)
print("trained", torch.optim.Optimizer.profile_hook_step.__name__, torch.save.__module__)
time.sleep(1.5)
"""
    ended = record(tmp_path, text, diagnose=True)
    assert ended.code == 0
    assert ended.out == b"trained profile_hook_step torch.serialization\n", (
        "the hooks are out again"
    )
    (rank,) = ended.run.ranks
    assert rank.problem == "ValueError: planted"
    assert "planted" in ended.err
    assert len(rank.rows) == 9


@pytest.mark.planted
@pytest.mark.parametrize(
    "fault",
    [
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))",
        # At once: what removes its files one by one may meet one that was written since.
        (
            "run = os.path.dirname(os.environ['PYTHONPATH'].split(os.pathsep)[0]); "
            "os.rename(run, run + '.gone')"
        ),
    ],
    ids=["no room on the disk", "the folder is gone"],
)
def test_a_folder_that_cannot_be_written_does_not_stop_the_job(tmp_path: Path, fault: str) -> None:
    text = f"""
def at_step(step):
    if step == 6:
        {fault}
train(40, at_step, pause_s=0.05)
os.write(1, b"trained\\n")
"""
    ended = record(tmp_path, text, *WINDOW, diagnose=True)
    assert (ended.code, ended.out) == (0, b"trained\n"), ended.err
    assert "Traceback" not in ended.err


def test_a_place_that_cannot_be_written_is_told_and_the_job_runs(tmp_path: Path) -> None:
    ended = record(
        tmp_path,
        "train(10)\nprint('trained')\nsys.exit(3)",
        out=Path("/proc/stepscope-run"),
        diagnose=True,
    )
    assert (ended.code, ended.out) == (3, b"trained\n")
    assert "the job runs without" in ended.err


def test_a_killed_job_leaves_what_it_recorded(tmp_path: Path) -> None:
    steps = tmp_path / "run" / "rank-0" / "steps.jsonl"
    # Not before so much is written: the thread that writes may wait for a core.
    text = f"""
def at_step(step):
    if step > 200 and len(open({str(steps)!r}).readlines()) > 110:
        os.kill(os.getpid(), signal.SIGKILL)
train(10**9, at_step, pause_s=0.01)
"""
    ended = record(tmp_path, text, *WINDOW, diagnose=True)
    assert ended.code == 128 + signal.SIGKILL
    (rank,) = ended.run.ranks
    assert list(rank.windows) == [8]
    assert len(rank.rows) > 100
    assert mentions(ended.err, "measured", "without")


def test_ctrl_c_reaches_the_job_alone_and_what_it_recorded_is_diagnosed(tmp_path: Path) -> None:
    text = """
try:
    train(10**9)
except KeyboardInterrupt:
    print("stopped by hand", flush=True)
    sys.exit(5)
"""
    run = tmp_path / "run"
    words = ["run", "--out", str(run), *WINDOW, "--", sys.executable, str(script(tmp_path, text))]
    process = subprocess.Popen(
        stepscope(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    until(lambda: list(run.glob("rank-0/window-*.json")))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out) == (5, b"stopped by hand\n")
    assert mentions(err.decode(), "measured", "without") or mentions(err.decode(), "while profiled")


@pytest.mark.parametrize(("num", "word"), [(0, "no optimizer step"), (2, "ended before a step")])
def test_a_job_that_hardly_steps_is_told_so(tmp_path: Path, num: int, word: str) -> None:
    ended = record(tmp_path, f"train({num})\nprint('done')", diagnose=True)
    assert (ended.code, ended.out) == (0, b"done\n")
    assert word in ended.err
    assert "Traceback" not in ended.err


def test_a_profiler_of_the_jobs_own_goes_first(tmp_path: Path) -> None:
    text = """
def at_step(step):
    global own
    if step == 8:
        own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); own.start()
    if step == 12:
        own.stop(); print(len(own.events()) > 0)
train(30, at_step)
"""
    for start in ("8", "6"):
        ended = record(tmp_path, text, "--start-step", start, "--steps", "4", out=tmp_path / start)
        assert (ended.code, ended.out) == (0, b"True\n"), ended.err
        (rank,) = ended.run.ranks
        (told,) = [event for event in rank.events if event["kind"] == "window"]
        assert "profiler of" in told["problem"]


@pytest.mark.planted
def test_a_profiler_is_taken_off_when_the_capture_ends_inside_a_window(tmp_path: Path) -> None:
    text = """
def at_step(step):
    if step == 10:
        import stepscope.capture.hooks.install as hooks
        assert hooks.current().window is not None
        hooks.current().guard.off("planted")
train(20, at_step)
print(torch.autograd._profiler_enabled())
"""
    ended = record(tmp_path, text, "--start-step", "8", "--steps", "6")
    assert (ended.code, ended.out) == (0, b"False\n"), ended.err


def test_what_the_job_may_do_with_torch_stays_possible(tmp_path: Path) -> None:
    """A probe for torch before its import, a pickled torch.save, an optimizer on top of another, a
    loader left half-way."""
    text = """
import gc, pickle, weakref
assert pickle.loads(pickle.dumps(torch.save)) is torch.save
class Twice(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
optimizer.step()
optimizer = Twice(model.parameters(), lr=0.1)
loader = iter(torch.utils.data.DataLoader(list(range(100)), batch_size=4))
seen = weakref.ref(loader)
next(loader)
train(20)
del loader
gc.collect()
print(seen() is None)
"""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util; importlib.util.find_spec('torch')\n"
    )
    ended = record(tmp_path, text, *WINDOW, env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.out) == (0, b"True\n"), ended.err
    (rank,) = ended.run.ranks
    assert len(rank.rows) <= 21


def test_hundreds_of_accumulated_passes_are_one_step_and_the_exit_code_is_the_jobs(
    tmp_path: Path,
) -> None:
    # However long they take: without a core, longer than one waits for an optimizer's step.
    text = """
import stepscope.capture.hooks.without_optimizer as without
without.PATIENCE_NS = 10**18
for _ in range(4):
    for _ in range(300):
        model(torch.ones(1, 32)).mean().backward()
    optimizer.step(); optimizer.zero_grad()
sys.exit(7)
"""
    ended = record(tmp_path, text)
    assert ended.code == 7
    (rank,) = ended.run.ranks
    assert [row["num_backwards"] for row in rank.rows] == [300] * 3


def test_secrets_on_the_command_line_are_not_written_down() -> None:
    from stepscope.protocol.secrets import masked_words

    command = [
        "python",
        "train.py",
        "--lr=0.1",
        "--api-key=abc",
        "--token",
        "hunter2",
        "--out",
        "a/b",
        "hf_abcdefgh12345678",
    ]
    told = masked_words(command)
    assert told[:3] == command[:3]
    assert told[3:] == ["--api-key=(masked)", "--token", "(masked)", "--out", "a/b", "(masked)"]
