"""Real training jobs in processes of their own, under `stepscope run`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from stepscope.readers.run_folder.folder import RunRecord, read_run
from tests.forked_jobs import Forked
from tests.ports import free_port
from tests.waiting import LONGEST_S

LIGHT = (Path(__file__).parents[1] / "light_torch.py").read_text(encoding="utf-8")
"""What a job begins with that needs no more of torch than this."""

LIGHT_PACKAGE = """
import sys
_at = {at!r}
while _at in sys.path:
    sys.path.remove(_at)
del sys.modules["torch"]
"""
"""Stands before LIGHT in a package of torch's name: meanwhile torch itself is found."""

WHOLE = """
import gc
gc.disable()
import torch, torch._dynamo
gc.enable()
gc.freeze()
"""
"""What a job begins with that compiles. To look for garbage in all of torch, again and again as it
is imported, takes a quarter of the time."""

TRAINING = """
import os, signal, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(num, at_step=None, pause_s=0.002):
    for step in range(num):
        if at_step is not None:
            at_step(step)
        x = torch.randn(16, 32)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause_s)
"""
"""A loop that knows nothing of us; what a test adds follows it."""

LOOP = LIGHT + TRAINING
WHOLE_LOOP = WHOLE + TRAINING

LAUNCHER = LIGHT + "from torch.distributed.run import main\nmain()\n"
"""What pip installs as `torchrun`."""

TWO_RANKS = """
import os, subprocess, sys
_, port, *words = sys.argv
os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
ranks = [
    subprocess.Popen([sys.executable, *words], env={**os.environ, "RANK": rank, "LOCAL_RANK": rank})
    for rank in "01"
]
sys.exit(max(rank.wait() for rank in ranks))
"""
"""A launcher that does what ranks need of torchrun, and takes no torch for it."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that is over."""

    code: int
    out: bytes
    err: str
    folder: Path

    @property
    def run(self) -> RunRecord:
        return read_run(self.folder)


def stepscope(*words: str) -> list[str]:
    return [sys.executable, "-m", "stepscope", *words]


def environment(**more: str) -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RANK")},
        **quiet,
        **more,
    }


def script(folder: Path, text: str, name: str = "train.py", *, before: str = LOOP) -> Path:
    path = folder / name
    path.write_text(before + text, encoding="utf-8")
    return path


def light_path(folder: Path, more: str = "") -> str:
    """A folder for a python's path, `-I` or not: `import torch` is then LIGHT's, and runs `more`
    after it."""
    at = folder / "light"
    (at / "torch").mkdir(parents=True)
    text = LIGHT_PACKAGE.format(at=str(at)) + LIGHT + "sys.path.insert(0, _at)\n" + more
    (at / "torch" / "__init__.py").write_text(text, encoding="utf-8")
    return str(at)


def torchrun(folder: Path, *words: str) -> list[str]:
    """Two ranks on this machine."""
    path = folder / "torchrun"
    path.write_text(LAUNCHER, encoding="utf-8")
    return [sys.executable, str(path), "--standalone", "--nproc-per-node=2", *words]


def two_ranks(folder: Path, *words: str) -> list[str]:
    """As above, where it is all the same who starts the ranks."""
    path = folder / "two_ranks.py"
    path.write_text(TWO_RANKS, encoding="utf-8")
    return [sys.executable, str(path), str(free_port()), *words]


def record(
    folder: Path,
    text: str,
    *options: str,
    before: str = LOOP,
    out: Path | None = None,
    diagnose: bool = False,
    env: dict[str, str] | None = None,
    whole_end: bool = False,
) -> Ended:
    """Run the loop with `text` after it, to its end."""
    path, kept = script(folder, text, before=before), out or folder / "run"
    words = ["run", "--out", str(kept), *options, "--", sys.executable, str(path)]
    if not diagnose:
        words.insert(1, "--no-diagnose")
    is_light, where = before.startswith(LIGHT), environment(**(env or {}))
    if is_light:
        done = run_light(*words, env=where, whole_end=whole_end)
    else:
        done = run_to_end(*words, env=where)
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr.decode(), folder=kept)


def run_to_end(
    *words: str, env: dict[str, str], cwd: Path | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        stepscope(*words),
        input=stdin,
        capture_output=True,
        timeout=LONGEST_S,
        check=False,
        env=env,
        cwd=cwd,
    )


def run_light(
    *words: str, env: dict[str, str], cwd: Path | None = None, whole_end: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """As above, where the job is a script that begins with LIGHT. Its handlers run and its threads
    are waited for; where it matters that modules and libraries are let go as it ends, it is asked
    for a whole end."""
    if not _forked:
        _forked.append(Forked(environment()))
    return _forked[0].run(words, env, cwd or Path.cwd(), LONGEST_S, whole_end=whole_end)


_forked: list[Forked] = []
"""One for each process of tests, from its first such job on."""


def let_go() -> None:
    while _forked:
        _forked.pop().close()
