"""Jobs that do something unusual inside a recording and after it end as they do without one.
docs/run.md has the list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.readers.run_folder.folder import read_run
from tests.capture.fault_job import FAULTS
from tests.capture.jobs import (
    WHOLE_LOOP,
    environment,
    record,
    run_light,
    run_to_end,
    stepscope,
)
from tests.installed import HIDE_PROC, need, needs
from tests.shared_data import ROOT
from tests.waiting import LONGEST_S

need("torch")

JOB = Path(__file__).parent / "fault_job.py"
WINDOW = ("--start-step", "6", "--steps", "4")
CHEAP = ("chdir", "environment", "trace", "modules")
SURVIVED = (
    "fork-exit", "fork-raise", "fork-profile", "fork-pool", "preexec", "workers", *CHEAP,
)  # fmt: skip
"""Those after which a job goes on: they strike one after the other, in one process. A profiler of
the job's own is not among them: with it, a plain job's forked child hangs too."""


def recorded(run: Path, *told: str) -> tuple[int, bytes, str]:
    words = ["run", "--no-diagnose", "--out", str(run), *WINDOW]
    words += ["--", sys.executable, str(JOB), *told, "light"]
    # What lets a script have few frames needs a stack with no others.
    if "recursion" in told[0]:
        done = run_to_end(*words, env=environment())
    else:
        done = run_light(*words, env=environment(), whole_end=True)
    return done.returncode, done.stdout, done.stderr.decode()


STRUCK = r"""handler ran
child 768
child 256
events True
child 0
fork [0, 1, 4]
subprocess b'42\n'
batches [[0, 1], [2, 3], [4, 5], [6, 7]]
"""
"""What the job prints each time, recorded or not. A child's handlers run, and its exit code is its
own."""


def test_forks_and_other_faults_change_nothing(tmp_path: Path) -> None:
    code, out, err = recorded(tmp_path / "run", ",".join(SURVIVED))
    assert code == 0, err
    assert out.decode().startswith(STRUCK + STRUCK + "loss 0.2"), err
    assert "External init callback" not in err


def test_what_is_compiled_or_recomputed_stays_as_it_is(tmp_path: Path) -> None:
    """Inside a recording and after it; and a hook of ours that the compiler cannot follow would end
    this job, whose step has no breaks. Its backward pass is one, as any other; and so is one that
    computes its forward again, with a backward pass inside. Past a break the compiler reads what
    is called next: of a step that is compiled whole it reads nothing of ours."""
    text = f"""
import runpy
from torch.utils.checkpoint import checkpoint
faults = runpy.run_path({str(JOB)!r})["FAULTS"]
@torch.compile(backend="aot_eager", fullgraph=True)
def loss(x):
    return model(x).square().mean()
def at_step(step):
    if step in (8, 15):
        for name in {("compile", *CHEAP)}:
            faults[name][1]()
    loss(torch.ones(2, 32)).backward()
    x = torch.ones(2, 32, requires_grad=True)
    checkpoint(model, x, use_reentrant=True).square().mean().backward()
train(20, at_step)
print("compiled")
read = []
def backend(graph, _):
    read.extend(node.meta.get("stack_trace") or "" for node in graph.graph.nodes)
    return graph
