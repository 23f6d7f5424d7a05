"""A training job that does something unusual inside a recording, and again when it is over: FAULTS
says what.

    python fault_job.py FAULT[,FAULT...] [light]

`stepscope run --start-step 6 --steps 4` records steps 6 to 10 of its 40; the fault strikes at steps
8 and 25. It prints the same and ends the same with and without a recording:
tests/capture/test_faults.py and benchmarks/harm.py hold that. `light`: with the torch of
tests/light_torch.py, for faults that need no more.
"""

# ruff: noqa: T201

from __future__ import annotations

import os
import runpy
import sys
import threading
from collections.abc import Callable
from typing import Any

INSIDE, AFTER = 8, 25
LAST_STEP = 10
"""Of the recording."""
NUM_STEPS = 40


def torch_() -> Any:
    import torch

    return torch


class Training:
    """A small loop, stepped by hand."""

    def __init__(self) -> None:
        torch = torch_()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        # On a GPU where FAULT_DEVICE=cuda.
        self.device = os.environ.get("FAULT_DEVICE", "cpu")
        self.model = torch.nn.Linear(16, 4).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loss = 0.0

    def step(self, *, is_last: bool = False) -> None:
        loss = self.model(torch_().randn(8, 16).to(self.device)).square().mean()
        loss.backward()
        self.optimizer.step()
        if is_last:
            # Nothing more is asked of a GPU.
            return
        self.optimizer.zero_grad()
        self.loss = float(loss.detach())

    def run(self, num: int = NUM_STEPS, fault: Callable[[], None] | None = None) -> None:
        for step in range(num):
            if fault is not None and step in (INSIDE, AFTER):
                fault()
            self.step()
        print(f"loss {self.loss:.6f}")


def child_of(leave: Callable[[], object]) -> Callable[[], None]:
    """Forks a child that computes a little and leaves in its own way."""

    def fault() -> None:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            torch_().ones(3).add(1)
            leave()
        print("child", os.waitpid(child, 0)[1], flush=True)

    return fault


def trains_in_child() -> None:
    Training().run(12)
    sys.stdout.flush()
    os._exit(0)


def exits_with_handlers() -> None:
    import atexit

    # Not flushed: the end of the process must do that.
    atexit.register(lambda: print("handler ran"))
    sys.exit(3)


def raises_in_child() -> None:
    # Nobody need read it; closed, its flush would fail at the end, with an exit code of its own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise RuntimeError("in the child")


def profiles_in_child() -> None:
    torch = torch_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(3).add(1)
    print("events", len(own.events()) > 0, flush=True)
    os._exit(0)


def _square(x: int) -> int:
    return int(torch_().tensor(x).square())


def processes(kind: str) -> Callable[[], None]:
    def fault() -> None:
        import multiprocessing

        with multiprocessing.get_context(kind).Pool(1) as pool:
            print(kind, pool.map(_square, range(3)), flush=True)

    return fault


def subprocess_with_preexec() -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", "print(6 * 7)"],
        preexec_fn=os.getpid,
        capture_output=True,
        check=True,
    )
    print("subprocess", done.stdout)


def workers() -> None:
    loader = torch_().utils.data.DataLoader(
        range(8), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    print("batches", [batch.tolist() for batch in loader])


def own_profiler() -> None:
    torch = torch_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(3).add(1)
    print("own events", len(own.events()) > 0)


def in_thread(function: Callable[[], None]) -> Callable[[], None]:
    def fault() -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    return fault


def compiled() -> None:
    torch = torch_()
    print("compiled", torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())


def limit(name: str, most: int) -> Callable[[], None]:
    def fault() -> None:
        import resource

        which = getattr(resource, name)
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))

    return fault


