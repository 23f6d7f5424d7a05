"""The command line's options as fields of a dataclass, each declared once; and those that several
commands have.

class Options:
    steps: int = option("--steps N", "timed steps (default: 50)", count, 50)
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.cli.printing import progress_bar
from stepscope.errors import InputError
from stepscope.protocol.run_folder import RUNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.pipeline.options import Options


MAX_DIGITS = 20
"""Digits of a whole number: Python refuses to read one of thousands."""


def int_in_range(what: str, least: int = 1, most: int = 10**9) -> Callable[[str], int]:
    """Reads whole numbers in a range; `what` says what others are not."""

    def read(text: str) -> int:
        is_short = text.isdecimal() and len(text) <= MAX_DIGITS
        if text.isdecimal() and (not is_short or int(text) > most):
            raise ArgumentTypeError(f"{text[:60]!r} is more than {most}")
        if not is_short or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not {what}")
        return int(text)

    return read


def real(what: str, is_good: Callable[[float], bool]) -> Callable[[str], float]:
    """Reads numbers; `what` says what those are not that are not good."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not is_good(value):
            raise ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return read


def positive(what: str, most: float = 1e9) -> Callable[[str], float]:
    """Reads numbers above 0."""
    return real(f"{what}: above 0, at most {most:g}", lambda value: 0 < value <= most)


count = int_in_range("a whole number from 1 on")
seconds = positive("a number of seconds", 1e7)
step_time = real(
    "a step time in milliseconds; give a number above 0, such as 65.5",
    lambda value: 0 < value < 1e9,
)


T = TypeVar("T")
FORMATS = ("text", "json", "markdown")


def option(
    names: str,
    about: str,
    read: Callable[[str], Any] | None = None,
    default: Any = None,
    was: str | None = None,
    **more: Any,
) -> Any:
    """A field that the command line gives; `was` is a name it had before, which is still read.

    | `names` | what it is |
    |---|---|
    | `--steps N` | takes a value; several times, where a list is the default |
    | `-o/--out FILE` | has two names |
    | `--quick` | a flag, where it has no choices |
    | `PATH` | a word by its place |
    """
    flags, _, metavar = names.partition(" ")
    given: dict[str, Any] = {"type": read, "default": default, "metavar": metavar or None}
    if not flags.startswith("-"):
        given["metavar"] = names
        flags = ""
    elif not metavar and "choices" not in more:
        given = {
            "action": "store_true",
            "default": {None: False, "store_false": True}.get(more.get("action")),
        }
    elif isinstance(default, list):
        given["action"] = "append"
    settings = {**given, "help": about, **more}
    return field(
        default_factory=lambda: settings["default"],
        metadata={"flags": flags, "settings": settings, "was": was},
    )


def group(shape: type, title: str, about: str | None = None) -> Any:
    """A field with options of its own, under a title."""
    return _nested(shape, lambda parser: parser.add_argument_group(title, about))


def one_alone(shape: type) -> Any:
    """A field with options of its own, of which one alone may be given."""
    return _nested(shape, lambda parser: parser.add_mutually_exclusive_group())


def part(shape: type) -> Any:
    """A field with options of its own, among the others."""
    return _nested(shape, lambda parser: parser)


def _nested(shape: type, place: Callable[[argparse._ActionsContainer], Any]) -> Any:
    return field(default_factory=shape, metadata={"shape": shape, "place": place})


def actions(shapes: Mapping[str, tuple[type, str]], **settings: Any) -> Any:
    """A field with the options of the action that is named, each with a line of help; None where
    none is."""
    return field(default=None, metadata={"actions": shapes, "settings": settings})


def command(about: str = "what starts the job", *, keeps_dashes: bool = False) -> Any:
    """All words that are left, without the two dashes before them."""
    settings = {"metavar": "-- COMMAND ...", "nargs": argparse.REMAINDER, "help": about}
    return field(
        default=(), metadata={"flags": "", "settings": settings, "is_cut": not keeps_dashes}
    )


def add_options(parser: argparse._ActionsContainer, shape: type[Any]) -> None:
    """The options that are fields of a dataclass, in their order."""
    for each in fields(shape):
        of = each.metadata
        if "shape" in of:
            add_options(of["place"](parser), of["shape"])
        elif "actions" in of:
            assert isinstance(parser, argparse.ArgumentParser)
            parsers = parser.add_subparsers(dest=each.name, **of["settings"])
            for name, (action, about) in of["actions"].items():
                add_options(parsers.add_parser(name, help=about), action)
        elif of["flags"]:
            parser.add_argument(*of["flags"].split("/"), dest=each.name, **of["settings"])
            if of["was"]:
                hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
                parser.add_argument(of["was"], dest=each.name, **of["settings"] | hidden)
        else:
            parser.add_argument(each.name, **of["settings"])


