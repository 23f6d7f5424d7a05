"""What the capture costs a job while no profiler is attached, beside TraceML in the same process.

    PYTHONPATH=src python -m benchmarks.capture [--seconds N] [--only TEXT] [--json FILE]
    PYTHONPATH=src python -m benchmarks.capture --memory [--steps N]

Run it from the root of the repository. torch and the standard library are enough; TraceML is left
out where it is not installed (`pip install traceml-ai==0.5.0`).

The loop is a plain one: a DataLoader without workers, a small perceptron, backward, SGD, one
thread. It is made as large as takes the wanted time. Blocks of a few steps alternate: plain,
stepscope, plain, TraceML, plain, ... A tool's hooks are put in before its block and taken out after
it, down to the functions of torch that it replaced, so that plain is plain.

- **training thread**: CPU time of the thread that trains, a step: the mean of the middle half of a
  block's steps. Each block is compared with the mean of the plain blocks before and after it; shown
  is the median over blocks, with a bootstrap interval of 95 %. What falls on one step of many, as
  stepscope's looks do, is not in it. The shorter the blocks, the less does it matter that the
  machine is now faster, now slower.
- **its looks**: CPU time of the training thread inside the calls that only some of the steps make,
  over the stretch below, a
  step. stepscope's alone is known; what TraceML may have of that kind is not counted.
- **all steps**: as for the training thread, but the plain mean of every step, and the mean over
  blocks: nothing is left out, and whatever else the machine did is in it too.
- **its threads**: CPU time of the threads that the tool started, by their own clocks, over a
  stretch in which it is on all the time, a step. For stepscope that is the writer with its samples
  once a second; for TraceML the sampler and the exporter.
- **process**: the sum of training thread, looks and threads: what a step costs more in CPU time of
  the whole process.
- **wall**, **device**: as for the training thread. Device time is the distance of two CUDA events
  around a block.

stepscope records for real, into a folder that is thrown away. TraceML runs in the way its
documentation has for a plain loop: `traceml.init(mode="auto")` and `with
traceml.trace_step(model)`, with `traceml serve` beside it, a process of its own whose time is not
counted. The tool called nothing is the plain loop once more: how far its figures are from zero is
how far to trust the others.

On a GPU there are two loops: one that the device bounds, and one of small kernels that the host
bounds, where nothing hides what a hook costs. There the training thread spins while it waits for
the device, and only wall and device time mean anything.

With --memory, steps are told to the hooks without any training, on a clock that is made up, and the
writer takes its turn once a second of that clock.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.capture_loop import (
    LONG_BLOCK_STEPS,
    LONG_SETTLE_STEPS,
    AroundStep,
    Block,
    Case,
    Hooks,
    Loop,
    Tool,
)
from benchmarks.capture_memory import NEVER, TOLD_AT, remember
from stepscope.capture.hooks import install as hooks
from stepscope.protocol.options import Options

LEAD_IN_S = 1.2
"""Before a stretch, so that it begins with as many steps waiting for the writer as it ends with."""
torch: Any = importlib.import_module("torch")


CPU_CASES = (
    Case(name="2 ms", step_ms=2, width=256, depth=3, batch=32),
    Case(name="10 ms", step_ms=10, width=512, depth=4, batch=64),
)
CUDA_CASES = (
    Case(name="10 ms, device-bound", step_ms=10, width=4096, depth=4, batch=512, device="cuda"),
    Case(
        name="10 ms, host-bound",
        step_ms=10,
        width=64,
        depth=100,
        batch=16,
        device="cuda",
        grows="depth",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """A median, or what else is asked for, and where it lies with 95 %."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a tool adds to a step, in microseconds."""

    case: str
    tool: str
    num_blocks: int
    plain_thread_us: float
    plain_wall_us: float
    thread_us: Middle
    every_us: Middle
    looks_us: float
    threads_us: float
    process_us: float
    wall_us: Middle
    device_us: Middle | None
    plain_device_us: float | None


Three = tuple[Block, Block, Block]
"""A tool's block between two plain ones."""


def started(name: str, begin: Callable[[], Any], loop: Loop) -> Tool:
    """A tool, started and warm, its hooks taken out again."""
    before = set(threading.enumerate())
    tool = Tool(name=name, hooks=Hooks(), around_step=begin())
    # Hooks that come with the first step are in after it.
    loop.block(tool)
    tool.hooks.learn()
    tool.hooks.take_out(to_make=True)
    tool.threads = tuple(set(threading.enumerate()) - before)
    return tool


