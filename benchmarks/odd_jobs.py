"""Odd jobs: what frameworks and people do to an interpreter, to processes and to the objects that a
capture listens to. Each prints the same every time and ends by itself; those whose package is not
installed are left out.

    python -m benchmarks.harm --odd

runs each plain and recorded. They have nothing of ours in them. benchmarks/odd/*.txt has one after
another: `### name`, then where it is so `#needs PACKAGE`, `#start LINE` (of bash, in a folder with
job.py; $PY is Python and $HERE the folder), `#bare` (the text is the whole file); then what stands
before `main()`, a line `---`, and what `main()` does. ENDS are ways to end, each in the process
that was started and some in three kinds of children.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ODD = Path(__file__).resolve().parent / "odd"
COMMON = """
import contextlib, copy, functools, gc, inspect, io, json, logging, os, pickle, signal, subprocess
import sys, tempfile, threading, time, traceback, warnings, weakref
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self, first=0):
        for number in range(first, first + 3):
            yield torch.full((4,), float(number))
def train(num=12, kind=Own):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = kind(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(num):
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
    return float(loss.detach()), model, optimizer
def child(rank):
    train(2 + rank)
"""
MAIN = """
def main():
{}
if __name__ == "__main__":
    main()
"""
ENDS = {
    "exit-text": "sys.exit('over')",
    "exit-256": "sys.exit(256)",
    "exit-minus": "sys.exit(-2)",
    "exit-nothing": "sys.exit([])",
    "raise-own": "raise type('Mine', (BaseException,), {})('b')",
    "raise-group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "raise-chain": "try: {}[1]\nexcept KeyError as e: raise OSError(3, 'x') from e",
    "interrupt": "raise KeyboardInterrupt",
    "sigint": "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "sigterm": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
    "sigusr1": "os.kill(os.getpid(), signal.SIGUSR1); time.sleep(9)",
    "sigkill": "os.kill(os.getpid(), signal.SIGKILL); time.sleep(9)",
    "hard-exit": "os._exit(5)",
    "abort": "os.abort()",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "recursion": "f = lambda: f()\nf()",
    "memory": "bytearray(1 << 60)",
    "cpu-limit": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n"
    "while True: train(9)",
    "atexit": "import atexit; atexit.register(lambda: 1 // 0); atexit.register(print, 'end')",
    "thread": "t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join(); [][1]",
}  # fmt: skip
KINDS = ("fork", "spawn", "forkserver")
IN_CHILDREN = ("exit-text", "raise-own", "sigterm", "hard-exit", "segfault", "atexit")
CHILD = """
def ends():
    train(8)
{}
---
import multiprocessing
train(8); sys.stdout.flush()
p = multiprocessing.get_context("{}").Process(target=ends); p.start(); p.join(); print(p.exitcode)
print(train()[0])
"""
ARGUMENTS = ("", "a b", "ü", "--", "-v", "--out", "x\ny", "$HOME", "'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    text: str
    """Of job.py."""
    package: str = ""
    start: str = ""
    """A line of bash; where there is none, Python is given the file."""


def _read() -> Iterator[Job]:
    for path in sorted(ODD.glob("*.txt")):
        for part in re.split(r"(?m)^### ", path.read_text(encoding="utf-8"))[1:]:
            name, _, rest = part.partition("\n")
            lines = rest.splitlines()
            said: dict[str, str] = {}
            while lines[0].startswith("#"):
                key, _, value = lines.pop(0)[1:].partition(" ")
                said[key] = value
            text = "\n".join(lines)
            yield Job(
                name=name,
                text=text if "bare" in said else _job(text),
                package=said.get("needs", ""),
                start=said.get("start", ""),
            )


def _job(text: str) -> str:
    before, _, body = text.rpartition("\n---\n")
    return f"{COMMON}{before}\n{MAIN.format(textwrap.indent(body, '    '))}"


def _ends() -> Iterator[Job]:
    for name, text in ENDS.items():
        yield Job(name=f"end-{name}", text=_job(f"train(8)\n{text}"))
    for kind in KINDS:
        for name in IN_CHILDREN:
            text = CHILD.format(textwrap.indent(ENDS[name], "    "), kind)
            yield Job(name=f"{kind}-{name}", text=_job(text))


JOBS = {job.name: job for job in (*_read(), *_ends())}


def names() -> list[str]:
    """Those whose package is there."""
    return [
        job.name
        for job in JOBS.values()
        if not job.package or importlib.util.find_spec(job.package) is not None
    ]


def left_out() -> list[tuple[str, str]]:
    """The others, and what each needs."""
    there = set(names())
    return [(job.name, job.package) for job in JOBS.values() if job.name not in there]


def command(name: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), name, *ARGUMENTS]


def main() -> None:
    """Becomes the job, in a folder of its own. Jobs are files: their classes are pickled by value
    and have a source."""
    job = JOBS[sys.argv[1]]
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    Path("job.py").write_text(job.text, encoding="utf-8")
    if job.start:
        os.environ |= {"PY": sys.executable, "HERE": folder}
        os.execvp("bash", ["bash", "-c", job.start])
    os.execv(sys.executable, [sys.executable, f"{folder}/job.py", *sys.argv[2:]])


if __name__ == "__main__":
    main()
