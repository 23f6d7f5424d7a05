"""The commands, by what a person wants of them, and the first screen that lists them."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple


class Action(NamedTuple):
    """What a command's module has."""

    options: type[Any]
    """`Options`: a dataclass whose fields `cli.options.option` makes."""
    run: Callable[[Any], int]
    """`run(options)` does the work, and gives the exit code."""
    text: str
    """The module's docstring, which is the command's help."""


INSTALLED = "of installed packages"


class Command(NamedTuple):
    """A subcommand. Its module is imported when it is asked for."""

    name: str
    """Name as a user writes it."""
    about: str
    """The first line of its module's docstring."""
    module: str
    group: str = INSTALLED
    """The heading that `stepscope --help` has it under."""

    def load(self) -> Action:
        module = import_module(self.module)
        return Action(options=module.Options, run=module.run, text=(module.__doc__ or "").strip())


LOOK, PROVE, WATCH, PLAN, SHARE = "look", "prove", "watch", "plan", "share and automate"
OURS = {
    LOOK: (
        ("run", "cli.run", "Record a job with nothing edited, then diagnose it."),
        ("diagnose", "cli.diagnose", "What limits a recorded run, and what each fix would give."),
        ("report", "cli.report", "The report as one HTML file that opens anywhere."),
        ("explain", "cli.explain", "What a finding means, why it costs, and how to fix it."),
        ("demo", "cli.demo", "Diagnose a real trace that ships with stepscope: needs no GPU."),
    ),
    PROVE: (
        ("fix", "cli.fix", "Try a run's findings from the top: prove each, keep or revert."),
        (
            "verify",
            "cli.verify.command",
            "Prove one change: both sides run for real until it is settled.",
        ),
        ("compare", "cli.compare", "Two recorded runs: how much faster the second is, and where."),
        (
            "probe",
            "probe.command",
            "Time operators here, as they ran and as a fix would have them.",
        ),
        (
            "tune",
            "tune.cli.command",
            "Search a job's knobs by short real trials; prove the winner.",
        ),
    ),
    WATCH: (
        (
            "watch",
            "live.watch.command",
            "A job that `run` records, live: every rank's step, and alerts.",
        ),
        (
            "triage",
            "live.cli.triage",
            "Any running job, recorded or not: what limits it, in 30 seconds.",
        ),
        (
            "attach",
            "live.cli.attach",
            "A job that stands still: whether it is hung or slow, and where.",
        ),
        (
            "health",
            "live.cli.health",
            "Before a long run: ten steps, and an exit code for schedulers.",
        ),
    ),
    PLAN: (
        (
            "plan",
            "plan.cli.command",
            "The best layout of a model on a cluster: its time and memory.",
        ),
        (
            "calibrate",
            "calibrate.command",
            "What this machine really reaches, as a file for the others.",
        ),
    ),
    SHARE: (
        (
            "serve",
            "doors.serve.command",
            "A page for this machine: its runs, their reports, a job live.",
        ),
        ("runs", "runs.command", "The runs that are kept here: verdicts, names, and a clean-up."),
        ("query", "tables.query.command", "SQL over a run's events."),
        ("export", "tables.export", "A run as a file for another tool: a timeline for Perfetto."),
        ("mcp", "doors.mcp.command", "Tools for an agent, over the Model Context Protocol."),
        ("skill", "doors.skill", "What teaches an agent to use stepscope."),
        (
            "doctor",
            "doctor.command",
            "What this machine allows a profiler, and what to do about it.",
        ),
        ("formats", "cli.formats", "What stepscope reads, and how each format is recorded."),
    ),
}
"""Ours, in the order of `--help`: name, module, the first line of its docstring. A new one is its
module and its line here."""
COMMANDS = tuple(
    Command(name, about, f"stepscope.{module}", group)
    for group, rows in OURS.items()
    for name, module, about in rows
)

EXAMPLES = (
    ("stepscope run -- python train.py", "record, then diagnose"),
    ("stepscope traces/", "diagnose a recording"),
    ("stepscope fix stepscope-runs/RUN --verify", "try its fixes, prove each"),
    ("stepscope plan --model llama3-8b --cluster 4x8xH100", "the best layout"),
)
MIN_WIDTH, MAX_WIDTH = 60, 100


def overview(commands: Sequence[Command]) -> str:
    """What `stepscope --help` says: examples, then a line for each command, in groups."""
    width = min(max(shutil.get_terminal_size().columns - 2, MIN_WIDTH), MAX_WIDTH)
    examples = max(len(example) for example, _ in EXAMPLES)
    lines = [f"  {example:{examples}}  {about}" for example, about in EXAMPLES]
    names = max(len(command.name) for command in commands)
    for group, members in groupby(commands, lambda command: command.group):
        lines += ["", f"{group}:"]
        for command in members:
            lines += _entry(command, names, width)
    lines += ["", "stepscope COMMAND --help has the options of a command; --version, the version."]
    return "\n".join(["stepscope: why is this PyTorch training run slow?", "", *lines, ""])


def _entry(command: Command, names: int, width: int) -> Iterator[str]:
    indent = " " * (names + 4)
    yield from textwrap.wrap(
        command.about, width, initial_indent=f"  {command.name:{names}}  ", subsequent_indent=indent
    )
