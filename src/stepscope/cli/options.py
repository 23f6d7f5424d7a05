"""The command line's options as fields of a dataclass, each declared once; and those that several
commands have.

class Options:
    steps: int = option("--steps N", "timed steps (default: 50)", count, 50)
"""

from __future__ import annotations

import argparse
import os
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.cli.option_types import count, seconds, step_time, whole
from stepscope.cli.progress import progress_bar
from stepscope.errors import InputError
from stepscope.protocol.run_folder import RUNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.pipeline.options import Options

T = TypeVar("T")
FORMATS = ("text", "json", "markdown")
NO_CACHE = "neither read nor write the columnar cache"


def option(
    names: str,
    about: str,
    read: Callable[[str], Any] | None = None,
    default: Any = None,
    **more: Any,
) -> Any:
    """A field that the command line gives.

    | `names` | what it is |
    |---|---|
    | `--steps N` | takes a value; several times, where a list is the default |
    | `-o/--out FILE` | has two names |
    | `--quick` | a flag, where it has no choices |
    | `PATH` | a word by its place |
    | `-- COMMAND ...` | all that is left |
    """
    flags, _, metavar = names.partition(" ")
    given: dict[str, Any] = {"type": read, "default": default, "metavar": metavar or None}
    if flags == "--" or not flags.startswith("-"):
        given["metavar"] = names
        if flags == "--":
            given["nargs"] = argparse.REMAINDER
        flags = ""
    elif not metavar and "choices" not in more:
        given = {"action": "store_true"}
    elif isinstance(default, list):
        given["action"] = "append"
    return field(metadata={"flags": flags, "settings": {**given, "help": about, **more}})


def group(shape: type, title: str = "", about: str | None = None) -> Any:
    """A field with options of its own, under a title; without one, options of which one alone may
    be given."""
    return field(metadata={"shape": shape, "title": title, "about": about})


def add_options(parser: argparse._ActionsContainer, shape: type[Any]) -> None:
    """The options that are fields of a dataclass, in their order."""
    for each in fields(shape):
        of = each.metadata
        if "shape" in of:
            if of["title"]:
                add_options(parser.add_argument_group(of["title"], of["about"]), of["shape"])
            else:
                add_options(parser.add_mutually_exclusive_group(), of["shape"])
        elif of["flags"]:
            parser.add_argument(*of["flags"].split("/"), dest=each.name, **of["settings"])
        else:
            parser.add_argument(each.name, **of["settings"])


def options_of(shape: type[T], arguments: argparse.Namespace) -> T:
    """A dataclass whose fields are named as the command line's options."""
    values = {}
    for each in fields(shape):  # type: ignore[arg-type]
        if "shape" in each.metadata:
            values[each.name] = options_of(each.metadata["shape"], arguments)
        else:
            values[each.name] = getattr(arguments, each.name)
        if each.metadata.get("settings", {}).get("nargs") == argparse.REMAINDER:
            values[each.name] = after_dashes(values[each.name])
    return shape(**values)


def after_dashes(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[1:] if words[:1] == ["--"] else words)


def reading_of(arguments: argparse.Namespace, step_ms: float | None = None) -> Options:
    """How to read and judge, as the arguments of any command say."""
    from stepscope.pipeline.options import Options

    given = vars(arguments)
    return Options(
        step_ms=step_ms,
        use_cache=not given.get("no_cache", False),
        jobs=given.get("jobs"),
        cluster=given.get("cluster"),
        all_findings=given.get("all", False),
        hardware=given.get("hardware"),
        progress=progress_bar,
    )


def run_name(text: str) -> str:
    """As an option's type: a path as it is, or a run's name (`last`, `last~1`, a tag) as the path
    of its folder."""
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
    return option("--no-cache", NO_CACHE)


def add_no_cache(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--no-cache", action="store_true", help=NO_CACHE)


def jobs() -> Any:
    about = "processes to use for several files (default: one per core)"
    return option("--jobs N", about, whole("a number of processes; give 1 or more", most=1024))


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


def command(about: str = "what starts the job") -> Any:
    return option("-- COMMAND ...", about)


def warm_up() -> Any:
    about = "steps before them that do not count, 5 at least (default: 10)"
    return option("--warm-up N", about, count, 10)


def budget() -> Any:
    about = "for the whole command: what runs then is ended (default: none)"
    return option("--budget SECONDS", about, seconds)
