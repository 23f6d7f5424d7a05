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
    """As a user writes it."""
    about: str
    """The first line of its module's docstring."""
    module: str
    group: str = INSTALLED
    """The heading that `stepscope --help` has it under."""

    def load(self) -> Action:
        module = import_module(self.module)
        return Action(options=module.Options, run=module.run, text=(module.__doc__ or "").strip())


LOOK, PROVE, WATCH, PLAN, SHARE = "look", "prove", "watch", "plan", "share and automate"
COMMANDS = (
    Command(
        "run",
        "Record a job with nothing edited, then diagnose it.",
        "stepscope.cli.run",
        LOOK,
    ),
    Command(
        "diagnose",
        "What limits a recorded run, and what each fix would give.",
        "stepscope.cli.diagnose",
        LOOK,
    ),
    Command(
        "report",
        "The report as one HTML file that opens anywhere.",
        "stepscope.cli.report",
        LOOK,
    ),
    Command(
        "explain",
        "What a finding means, why it costs, and how to fix it.",
        "stepscope.cli.explain",
        LOOK,
    ),
    Command(
        "demo",
        "Diagnose a real trace that ships with stepscope: needs no GPU.",
        "stepscope.cli.demo",
        LOOK,
    ),
    Command(
        "fix",
        "Try a run's findings from the top: prove each, keep or revert.",
        "stepscope.cli.fix",
        PROVE,
    ),
    Command(
        "verify",
        "Prove one change: both sides run for real until it is settled.",
        "stepscope.cli.verify.command",
        PROVE,
    ),
    Command(
        "compare",
        "Two recorded runs: how much faster the second is, and where.",
        "stepscope.cli.compare",
        PROVE,
    ),
    Command(
        "probe",
        "Time operators here, as they ran and as a fix would have them.",
        "stepscope.probe.command",
        PROVE,
    ),
    Command(
        "tune",
        "Search a job's knobs by short real trials; prove the winner.",
        "stepscope.tune.cli.command",
        PROVE,
    ),
    Command(
        "watch",
        "A job that `run` records, live: every rank's step, and alerts.",
        "stepscope.live.watch.command",
        WATCH,
    ),
    Command(
        "triage",
        "Any running job, recorded or not: what limits it, in 30 seconds.",
        "stepscope.live.cli.triage",
        WATCH,
    ),
    Command(
        "attach",
        "A job that stands still: whether it is hung or slow, and where.",
        "stepscope.live.cli.attach",
        WATCH,
    ),
    Command(
        "health",
        "Before a long run: ten steps, and an exit code for schedulers.",
        "stepscope.live.cli.health",
        WATCH,
    ),
    Command(
        "plan",
        "The best layout of a model on a cluster: its time and memory.",
        "stepscope.plan.cli.command",
        PLAN,
    ),
    Command(
        "calibrate",
        "What this machine really reaches, as a file for the others.",
        "stepscope.calibrate.command",
        PLAN,
    ),
    Command(
        "serve",
        "A page for this machine: its runs, their reports, a job live.",
        "stepscope.doors.serve.command",
        SHARE,
    ),
    Command(
        "runs",
        "The runs that are kept here: verdicts, names, and a clean-up.",
        "stepscope.runs.command",
        SHARE,
    ),
    Command(
        "query",
        "SQL over a run's events.",
        "stepscope.tables.query.command",
        SHARE,
    ),
    Command(
        "export",
        "A run as a file for another tool: a timeline for Perfetto.",
        "stepscope.tables.export",
        SHARE,
    ),
    Command(
        "mcp",
        "Tools for an agent, over the Model Context Protocol.",
        "stepscope.doors.mcp.command",
        SHARE,
    ),
    Command(
        "skill",
        "What teaches an agent to use stepscope.",
        "stepscope.doors.skill",
        SHARE,
    ),
    Command(
        "doctor",
        "What this machine allows a profiler, and what to do about it.",
        "stepscope.doctor.command",
        SHARE,
    ),
    Command(
        "formats",
        "What stepscope reads, and how each format is recorded.",
        "stepscope.cli.formats",
        SHARE,
    ),
)
"""Ours, in the order of `--help`. A new one is its module and its line here."""

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
