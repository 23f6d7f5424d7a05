"""What the capture costs a job while no profiler is attached, beside TraceML in the same process.

    PYTHONPATH=src python -m benchmarks.capture [--seconds N] [--json FILE]
    PYTHONPATH=src python -m benchmarks.capture --memory [--steps N]

Run it from the root of the repository. torch and the standard library are enough; TraceML is left out where it is not installed
(`pip install traceml-ai==0.5.0`).

The loop is a plain one: a DataLoader without workers, a small perceptron, backward, SGD, one thread. It is made as large as takes
the wanted time. Blocks of a few steps alternate: plain, stepscope, plain, TraceML, plain, ... A tool's hooks are put in before
its block and taken out after it, down to the functions of torch that it replaced, so that plain is plain.

- **training thread**: CPU time of the thread that trains, a step: the mean of the middle half of a block's steps. Each block is
  compared with the mean of the plain blocks before and after it; told is the median over blocks, with a bootstrap interval
  of 95 %. What falls on one step in 50, as stepscope's look does, is not in it. The shorter the blocks, the less does it
  matter that the machine is now faster, now slower.
- **its threads**: CPU time of the threads that the tool started, by their own clocks, over a stretch in which it is on all the
  time, a step. For stepscope that is the writer with its samples once a second; for TraceML the sampler and the exporter.
- **process**: the sum: what a step costs more in CPU time of the whole process.
- **wall**, **device**: as for the training thread. Device time is the distance of two CUDA events around a block.

stepscope records for real, into a folder that is thrown away. TraceML runs in the way its documentation has for a plain loop:
`traceml.init(mode="auto")` and `with traceml.trace_step(model)`, with `traceml serve` beside it, a process of its own whose
time is not counted. The tool called nothing is the plain loop once more: how far its figures are from zero is how far
to trust the others.

On a GPU there are two loops: one that the device bounds, and one of small kernels that the host bounds, where nothing hides what
a hook costs. There the training thread spins while it waits for the device, and only wall and device time mean anything.

With --memory, steps are told to the hooks without any training, on a clock that is made up, and the writer takes its turn once
a second of that clock.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import itertools
import json
import platform
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.capture import hooks
from stepscope.capture.guard import Guard
from stepscope.capture.options import Options
from stepscope.capture.session import Session

NEVER = 10**12
"""The step a recording begins with: none does."""
LEAD_IN_S = 1.2
"""Before a stretch, so that it begins with as many steps waiting for the writer as it ends with."""
BLOCK_STEPS, SETTLE_STEPS = 12, 3
LONG_BLOCK_STEPS, LONG_SETTLE_STEPS = 20, 4
"""Steps of a block, and those before it that are not timed. The long ones are for TraceML, which changes classes in use."""
TOLD_AT = (100_000, 500_000, 1_000_000, 2_000_000)
STEP_NS = 2_000_000

ABSENT = object()
WHEN_MADE = ("profile_hook_step", "__iter__", "__next__")
"""Needed while a tool's optimizer and its pass over the loader are made, which then have them in classes of their own: to change
a class makes Python forget what it knows of it, and the steps after that are slower."""

torch: Any = importlib.import_module("torch")


AroundStep = Callable[[Any], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loop whose step takes as long as wanted."""

    name: str
    step_ms: float
    width: int
    depth: int
    batch: int
    device: str = "cpu"
    grows: str = "batch"
    """What is made larger until a step takes as long."""


