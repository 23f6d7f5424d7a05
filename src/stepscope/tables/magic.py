"""`%%stepscope`: a notebook's cell, recorded while it trains, and its run in a variable.

IPython is not imported: it asks for what stands here by `%load_ext stepscope`.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import time
from pathlib import Path
from typing import Any, NoReturn

import stepscope
from stepscope.errors import UsageError
from stepscope.protocol.run_folder import RUNS
from stepscope.readers.run_folder.folder import read_run
from stepscope.tables.run import Run, load

NAME = "stepscope"
NO_STEP = (
    "no optimizer made a step in this cell, so there is nothing to diagnose: the cell under "
    "%%stepscope is the one with the training loop"
)


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext stepscope`."""

    def of_cell(line: str, cell: str) -> Run | None:
        return recorded(shell, line, cell)

    of_cell.__doc__ = _parser().format_help()
    shell.register_magic_function(of_cell, "cell", NAME)


def unload_ipython_extension(shell: Any) -> None:
    shell.magics_manager.magics["cell"].pop(NAME, None)


def recorded(shell: Any, line: str, cell: str) -> Run | None:
    """Runs the cell with the capture on; what it raises is shown as without. None where the run
    has no step."""
    given = _parser().parse_args(shlex.split(line))
    try:
        importlib.import_module("torch")
    except ImportError as problem:
        raise UsageError(f"%%stepscope needs torch in this kernel: {problem}") from None
    options = {
        name: getattr(given, name)
        for name in ("start_step", "num_steps", "modules", "stacks", "memory")
        if getattr(given, name) is not None
    }
    scope = stepscope.profile(given.out or _dated(), **options)
    scope.is_by_hand = False
    with scope:
        shell.run_cell(cell)
    if not any(rank.rows for rank in read_run(scope.out).ranks):
        print(f"stepscope: {NO_STEP}")
        return None
    run = load(scope.out, cache=False)
    shell.user_ns[given.name] = run
    return run


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%stepscope: {message}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="%%stepscope",
        description="Record the training loop of this cell, and diagnose it.",
        add_help=False,
    )
    parser.add_argument("name", nargs="?", default="run", type=_name, help="the run's variable")
    parser.add_argument("--out", metavar="DIR", help=f"a folder (default: a dated one in {RUNS}/)")
    for option, name, words in (
        ("--start-step", "start_step", "the step to record from"),
        ("--steps", "num_steps", "steps in a recording (default: 3)"),
    ):
        parser.add_argument(option, dest=name, metavar="N", type=_count, help=words)
    for name, words in (
        ("modules", "findings name modules"),
        ("stacks", "findings name lines of code"),
        ("memory", "record allocations"),
    ):
        parser.add_argument(f"--{name}", action="store_true", default=None, help=words)
    return parser


def _name(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text} is no name of a variable")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of steps; give 1 or more")
    return int(text)


def _dated() -> Path:
    """A folder that is not there yet: cells may begin within one second."""
    name = f"{Path(RUNS)}/{time.strftime('%Y-%m-%d-%H%M%S')}"
    numbered = (f"{name}-{number}" for number in range(2, 1_000))
    return next(Path(each) for each in (name, *numbered) if not Path(each).exists())