def little_memory() -> None:
    """What the process has mapped, and 8 MB more."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (mapped + (8 << 20), resource.getrlimit(resource.RLIMIT_AS)[1])
    )


def signalled(name: str) -> Callable[[], None]:
    def fault() -> None:
        import signal

        sys.stdout.flush()
        os.kill(os.getpid(), getattr(signal, name))

    return fault


def raised(problem: BaseException) -> Callable[[], None]:
    def fault() -> None:
        raise problem

    return fault


def close_files() -> None:
    os.closerange(3, 200)


def forget_modules() -> None:
    for name in [name for name in sys.modules if name.startswith("stepscope")]:
        del sys.modules[name]


def trace() -> None:
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)


def thread_each_step() -> None:
    training = Training()
    for _ in range(NUM_STEPS):
        in_thread(training.step)()
    print(f"loss {training.loss:.6f}")


def threads_at_once() -> None:
    def train() -> None:
        training = Training()
        for _ in range(100):
            training.step()

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("all threads trained")


def thread_leaves() -> None:
    """The thread that trains ends in the middle of a recording; another goes on."""
    training = Training()

    def first() -> None:
        for _ in range(INSIDE):
            training.step()

    def rest() -> None:
        for _ in range(2 * NUM_STEPS):
            training.step()

    in_thread(first)()
    in_thread(rest)()
    own_profiler()
    print(f"loss {training.loss:.6f}")


def daemon_trains() -> None:
    """It stands still inside a recording: a thread that computes while its process ends may abort
    it, with and without us."""
    training, reached = Training(), threading.Event()

    def train() -> None:
        for _ in range(INSIDE + 1):
            training.step()
        reached.set()
        threading.Event().wait()

    threading.Thread(target=train, daemon=True).start()
    reached.wait()
    print("leaving")
    sys.stdout.flush()


def ends_with_recording() -> None:
    """The last thing that the job does is the step with which a recording ends."""
    training = Training()
    for step in range(LAST_STEP + 1):
        training.step(is_last=step == LAST_STEP)
    print("trained")


FAULTS: dict[str, tuple[str, Callable[[], None] | None]] = {
    "nothing": ("nothing", None),
    "fork-exit": (
        "os.fork; the child leaves through sys.exit with atexit handlers",
        child_of(exits_with_handlers),
    ),
    "fork-raise": ("os.fork; the child ends with an exception", child_of(raises_in_child)),
    "fork-train": ("os.fork; the child trains, then os._exit", child_of(trains_in_child)),
    "fork-profile": ("os.fork; the child uses a profiler of its own", child_of(profiles_in_child)),
    "fork-pool": ("multiprocessing, start method fork", processes("fork")),
    "spawn-pool": ("multiprocessing, start method spawn", processes("spawn")),
    "forkserver-pool": ("multiprocessing, start method forkserver", processes("forkserver")),
    "preexec": ("subprocess with preexec_fn", subprocess_with_preexec),
    "workers": ("DataLoader workers started inside a recording", workers),
    "own-profiler": ("a profiler of the job's own", own_profiler),
    "own-profiler-thread": (
        "a profiler of the job's own, in another thread",
        in_thread(own_profiler),
    ),
    "compile": ("torch.compile", compiled),
    "exception": ("an exception ends the job", raised(RuntimeError("in the loop"))),
    "interrupt": ("KeyboardInterrupt ends the job", raised(KeyboardInterrupt())),
    "exit": ("sys.exit(3)", raised(SystemExit(3))),
    "os-exit": ("os._exit(7)", lambda: os._exit(7)),
    "kill": ("SIGKILL", signalled("SIGKILL")),
    "term": ("SIGTERM", signalled("SIGTERM")),
    "abort": ("abort()", os.abort),
    "full-disk": ("no room on the disk (RLIMIT_FSIZE)", limit("RLIMIT_FSIZE", 0)),
    "few-files": ("no more open files (RLIMIT_NOFILE)", limit("RLIMIT_NOFILE", 3)),
    "few-processes": ("no more threads or processes (RLIMIT_NPROC)", limit("RLIMIT_NPROC", 1)),
    "little-memory": ("no more memory (RLIMIT_AS)", little_memory),
    "close-files": ("every open file is closed", close_files),
    "chdir": ("the working folder changes", lambda: os.chdir("/")),
    "environment": ("the environment is emptied", os.environ.clear),
    "trace": ("sys.settrace and sys.setprofile are used", trace),
    "recursion": ("a low recursion limit", lambda: sys.setrecursionlimit(120)),
    "modules": ("our modules are deleted from sys.modules", forget_modules),
    "threads": ("four threads train at once", None),
    "thread-each-step": ("a new thread for each step", None),
    "thread-leaves": ("the thread that trains ends inside a recording", None),
    "daemon": ("a daemon thread trains while the process ends", None),
    "ends-with": ("the job ends with the last step of a recording", None),
}
FAULTS |= runpy.run_path(os.path.join(os.path.dirname(__file__), "torch_faults.py"))["FAULTS"]
WHOLE: dict[str, Callable[[], None]] = {
    "threads": threads_at_once,
    "thread-each-step": thread_each_step,
    "thread-leaves": thread_leaves,
    "daemon": daemon_trains,
    "ends-with": ends_with_recording,
}


def main(names: list[str]) -> None:
    if names[0] in WHOLE:
        WHOLE[names[0]]()
        return

    def strike() -> None:
        for name in names:
            fault = FAULTS[name][1]
            if fault is not None:
                fault()

    Training().run(fault=strike)


if __name__ == "__main__":
    if sys.argv[2:] == ["light"]:
        runpy.run_path(os.path.join(os.path.dirname(__file__), os.pardir, "light_torch.py"))
    main(sys.argv[1].split(","))