def alternate(
    loop: Loop, plain: Tool, tools: list[Tool], seconds: float, *, is_long: bool
) -> dict[str, list[Three]]:
    """Blocks of each tool, each between the plain blocks before and after it."""
    told: dict[str, list[Three]] = {tool.name: [] for tool in tools}
    until = time.perf_counter() + seconds
    before = loop.block(plain, is_long=is_long)
    while time.perf_counter() < until:
        for tool in tools:
            tool.hooks.put_in()
            during = loop.block(tool, is_long=is_long)
            tool.hooks.take_out()
            after = loop.block(plain, is_long=is_long)
            told[tool.name].append((before, during, after))
            before = after
    return told


def apart_us(loop: Loop, tool: Tool, seconds: float) -> tuple[float, float]:
    """CPU time of the tool's looks and of its threads for each step of a stretch in which it is on
    all the time."""
    if not tool.threads:
        return 0.0, 0.0
    tool.hooks.put_in()
    lead_in = time.perf_counter() + LEAD_IN_S
    while time.perf_counter() < lead_in:
        loop.block(tool)
    with timed_looks(tool) as looks:
        begun, until, num = tool.threads_ns(), time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            loop.block(tool)
            num += LONG_BLOCK_STEPS + LONG_SETTLE_STEPS
        spent = tool.threads_ns() - begun
    tool.hooks.take_out()
    return sum(looks) / 1e3 / num, spent / 1e3 / num


@contextmanager
def timed_looks(tool: Tool) -> Iterator[list[int]]:
    """CPU time of each look that stepscope takes at a step's end."""
    looks: list[int] = []
    session: Any = hooks.current() if tool.name == "stepscope" else None
    if session is None:
        yield looks
        return
    was = session.stepped

    def stepped(*args: Any) -> None:
        begun = time.thread_time_ns()
        was(*args)
        looks.append(time.thread_time_ns() - begun)

    session.stepped = stepped
    try:
        yield looks
    finally:
        del session.stepped


Estimate = Callable[[list[float]], float]


def middle(values: list[float], estimate: Estimate = statistics.median) -> Middle:
    draw = random.Random(0)
    drawn = sorted(estimate(draw.choices(values, k=len(values))) for _ in range(2000))
    return Middle(median=estimate(values), low=drawn[50], high=drawn[1949])


def added(
    blocks: list[Three], of: Callable[[Block], float], estimate: Estimate = statistics.median
) -> Middle:
    return middle(
        [of(during) - (of(before) + of(after)) / 2 for before, during, after in blocks], estimate
    )


def measured(case: str, tool: Tool, blocks: list[Three], apart: tuple[float, float]) -> Cost:
    in_looks_us, in_threads_us = apart
    plain = [before for before, _, _ in blocks]
    is_cuda = blocks[0][0].device_us is not None
    thread = added(blocks, lambda block: block.thread_us)
    return Cost(
        case=case,
        tool=tool.name,
        num_blocks=len(blocks),
        plain_thread_us=statistics.median(block.thread_us for block in plain),
        plain_wall_us=statistics.median(block.wall_us for block in plain),
        plain_device_us=statistics.median(block.device_us or 0.0 for block in plain)
        if is_cuda
        else None,
        thread_us=thread,
        every_us=added(blocks, lambda block: block.every_us, statistics.fmean),
        looks_us=in_looks_us,
        threads_us=in_threads_us,
        process_us=thread.median + in_looks_us + in_threads_us,
        wall_us=added(blocks, lambda block: block.wall_us),
        device_us=added(blocks, lambda block: block.device_us or 0.0) if is_cuda else None,
    )


