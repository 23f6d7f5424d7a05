"""The process that times: the job's own Python, isolated, ended at its budget."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct, convert, to_builtins

from stepscope.core.hardware import MeasuredTime, ProbeCase, ProbeRow
from stepscope.errors import UsageError
from stepscope.process.isolation import PACKAGES, isolated_python, tool_environment
from stepscope.protocol.json_text import json_text
from stepscope.protocol.untrusted import problem_line

WORKER = "stepscope.probe.job.worker"
CODE = (
    "import os, sys; sys.path += sys.argv[1].split(os.pathsep); del sys.argv[1]; "
    f"import runpy; runpy.run_module({WORKER!r}, run_name='__main__', alter_sys=True)"
)
"""Code for another Python: where modules are looked for comes after the library's own folders, and
never is the working folder."""
START_S = 60.0
"""Seconds beyond the budget, for Python, torch and the device to start."""
RESERVED = 0.4
"""Share of the budget that is kept for chains and what else is compiled, where some of that is
asked for."""
BENCHMARK, COMPILED = "benchmark", "compiled"
MAX_COMPILERS, CORES_EACH = 4, 4
"""Processes that compile chains meanwhile, and the cores that there are for each: a third of a
dozen chains is compiled in a default budget, and torch compiles in threads of its own."""
POLL_S = 0.1
MAX_PROBLEM_CHARS = 300


class Probed(Struct, frozen=True, kw_only=True):
    """What a process measured."""

    torch: str
    device: str
    driver: str
    rows: tuple[ProbeRow, ...]
    left: int
    """Cases for which the time was too short."""
    wall_s: float


def python_of(command: Sequence[str]) -> str:
    """The Python that such a command starts: itself, or the one beside the launcher."""
    found = shutil.which(command[0]) if command else None
    if found is None:
        return sys.executable
    if Path(found).name.startswith("python"):
        return found
    beside = Path(found).parent / "python"
    return str(beside) if beside.is_file() else sys.executable


def time_cases(python: str, device: str, cases: Sequence[ProbeCase], budget_s: float) -> Probed:
    """Each of them on such a device, as far as the budget goes. What cuDNN chose by trial it keeps
    for as long as its process lives, so that those cases have a process of their own. UsageError
    where nothing can be timed."""
    begun = time.monotonic()
    plain = [case for case in cases if BENCHMARK not in case.way]
    tried = [case for case in cases if BENCHMARK in case.way]
    about: dict[str, str] = {}
    rows: list[ProbeRow] = []
    for some in filter(None, (plain, tried)):
        share_s = budget_s * len(some) / len(cases)
        about, measured = _timed(python, device, some, share_s)
        rows += measured
    return Probed(
        torch=about["torch"],
        device=about["device"],
        driver=about.get("runtime", ""),
        rows=tuple(rows),
        left=len(cases) - len(rows),
        wall_s=time.monotonic() - begun,
    )


def _timed(
    python: str, device: str, cases: Sequence[ProbeCase], budget_s: float
) -> tuple[dict[str, str], list[ProbeRow]]:
    with tempfile.TemporaryDirectory(prefix="stepscope-probe-") as name, ExitStack() as ended:
        folder = Path(name)
        indexed = [{"index": i, **to_builtins(case)} for i, case in enumerate(cases)]
        asked: dict[str, object] = {
            "budget_s": budget_s,
            "device": None,
            "on": device,
            "cases": indexed,
        }
        timing = _start(python, folder, "time", {**asked, "reserved_s": RESERVED * budget_s})
        ended.callback(_end, timing)
        deadline = time.monotonic() + budget_s + START_S
        chains = [row for row in indexed if COMPILED in row["way"]]
        if chains and _says_something(timing, folder / "time.out", deadline):
            # The device was found idle: from here on chains are compiled while others are timed.
            num = _compilers(len(chains))
            for number in range(num):
                some = {**asked, "compile": True, "cases": chains[number::num]}
                ended.callback(_end, _start(python, folder, f"compile{number}", some))
        with suppress(subprocess.TimeoutExpired):
            timing.wait(max(deadline - time.monotonic(), 0.0))
        lines = _lines(folder / "time.out")
        if not lines or "about" not in lines[0]:
            why = problem_line(folder / "time.said") or "it ended without a word"
            raise UsageError(f"nothing was timed by {python}: {why[:MAX_PROBLEM_CHARS]}")
    refused = lines[0]["about"].get("refused")
    if refused:
        raise UsageError(f"nothing was timed: {refused}")
    return lines[0]["about"], [_row(cases, line) for line in lines[1:] if "index" in line]


def _start(
    python: str, folder: Path, name: str, asked: dict[str, object]
) -> subprocess.Popen[bytes]:
    """A worker on these cases; its lines go to NAME.out, what else it says to NAME.said. What torch
    compiles goes with the folder, and is the other workers' too."""
    given = folder / f"{name}.json"
    given.write_text(json_text(asked))
    kept = {
        name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    }
    with (folder / f"{name}.said").open("wb") as said:
        try:
            return subprocess.Popen(
                [*_worker(python), str(given), str(folder / f"{name}.out")],
                cwd=folder,
                env={**tool_environment(), **kept},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        except OSError as problem:
            raise UsageError(f"{python} cannot be started: {problem.strerror}") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process with what it started itself to compile."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _says_something(process: subprocess.Popen[bytes], out: Path, deadline: float) -> bool:
    """Whether it comes to write its first line, and goes on after it."""
    while time.monotonic() < deadline and process.poll() is None:
        if out.exists() and out.stat().st_size:
            return not _lines(out)[:1] or "refused" not in _lines(out)[0].get("about", {})
        time.sleep(POLL_S)
    return False


def _compilers(num_chains: int) -> int:
    """Processes that compile beside the one that times."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(min(num_chains, MAX_COMPILERS, cores // CORES_EACH), 0)


def _lines(out: Path) -> list[dict[str, dict[str, str]]]:
    """Lines as far as they were written."""
    lines = []
    try:
        text = out.read_text(encoding="utf-8")
    except OSError:
        return []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def _row(cases: Sequence[ProbeCase], line: dict[str, dict[str, str]]) -> ProbeRow:
    case = cases[int(line["index"])]  # type: ignore[call-overload]
    timed = line.get("time")
    return ProbeRow(
        call=case.call,
        way=case.way,
        time=None if timed is None else convert(timed, MeasuredTime),
        problem=None if timed is not None else str(line.get("problem", "")),
    )


def _worker(python: str) -> list[str]:
    """What starts it: our own Python finds what we find; another one what it has, what PYTHONPATH
    gives it, and this package."""
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        return isolated_python(WORKER)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [*(entry for entry in given if os.path.isabs(entry)), PACKAGES]
    return [python, "-I", "-c", CODE, os.pathsep.join(paths)]