def options_of(shape: type[T], arguments: argparse.Namespace) -> T:
    """A dataclass whose fields are named as the command line's options."""
    values = {}
    for each in fields(shape):  # type: ignore[arg-type]
        of = each.metadata
        value: Any = None if "shape" in of else getattr(arguments, each.name)
        if "shape" in of:
            value = options_of(of["shape"], arguments)
        elif "actions" in of and value is not None:
            value = options_of(of["actions"][value][0], arguments)
        elif "is_cut" in of:
            value = after_dashes(value) if of["is_cut"] else tuple(value)
        values[each.name] = value
    return shape(**values)


def read_options(shape: type[T], words: Sequence[str], prog: str, description: str) -> T:
    """The options of a command that has a parser of its own."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    add_options(parser, shape)
    return options_of(shape, parser.parse_args(words))


def after_dashes(words: Sequence[str]) -> tuple[str, ...]:
    """The command. A script of Python that is no program by itself is given to Python."""
    command = tuple(words[1:] if words and words[0] == "--" else words)
    if command and command[0].endswith(".py") and shutil.which(command[0]) is None:
        return (_python(), *command)
    return command


def _python() -> str:
    """Ours where it has torch, else what a shell finds."""
    from stepscope.process.isolation import find_tool

    found = find_tool("python")
    is_ours = found is not None and Path(found).parent == Path(sys.executable).parent
    if found is None or not (is_ours or find_spec("torch") is None):
        return sys.executable
    # The word that a person would write, unless it would start a program of the working folder.
    return "python" if shutil.which("python") == found else found


def reading_of(options: Any, step_ms: float | None = None) -> Options:
    """How to read and judge, as the options of any command say."""
    from stepscope.pipeline.options import Options

    given = _by_name(options)
    return Options(
        step_ms=step_ms,
        use_cache=not given.get("no_cache", False),
        jobs=given.get("jobs"),
        cluster=given.get("cluster"),
        all_findings=given.get("all", False),
        hardware=given.get("hardware"),
        progress=progress_bar,
    )


def _by_name(options: Any) -> dict[str, Any]:
    """Every option, those of nested shapes too."""
    values: dict[str, Any] = {}
    for each in fields(options):
        value = getattr(options, each.name)
        values |= _by_name(value) if "shape" in each.metadata else {each.name: value}
    return values


def run_name(text: str) -> str:
    """Parse an option's path as it is, or a run's name (`last`, `last~1`, a tag) as the path of its
    folder. An empty one, as a variable that is not set leaves it, would be this folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty; give . for this folder")
    if os.path.lexists(text):
        return text
    from stepscope.readers.run_folder.kept_runs import resolve

    try:
        return resolve(text)
    except InputError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def run_path(text: str) -> Path:
    """The same as a path."""
    return Path(run_name(text))


def style(choices: Sequence[str] = FORMATS) -> Any:
    about = "how to print it (default: text)"
    return option("--format", about, default="text", choices=choices)


def verbose() -> Any:
    return option(
        "-v/--verbose", "all of it: kernels, host, copies, ranks, notes (default: one screen)"
    )


def step_ms() -> Any:
    return option("--step-ms X", "the step time without a profiler attached, in ms", step_time)


def all_findings() -> Any:
    return option("--all", "also findings whose fix gives less than 2 %%")


def no_cache() -> Any:
    return option("--no-cache", "neither read nor write the columnar cache")


def jobs() -> Any:
    about = "processes to use for several files (default: one per core)"
    return option(
        "--jobs N", about, int_in_range("a number of processes; give 1 or more", most=1024)
    )


def hardware() -> Any:
    return option(
        "--hardware FILE",
        "judge by what `stepscope calibrate` measured, not by datasheets (default: the file "
        "that STEPSCOPE_HARDWARE names)",
        Path,
    )


def scaling(what: str) -> Any:
    return option("--scaling", f"each {what} width: how the job scales")


def scaling_kind() -> Any:
    about = "whether ranks keep their work as the job widens, or share it"
    return option("--scaling-kind", about, choices=("weak", "strong"))


def paths(names: str, about: str) -> Any:
    """Paths, or names of runs."""
    return option(names, about, run_name, nargs="+")


def out_folder(what: str = "the runs are") -> Any:
    return option("--out DIR", f"where {what} kept (default: a dated folder in {RUNS}/)", Path)


def warm_up() -> Any:
    about = "steps before them that do not count, 5 at least (default: 10, fewer of long ones)"
    return option("--warm-up N", about, count)


def budget() -> Any:
    about = "for the whole command: what runs then is ended (default: none)"
    return option("--budget SECONDS", about, seconds)