@torch.compile(backend=backend)
def step():
    model(torch.ones(2, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(4):
    step()
breaks = torch._dynamo.utils.counters["graph_break"]
ours = [text for text in read if "stepscope/capture" in text]
print(any("backward()" in text for text in breaks), ours)
"""
    ended = record(tmp_path, text, *WINDOW, before=WHOLE_LOOP)
    out = b"compiled 2.0\ncompiled 2.0\ncompiled\nTrue []\n"
    assert (ended.code, ended.out) == (0, out), ended.err
    assert "External init callback" not in ended.err
    rank = ended.run.ranks[0]
    assert len(rank.rows) == 19, "distances between 20 steps"
    assert list(rank.windows) == [6]
    assert {row["num_backwards"] for row in rank.rows} == {3}, "with the loop's own"


def plain(*told: str) -> tuple[int, bytes]:
    done = run_light(sys.executable, str(JOB), *told, env=environment(), whole_end=True)
    return done.returncode, done.stdout


UNUSUAL = (
    "closures", "copies", "by-name", "strange-classes", "schedulers", "inference", "defaults",
    "meta", "collective", "handler", "switches", "fork-thread", "daemonize", "umask",
)  # fmt: skip


@pytest.mark.parametrize("names", [UNUSUAL, ("exec",), ("at-exit", "thread-last"), ("hooks-away",)])
def test_what_is_done_with_torch_and_python_changes_nothing(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    code, out, err = recorded(tmp_path / "run", ",".join(names))
    assert (code, out) == plain(",".join(names), "light"), err
    assert list((tmp_path / "run").glob("rank-*/window-*")), "it was recorded all the same"
    rows = [row for rank in read_run(tmp_path / "run").ranks for row in rank.rows]
    assert any(row["comm_ns"] for row in rows) is ("collective" in names)


@pytest.mark.parametrize(
    ("name", "code", "out"),
    [
        ("exception", 1, b""),
        ("os-exit", 7, b""),
        ("term", 128 + 15, b""),
        ("abort", 128 + 6, b""),
        ("few-files", 0, b"loss 0.190597\n"),
        ("close-files", 0, b"loss 0.190597\n"),
        ("recursion,little-memory", 0, b"loss 0.190597\n"),
        ("threads", 0, b"all threads trained\n"),
        ("thread-each-step", 0, b"loss 0."),
        ("daemon", 0, b"leaving\n"),
        ("ends-with", 0, b"trained\n"),
    ],
)
def test_a_job_ends_as_it_would_have(tmp_path: Path, name: str, code: int, out: bytes) -> None:
    ended, printed, err = recorded(tmp_path / "run", name)
    assert ended == code, err
    assert printed.startswith(out)
    assert "External init callback" not in err
    assert "Segmentation" not in err


def test_a_thread_that_ends_inside_a_recording_leaves_what_it_recorded(tmp_path: Path) -> None:
    code, out, err = recorded(tmp_path / "run", "thread-leaves")
    assert code == 0, err
    assert out.startswith(b"own events True\nloss ")
    assert "External init callback" not in err
    assert "Segmentation" not in err
    assert [path.name for path in (tmp_path / "run" / "rank-0").glob("window-*")] == [
        "window-6.pt.trace.json"
    ]


@pytest.mark.parametrize(("before", "inside"), [(0.05, 0.0), (0.0, 0.4)])
def test_a_thread_that_ends_as_the_process_does_ends_its_recording(
    tmp_path: Path, before: float, inside: float
) -> None:
    """A pool's thread, which nobody joins. The profiler is taken off after the process began to
    end, and while it does."""
    text = f"""
import threading
over = threading.Event()
def work():
    import stepscope.capture.recording.window as window
    save = window.Window._save
    window.Window._save = lambda *args: (over.set(), time.sleep({inside}), save(*args))
    train(12)
    if not {inside}:
        over.set()
        time.sleep({before})
threading.Thread(target=work, daemon=True).start()
over.wait()
print("over", flush=True)
"""
    ended = record(tmp_path, text, "--start-step", "6", "--steps", "40")
    assert (ended.code, ended.out) == (0, b"over\n"), ended.err
    assert "callback is not found" not in ended.err
    assert list(tmp_path.rglob("window-6.pt.trace.json"))


def test_a_profiler_in_a_thread_that_the_training_waits_for(tmp_path: Path) -> None:
    text = """
import threading
def own():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(3).add(1)
    print("own events", len(own.events()) > 0, flush=True)
def at_step(step):
    import stepscope.capture.recording.window as window
    if step == 9:
        print("ours", torch.autograd._profiler_enabled(), flush=True)
        window.LONGEST_WAIT_S, waits, give_up = 0.2, [], window.Window.give_up
        window.Window.give_up = lambda self, problem: waits.append(give_up(self, problem))
        thread = threading.Thread(target=own)
        thread.start()
        thread.join()
        print("waits", len(waits), flush=True)
    if step == 12:
        print("ours", torch.autograd._profiler_enabled(), flush=True)
        own()
train(20, at_step)
"""
    ended = record(tmp_path, text, *WINDOW)
    said = b"ours True\nown events True\nwaits 1\nours False\nown events True\n"
    assert (ended.code, ended.out) == (0, said), ended.err
    assert not list(tmp_path.rglob("problem.txt"))


def test_nothing_of_the_devices_is_ever_let_go(tmp_path: Path) -> None:
    """A CUDA event or pinned memory that is destroyed in a forked child ends it, and so it does
    where Python ends after an error has lost the device. Nor are operators recorded on in a child
    for ever."""
    text = """
import types
parent = os.getpid()
class Held:
    device = None
    def __del__(self):
        if os.getpid() != parent or sys.is_finalizing():
            os.abort()
    def record(self, *_): pass
    def query(self): return True
    def elapsed_time(self, _): return 1.0
    def copy_(self, *_, **__): pass
    def __float__(self): return 1.0
cuda = types.SimpleNamespace(
    Event=lambda **_: Held(), is_initialized=lambda: True, current_device=lambda: 0,
    is_current_stream_capturing=lambda: False, current_stream=lambda _: None)
fake = types.SimpleNamespace(cuda=cuda, float32=None, empty=lambda *_, **__: Held())
def at_step(step):
    import stepscope.capture.hooks.install as hooks
    from stepscope.capture.recording.device_clock import device_clock
    session = hooks.current()
    if step == 5:
        session.device_clock = device_clock(fake)
    if step in (6, 8):
        session.losses._copy(fake, types.SimpleNamespace(device=None), 1)
    if step == 25:
        assert session.device_clock.settled > 5 and session.losses.pinned is not None
    if step in (9, 20):
        child = os.fork()
        if child == 0:
            def size():
                # Pages of libraries come and go as the machine likes; events are memory of our own.
                text = open("/proc/self/status").read()
                return 1024 * int(text.partition("RssAnon:")[2].split()[0])
            x, before = torch.ones(3), size()
            for _ in range(20_000):
                x + 1
            sys.exit(0 if size() - before < 8_000_000 else 3)
        print(os.waitpid(child, 0)[1], flush=True)
train(30, at_step)
"""
    ended = record(tmp_path, text, *WINDOW, env={"PYTHONPATH": str(ROOT)}, whole_end=True)
    assert (ended.code, ended.out) == (0, b"0\n0\n"), ended.err


def test_a_machine_without_proc_records_all_the_same(tmp_path: Path) -> None:
    """An empty folder in its place, in a mount namespace of its own: for this test's processes
    alone."""
    need("rights to mount over /proc")
    words = [
        "run",
        "--no-diagnose",
        "--out",
        str(tmp_path / "run"),
        *WINDOW,
        "--",
        sys.executable,
        str(JOB),
        "nothing",
        "light",
    ]
    done = subprocess.run(
        [*HIDE_PROC, *stepscope(*words)],
        capture_output=True,
        timeout=LONGEST_S,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (0, b"loss 0.190597\n"), done.stderr
    assert [path.name for path in (tmp_path / "run" / "rank-0").glob("window-*")] == [
        "window-6.pt.trace.json"
    ]
    assert "| /proc is absent |" in (ROOT / "docs" / "run.md").read_text(encoding="utf-8")


def test_the_documents_list_is_what_is_tried() -> None:
    page = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")
    for name, (what, _) in FAULTS.items():
        assert name == "nothing" or f"| {what} |" in page, f"docs/run.md says nothing of {name}"


@needs("Linux")
@pytest.mark.parametrize(("has_device", "code"), [(True, 3), (False, -6)])
def test_a_recording_left_in_another_thread_does_not_end_the_process(
    has_device: bool, code: int
) -> None:
    """With CUDA's part active, a destructor of the libraries ends it; here abort() stands for that
    destructor."""
    text = f"""
import ctypes, sys
from stepscope.capture.recording import forked
from stepscope.capture.recording.window import Window
libc = ctypes.CDLL(None)
libc["__cxa_atexit"](ctypes.cast(libc["abort"], ctypes.c_void_p), None, None)
forked.note_profiler()
window = Window.__new__(Window)
window.problem, window._has_device = None, {has_device}
window.leave_behind("the process ends")
assert window.is_over
print("flushed")
sys.exit(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, env=environment()
    )
    assert (done.returncode, done.stdout) == (code, "flushed\n"), done.stderr
