"""Every command, started in a folder full of traps: modules, programs and settings that leave a
mark where they run. What a stranger packed beside a recording must never run."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepscope.cli.commands import COMMANDS
from tests.capture.jobs import LOOP, light_path
from tests.shared_data import lab_trace, unpacked

DRIVER = """
import json, os, sys
from stepscope.cli.main import main

traps, light, *commands = json.load(open(sys.argv[1]))
started, answers = [], []

def hook(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"):
        words = args[1] if event == "subprocess.Popen" else args[:1]
        started.append(str(args[0] if event != "subprocess.Popen" else args[0] or words[0]))

sys.addaudithook(hook)
# The Pythons of our own find it in their environment; a job is the user's, and has what he gave.
for words, is_job in commands:
    os.environ.pop("PYTHONPATH", None)
    if not is_job:
        os.environ["PYTHONPATH"] = traps
    if words[0] in ("calibrate", "probe") or words[:2] == ["tune", "kernel"]:
        sys.path.insert(0, light)
    try:
        code = main(words)
    except SystemExit as stopped:
        code = stopped.code
    answers.append(code)
    if light in sys.path:
        sys.path.remove(light)
os.environ.pop("PYTHONPATH", None)
json.dump([answers, started], open(sys.argv[2], "w"))
"""
"""In place of the script that pip makes: its name is stepscope, and it stands in a folder of its
own. All commands share a process: what one imports, another has not to."""
KERNEL = """
import subprocess, sys, torch
for program in (["sh", "-c", ":"], [sys.executable, "-c", "import json"]):
    subprocess.run(program, check=True)
def double(x):
    return x + x
def stepscope_inputs(shape, dtype, device):
    return (torch.ones(shape, dtype=dtype, device=device),)
"""
"""It starts what torch does where it compiles: a program by its name, and a Python."""
FEW_SIZES = """
sweep = sys.modules.get("stepscope.calibrate.sweep")
if sweep:
    from msgspec.structs import replace
    sweep.CPU_QUICK = replace(sweep.CPU_QUICK, collectives=(1024, 4096, 16384), point_s=0.0)
"""
"""In ranks that measure collectives: the larger ones take the time."""
ASKED: list[dict[str, Any]] = [
    {"id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "traps", "version": "1"}}},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": {
        "name": "diagnose", "arguments": {"path": "rank0.json"}}},
]  # fmt: skip
TEMPLATES = ("report", "base", "serve", "comparison", "plan")
SETTINGS = {
    "matplotlibrc": "backend: module://trap_backend\ntext.usetex: True\nsavefig.dpi: trap\n",
    "trap.pth": "import trap_of_pth\n",
    "pyproject.toml": "[tool.stepscope]\nplugins = ['trap_plugin']\n",
    "setup.cfg": "[options]\n",
    ".env": "MCP_LOG_LEVEL=trap\n",
    ".duckdbrc": ".shell ./trap\n",
    "mkdocs.yml": "hooks: [conftest.py]\n",
    ".git/config": "[core]\n\tfsmonitor = ./git\n\tpager = ./less\n\thooksPath = .\n"
    "[alias]\n\tstatus = !./git\n[diff]\n\texternal = ./git\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    "trap-1.0.dist-info/METADATA": "Name: trap\nVersion: 1.0\n",
    "trap-1.0.dist-info/entry_points.txt": "[console_scripts]\nstepscope = trap:main\n"
    "[pytest11]\ntrap = trap\n[dask.backends]\ntrap = trap\n",
}


class Traps(NamedTuple):
    folder: Path
    marks: Path

    def ran(self) -> list[str]:
        return self.marks.read_text().splitlines() if self.marks.exists() else []


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Traps:
    around = tmp_path_factory.mktemp("traps")
    folder, marks = around / "downloaded", around / "marks"
    folder.mkdir()
    leave = f"open({str(marks)!r}, 'a').write(f'module {{__name__}}\\n')\nraise SystemExit(77)\n"
    ours = {"sitecustomize", "usercustomize", "conftest", "trap", "trap_backend", "trap_of_pth"}
    names = {*sys.stdlib_module_names, *packages_distributions(), *ours, "stepscope", "ncu_report"}
    for name in names:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(leave)
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\necho \"program $0 $*\" >> '{marks}'\nexit 77\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    tools = {"py-spy", "nvidia-smi", "rocm-smi", "amd-smi", "perf", "git", "nsys", "ncu", "squeue"}
    tools |= {"python", "torchrun", "latex", "fc-list", "ldconfig", "nvcc", "scontrol", "rocprofv3"}
    for path in (Path(each) for each in os.get_exec_path()):
        tools.update(os.listdir(path) if path.is_dir() else ())
    for name in tools - {"python3"}:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(program)
    for at in ("", "templates"):
        (folder / at).mkdir(exist_ok=True)
        for name in TEMPLATES:
            (folder / at / f"{name}.html").write_text("a trap{{ cycler.__init__.__globals__ }}")
    for name, text in SETTINGS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    trace = unpacked(lab_trace("single/nchw.slow"))
    for rank in (0, 1):
        (folder / f"rank{rank}.json").write_bytes(trace)
    # What is asked to be tuned is asked to be run.
    (folder / "my_kernels.py").write_text(KERNEL)
    return Traps(folder, marks)


def commands(traps: Traps, out: Path) -> list[tuple[list[str], bool]]:
    """Each with whether it starts a job of the user's."""
    job, ends = out / "job" / "train.py", out / "job" / "ends.py"
    job.parent.mkdir()
    job.write_text(LOOP + "train(30)\n")
    ends.write_text("raise SystemExit(3)\n")
    run, failing = str(out / "run"), [sys.executable, str(ends)]
    hardware = str(out / "hardware.json")
    no_job = [
        ["diagnose", "rank0.json", "rank1.json", "--no-cache", "--jobs", "2"],
        ["diagnose", ".", "--no-cache", "--jobs", "1", "--format", "markdown"],
        ["report", "rank0.json", "-o", str(out / "report.html")],
        ["compare", "rank0.json", "rank1.json", "--format", "html", "-o", str(out / "c.html")],
        ["query", "rank0.json", "select count(*) from kernels", "--to", "parquet", "-o",
         str(out / "kernels.parquet")],
        ["probe", str(lab_trace("single/fp32_no_tf32.slow"))],
        ["export", "perfetto", "rank0.json", "-o", str(out / "trace.pftrace")],
        ["explain", "serial-loader"],
        ["demo"],
        ["skill"],
        ["formats", "rank0.json"],
        ["doctor", "--out", str(out / "runs")],
        ["runs", "--in", str(out)],
        ["fix", run],
        ["watch", "--once", run],
        ["triage", run, "--seconds", "1"],
        ["attach", str(os.getpid()), "--looks", "1"],
        ["plan", "--model", "1b", "--cluster", "8xh100", "--seq", "2048", "--global-batch", "64",
         "--emit", "fsdp2", "--out", str(out / "planned")],
        ["calibrate", "--quick", "--device", "cpu", "--ranks", "2", "--only", "collectives",
         "--plot", str(out / "plot.svg"), "--out", hardware],
        ["tune", "kernel", "my_kernels:double", "--reference", "my_kernels:double", "--shapes",
         "4x4", "--edges", "none", "--budget", "60", "--device", "cpu", "--no-gradients",
         "--config", "mode=eager"],
    ]  # fmt: skip
    with_job = [
        ["run", "--out", run, "--", sys.executable, str(job)],
        ["verify", "--apply", "num_workers=1", "--out", str(out / "v"), "--", *failing],
        ["tune", "--knob", "num_workers=0..1", "--out", str(out / "t"), "--", *failing],
        ["health", "--out", str(out / "h"), "--", *failing],
    ]
    return [(words, True) for words in with_job] + [(words, False) for words in no_job]


def environment(traps: Traps) -> dict[str, str]:
    path = ["", ".", str(traps.folder), os.environ["PATH"]]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    home = str(traps.folder.parent / "home")
    return {**kept, "PATH": os.pathsep.join(path), "HOME": home, "MPLCONFIGDIR": home}


def test_no_command_runs_what_lies_in_its_folder(traps: Traps, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "bin").mkdir()
    out.mkdir()
    driver = tmp_path / "bin" / "stepscope"
    driver.write_text(DRIVER)
    asked = commands(traps, out)
    given, answered = tmp_path / "asked.json", tmp_path / "answers.json"
    given.write_text(json.dumps([str(traps.folder), light_path(tmp_path, FEW_SIZES), *asked]))
    ended = subprocess.run(
        [sys.executable, str(driver), str(given), str(answered)],
        cwd=traps.folder, env=environment(traps), capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert traps.ran() == []
    assert ended.returncode == 0, ended.stderr
    codes, started = json.loads(answered.read_text())
    # These have no GPU, no job that trains, or nothing to try; all others did their work.
    may_fail = {"verify", "tune", "health", "fix", "triage", "attach", "doctor", "probe"}
    failed = [w for (w, _), code in zip(asked, codes, strict=True) if code and w[0] not in may_fail]
    assert not failed, ended.stderr
    assert started
    # matplotlib's own, with a PATH that has no trap.
    assert {program for program in started if not os.path.isabs(program)} <= {"fc-list"}
    assert "a trap" not in (out / "report.html").read_text()
    assert {words[0] for words, _ in asked} | {"serve", "mcp"} == {each.name for each in COMMANDS}


def test_a_server_runs_nothing_of_the_folder_that_it_serves(traps: Traps, tmp_path: Path) -> None:
    """serve and mcp, as they are started: by the script that pip made."""
    from http.client import HTTPConnection

    started = [str(Path(sys.executable).with_name("stepscope"))]

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*started, *words], cwd=traps.folder, env=environment(traps), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    served = start("serve", "--port", "0")
    assert served.stderr is not None
    try:
        line = next(line for line in served.stderr if "http://" in line)
        port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
        for path in ("/", "/report?what=rank0.json"):
            connection = HTTPConnection("127.0.0.1", port)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            assert b"a trap" not in answer.read()
    finally:
        served.terminate()
        served.communicate()
    asked = start("mcp")
    assert asked.stdin is not None
    assert asked.stdout is not None
    for words in ASKED:
        asked.stdin.write(json.dumps({"jsonrpc": "2.0", **words}) + "\n")
    asked.stdin.flush()
    answers = [json.loads(next(asked.stdout)) for _ in range(2)]
    asked.communicate()
    assert traps.ran() == []
    assert "verdict" in json.dumps(answers[1])