CPU_CASES = (
    Case(name="2 ms", step_ms=2, width=256, depth=3, batch=32),
    Case(name="10 ms", step_ms=10, width=512, depth=4, batch=64),
)
CUDA_CASES = (
    Case(name="10 ms, device-bound", step_ms=10, width=4096, depth=4, batch=512, device="cuda"),
    Case(name="10 ms, host-bound", step_ms=10, width=64, depth=100, batch=16, device="cuda", grows="depth"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A few steps, each figure for one of them."""

    thread_us: float
    wall_us: float
    device_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """A median and where it lies with 95 %."""

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
    threads_us: float
    process_us: float
    wall_us: Middle
    device_us: Middle | None
    plain_device_us: float | None


Three = tuple[Block, Block, Block]
"""A tool's block between two plain ones."""


class Hooks:
    """The functions of torch that a tool has replaced, to be put in and taken out at will."""

    def __init__(self) -> None:
        self._before = _functions()
        self._changed: list[tuple[Any, str, Any, Any]] = []
        self._lists_out = self._lists_in = [held.copy() for held in _lists()]

    def learn(self) -> None:
        """The tool is in now."""
        before, after = self._before, _functions()
        changed = [key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)]
        self._changed = [(*key, before.get(key, ABSENT), after.get(key, ABSENT)) for key in changed]
        self._lists_in = [held.copy() for held in _lists()]

    def put_in(self, *, to_make: bool = False) -> None:
        """`to_make` an optimizer and a pass over the loader, too."""
        for owner, name, _, now in self._changed:
            if to_make or name not in WHEN_MADE:
                _set(owner, name, now)
        _fill(self._lists_in)

    def take_out(self, *, to_make: bool = False) -> None:
        for owner, name, was, _ in self._changed:
            if to_make or name not in WHEN_MADE:
                _set(owner, name, was)
        _fill(self._lists_out)


def _owners() -> tuple[Any, ...]:
    data = torch.utils.data
    iterator = data.dataloader._BaseDataLoaderIter  # noqa: SLF001 - hooked by the capture
    return (data.DataLoader, iterator, torch.nn.Module, torch.Tensor, torch.autograd, torch.optim.Optimizer)


def _lists() -> tuple[Any, ...]:
    held = vars(sys.modules["torch.optim.optimizer"])
    return (gc.callbacks, held["_global_optimizer_pre_hooks"], held["_global_optimizer_post_hooks"])


def _functions() -> dict[tuple[Any, str], Any]:
    return {(owner, name): value for owner in _owners() for name, value in vars(owner).items() if name != "__dict__"}


def _set(owner: Any, name: str, value: Any) -> None:
    if value is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _fill(wanted: list[Any]) -> None:
    for held, what in zip(_lists(), wanted, strict=True):
        held.clear()
        (held.update if isinstance(held, dict) else held.extend)(what)


@dataclass(kw_only=True)
class Tool:
    """One way to run the loop."""

    name: str
    hooks: Hooks
    around_step: AroundStep | None = None
    threads: tuple[threading.Thread, ...] = ()

    def threads_ns(self) -> int:
        alive = [thread.ident for thread in self.threads if thread.is_alive() and thread.ident is not None]
        return sum(time.clock_gettime_ns(time.pthread_getcpuclockid(ident)) for ident in alive)


class Batches:
    """The same batch for ever."""

    def __init__(self, *batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, _: int) -> Any:
        return self._batch


class Loop:
    """The training loop of a case. Each tool has a pass over the loader and an optimizer, both made while its hooks are in."""

    def __init__(self, case: Case) -> None:
        self.case, self.batch, self.depth = case, case.batch, case.depth
        self._own: dict[str, tuple[Any, Iterator[Any]]] = {}
        self._build()

    def _build(self) -> None:
        width, device = self.case.width, self.case.device
        layers = [layer for _ in range(self.depth) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 8)).to(device)
        batches = Batches(torch.randn(self.batch, width), torch.zeros(self.batch, dtype=torch.long))
        self.loader = torch.utils.data.DataLoader(batches, batch_size=None)
        self._own.clear()
        self._state: Any = defaultdict(dict)

    def fit(self, tool: Tool) -> None:
        """Makes the loop as large as takes the wanted time."""
        for _ in range(5):
            self.block(tool)
            ratio = (
                self.case.step_ms
                * 1e3
                / statistics.median(block.device_us or block.thread_us for block in (self.block(tool) for _ in range(3)))
            )
            if self.case.grows == "batch":
                self.batch = max(1, round(self.batch * ratio))
            else:
                self.depth = max(1, round(self.depth * ratio))
            self._build()

    def block(self, tool: Tool, *, is_long: bool = True) -> Block:
        """A few steps, after some that are not timed."""
        if tool.name not in self._own:
            self._own[tool.name] = self._optimizer(), self._batches()
        optimizer, batches = self._own[tool.name]
        steps, settle_steps = (LONG_BLOCK_STEPS, LONG_SETTLE_STEPS) if is_long else (BLOCK_STEPS, SETTLE_STEPS)
        self._steps(settle_steps, optimizer, batches, tool.around_step)
        is_cuda = self.case.device == "cuda"
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_cuda else []
        if is_cuda:
            torch.cuda.synchronize()
            events[0].record()
        wall = time.perf_counter_ns()
        thread_ns = self._steps(steps, optimizer, batches, tool.around_step)
        if is_cuda:
            events[1].record()
            torch.cuda.synchronize()
        wall = time.perf_counter_ns() - wall
        device_us = events[0].elapsed_time(events[1]) * 1e3 / steps if is_cuda else None
        return Block(thread_us=middle_half(thread_ns) / 1e3, wall_us=wall / 1e3 / steps, device_us=device_us)

    def _optimizer(self) -> Any:
        # A class of its own, made out of the step as torch has it: whoever hooks optimizers now hooks this one alone.
        sgd = torch.optim.SGD
        made = type("SGD", (sgd,), {"step": vars(sgd)["step"]})(self.model.parameters(), lr=1e-6, momentum=0.9)
        # One state for all: where a tensor lies in memory makes a difference, too.
        made.state = self._state
        return made

    def _batches(self) -> Iterator[Any]:
        made: Any = iter(self.loader)
        if isinstance(made, torch.utils.data.dataloader._BaseDataLoaderIter):  # noqa: SLF001 - hooked by the capture
            made.__class__ = type("Own", (type(made),), {"__next__": type(made).__next__})
        batches: Iterator[Any] = made
        return batches

    def _steps(self, num: int, optimizer: Any, batches: Iterator[Any], around_step: AroundStep | None) -> list[int]:
        """CPU time of each step."""
        model, device, loss_of = self.model, self.case.device, torch.nn.functional.cross_entropy
        ends = [time.thread_time_ns()]
        for x, y in itertools.islice(batches, num):
            with nullcontext() if around_step is None else around_step(model):
                optimizer.zero_grad(set_to_none=True)
                loss = loss_of(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
                loss.backward()
                optimizer.step()
            ends.append(time.thread_time_ns())
        return [end - begun for begun, end in itertools.pairwise(ends)]


def middle_half(values: list[int]) -> float:
    """The mean of the middle half: a step during which somebody else had the caches says nothing."""
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


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


def alternate(loop: Loop, plain: Tool, tools: list[Tool], seconds: float, *, is_long: bool) -> dict[str, list[Three]]:
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


def threads_us(loop: Loop, tool: Tool, seconds: float) -> float:
    """CPU time of the tool's threads for each step of a stretch in which it is on all the time."""
    if not tool.threads:
        return 0.0
    tool.hooks.put_in()
    lead_in = time.perf_counter() + LEAD_IN_S
    while time.perf_counter() < lead_in:
        loop.block(tool)
    begun, until, num = tool.threads_ns(), time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        loop.block(tool)
        num += LONG_BLOCK_STEPS + LONG_SETTLE_STEPS
    spent = tool.threads_ns() - begun
    tool.hooks.take_out()
    return spent / 1e3 / num


def middle(values: list[float]) -> Middle:
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return Middle(median=statistics.median(values), low=medians[50], high=medians[1949])


def added(blocks: list[Three], of: Callable[[Block], float]) -> Middle:
    return middle([of(during) - (of(before) + of(after)) / 2 for before, during, after in blocks])


def measured(case: str, tool: Tool, blocks: list[Three], in_threads_us: float) -> Cost:
    plain = [before for before, _, _ in blocks]
    is_cuda = blocks[0][0].device_us is not None
    thread = added(blocks, lambda block: block.thread_us)
    return Cost(
        case=case,
        tool=tool.name,
        num_blocks=len(blocks),
        plain_thread_us=statistics.median(block.thread_us for block in plain),
        plain_wall_us=statistics.median(block.wall_us for block in plain),
        plain_device_us=statistics.median(block.device_us or 0.0 for block in plain) if is_cuda else None,
        thread_us=thread,
        threads_us=in_threads_us,
        process_us=thread.median + in_threads_us,
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
        [command, "serve", "--logs-dir", str(folder), "--run-name", "bench", "--aggregator-port", str(port)],
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
    where = {"logs_dir": str(folder), "session_id": "bench", "aggregator_port": port, "connect_timeout_sec": 60}
    traceml.init(mode="auto", on_missing_aggregator="raise", **where)
    around_step: AroundStep = traceml.trace_step
    return around_step


def compare(cases: tuple[Case, ...], seconds: float) -> list[Cost]:
    """Every case with every tool."""
    costs = []
    plain = Tool(name="plain", hooks=Hooks())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, traceml_server(Path(scratch)) as port:
        first = Loop(cases[0])
        run = Path(scratch) / "run"
        run.mkdir()
        tools = [Tool(name="nothing", hooks=Hooks()), started("stepscope", lambda: begin_stepscope(run), first)]
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
            told = alternate(loop, plain, tools[:2], share * (0.5 if tools[2:] else 0.7), is_long=False)
            if tools[2:]:
                told |= alternate(loop, plain, tools[2:], share * 0.2, is_long=True)
            stretch_s = max(1.0, share * 0.3 / (len(tools) - 1) - LEAD_IN_S)
            costs += [measured(case.name, tool, told[tool.name], threads_us(loop, tool, stretch_s)) for tool in tools]
            check_recorded(loop, tools[1])
        end_stepscope()
    return costs


def warm_up(loop: Loop, tool: Tool) -> None:
    """Until a tool knows the loop: stepscope takes another optimizer for the loop's only after 50 steps."""
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


def table(costs: list[Cost]) -> str:
    """Microseconds a step."""
    head = ("step", "tool", "blocks", "training thread", "its threads", "process", "% of CPU", "wall", "device", "% of device")
    rows = [head]
    for cost in costs:
        device = cost.plain_device_us
        rows.append(
            (
                f"{cost.case} ({cost.plain_wall_us / 1e3:.2f})",
                cost.tool,
                str(cost.num_blocks),
                str(cost.thread_us),
                f"{cost.threads_us:.1f}",
                f"{cost.process_us:.1f}",
                f"{cost.process_us / cost.plain_thread_us:.2%}",
                str(cost.wall_us),
                "-" if cost.device_us is None else str(cost.device_us),
                "-" if cost.device_us is None or not device else f"{cost.device_us.median / device:.2%}",
            )
        )
    widths = [max(len(row[index]) for row in rows) for index in range(len(head))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def remember(num_steps: int) -> list[dict[str, Any]]:
    """Memory and folder after so many steps, told to the hooks one by one."""
    folder = Path(tempfile.mkdtemp())
    session = Session(folder, Options(start_step=NEVER, sample_s=1e6), Guard())
    optimizer, now, told = object(), time.perf_counter_ns(), []
    try:
        for step in range(1, num_steps + 1):
            now += STEP_NS
            session.stepped(optimizer, now - 300_000, now)
            if step % 50_000 == 0:
                session.saved(None, now, now + 50_000_000)
            if step % (10**9 // STEP_NS) == 0 and session.writer is not None:
                session.writer._turn()  # noqa: SLF001 - what its thread calls once a second
            if step in TOLD_AT or step == num_steps:
                size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                told.append({"steps": step, "seconds": step * STEP_NS // 10**9, "rss_bytes": rss_bytes(), "folder_bytes": size})
        session.finish()
    finally:
        shutil.rmtree(folder)
    return told


def rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="for all cases together, about (default: 120)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--memory", action="store_true", help="memory and folder over many steps, instead of time")
    parser.add_argument("--steps", type=int, default=TOLD_AT[-1], help="with --memory (default: %(default)s)")
    told = parser.parse_args()
    torch.set_num_threads(1)
    made: list[dict[str, Any]]
    if told.memory:
        made = remember(told.steps)
        print(f"{'steps':>10} {'of seconds':>10} {'RSS MB':>8} {'folder kB':>10}")
        for row in made:
            print(f"{row['steps']:>10} {row['seconds']:>10} {row['rss_bytes'] / 1e6:>8.1f} {row['folder_bytes'] / 1e3:>10.0f}")
    else:
        costs = compare(CUDA_CASES if torch.cuda.is_available() else CPU_CASES, told.seconds)
        made = [asdict(cost) for cost in costs]
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
        print(f"torch {torch.__version__}, Python {platform.python_version()}, {where}; microseconds a step, median (95 %)")
        print(table(costs))
    if told.json:
        told.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