@contextmanager
def traceml_server(folder: Path) -> Iterator[int | None]:
    """The port of a `traceml serve`; None where TraceML is not installed."""
    command = Path(sys.executable).parent / "traceml"
    if importlib.util.find_spec("traceml_ai") is None or not command.exists():
        yield None
        return
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    told = subprocess.Popen(
        [
            command,
            "serve",
            "--logs-dir",
            str(folder),
            "--run-name",
            "bench",
            "--aggregator-port",
            str(port),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        yield port
    finally:
        told.send_signal(signal.SIGINT)
        try:
            told.wait(5)
        except subprocess.TimeoutExpired:
            told.kill()
            told.wait()


def begin_traceml(port: int, folder: Path) -> AroundStep:
    traceml: Any = importlib.import_module("traceml_ai")
    where = {
        "logs_dir": str(folder),
        "session_id": "bench",
        "aggregator_port": port,
        "connect_timeout_sec": 60,
    }
    traceml.init(mode="auto", on_missing_aggregator="raise", **where)
    around_step: AroundStep = traceml.trace_step
    return around_step


def compare(cases: tuple[Case, ...], seconds: float) -> list[Cost]:
    """Every case with every tool."""
    costs = []
    plain = Tool(name="plain", hooks=Hooks())
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        traceml_server(Path(scratch)) as port,
    ):
        first = Loop(cases[0])
        run = Path(scratch) / "run"
        run.mkdir()
        tools = [
            Tool(name="nothing", hooks=Hooks()),
            started("stepscope", lambda: begin_stepscope(run), first),
        ]
        if port is None:
            print("TraceML is not installed beside this python: left out")
        else:
            tools.append(started("TraceML", lambda: begin_traceml(port, Path(scratch)), first))
        for case in cases:
            loop = Loop(case)
            loop.fit(plain)
            for tool in tools:
                warm_up(loop, tool)
            share = seconds / len(cases)
            told = alternate(
                loop, plain, tools[:2], share * (0.5 if tools[2:] else 0.7), is_long=False
            )
            if tools[2:]:
                told |= alternate(loop, plain, tools[2:], share * 0.2, is_long=True)
            stretch_s = max(1.0, share * 0.3 / (len(tools) - 1) - LEAD_IN_S)
            costs += [
                measured(case.name, tool, told[tool.name], apart_us(loop, tool, stretch_s))
                for tool in tools
            ]
            check_recorded(loop, tools[1])
        end_stepscope()
    return costs


def warm_up(loop: Loop, tool: Tool) -> None:
    """Until a tool knows the loop: stepscope takes another optimizer for the loop's only after 50
    steps."""
    tool.hooks.put_in(to_make=True)
    for _ in range(5):
        loop.block(tool)
    tool.hooks.take_out(to_make=True)


def begin_stepscope(run: Path) -> None:
    hooks.begin(run, Options(start_step=NEVER))


def check_recorded(loop: Loop, tool: Tool) -> None:
    """Each step of a block is one to the capture."""
    session = hooks.current()
    assert session is not None
    session.catch_up()
    before = session.step
    tool.hooks.put_in()
    loop.block(tool)
    tool.hooks.take_out()
    session.catch_up()
    assert session.guard.is_on, "stepscope switched itself off"
    assert session.step - before == LONG_BLOCK_STEPS + LONG_SETTLE_STEPS, "stepscope did not record"


def end_stepscope() -> None:
    session = hooks.current()
    assert session is not None
    session.finish()
    session.guard.off()


HEAD = (
    "step|tool|blocks|training thread|its looks|its threads|process|% of CPU|all "
    "steps|wall|device|% of device"
)


def table(costs: list[Cost]) -> str:
    """Microseconds a step."""
    head = tuple(HEAD.split("|"))
    rows = [head]
    for cost in costs:
        device = cost.plain_device_us
        rows.append(
            (
                f"{cost.case} ({cost.plain_wall_us / 1e3:.2f})",
                cost.tool,
                str(cost.num_blocks),
                str(cost.thread_us),
                f"{cost.looks_us:.1f}",
                f"{cost.threads_us:.1f}",
                f"{cost.process_us:.1f}",
                f"{cost.process_us / cost.plain_thread_us:.2%}",
                str(cost.every_us),
                str(cost.wall_us),
                "-" if cost.device_us is None else str(cost.device_us),
                "-"
                if cost.device_us is None or not device
                else f"{cost.device_us.median / device:.2%}",
            )
        )
    widths = [max(len(row[index]) for row in rows) for index in range(len(head))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="for all cases together, about (default: 120)"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="the steps with this in their name, such as '2 ms'",
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument(
        "--memory", action="store_true", help="memory and folder over many steps, instead of time"
    )
    parser.add_argument(
        "--steps", type=int, default=TOLD_AT[-1], help="with --memory (default: %(default)s)"
    )
    told = parser.parse_args()
    torch.set_num_threads(1)
    made: list[dict[str, Any]]
    if told.memory:
        made = remember(told.steps)
        print(f"{'steps':>10} {'of seconds':>10} {'RSS MB':>8} {'folder kB':>10}")
        for row in made:
            print(
                f"{row['steps']:>10} {row['seconds']:>10} {row['rss_bytes'] / 1e6:>8.1f} "
                f"{row['folder_bytes'] / 1e3:>10.0f}"
            )
    else:
        cases = CUDA_CASES if torch.cuda.is_available() else CPU_CASES
        costs = compare(tuple(case for case in cases if told.only in case.name), told.seconds)
        made = [asdict(cost) for cost in costs]
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
        print(
            f"torch {torch.__version__}, Python {platform.python_version()}, {where}; "
            "microseconds a step, median (95 %)"
        )
        print(table(costs))
    if told.json:
        told.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
