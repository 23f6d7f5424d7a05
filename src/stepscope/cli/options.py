"""Options that several commands have, and the typed options that are made of parsed arguments."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stepscope.cli.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.pipeline.options import Options

T = TypeVar("T")
FORMATS = ("text", "json", "markdown")


def options_of(shape: type[T], arguments: argparse.Namespace) -> T:
    """A dataclass whose fields are named as the command line's options."""
    return shape(**{field.name: getattr(arguments, field.name) for field in fields(shape)})  # type: ignore[arg-type]


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
    from stepscope.errors import InputError
    from stepscope.readers.run_folder.kept_runs import resolve

    try:
        return resolve(text)
    except InputError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def run_path(text: str) -> Path:
    """The same as a path."""
    return Path(run_name(text))


def add_format(parser: argparse.ArgumentParser, choices: Sequence[str] = FORMATS) -> None:
    parser.add_argument(
        "--format", choices=choices, default="text", help="how to print it (default: text)"
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="all of it: kernels, host, copies, ranks, notes (default: one screen)",
    )


def add_step_ms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step-ms",
        type=step_time,
        metavar="X",
        help="the step time without a profiler attached, in ms",
    )


def add_all_findings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="also findings whose fix gives less than 2 %%"
    )


def add_no_cache(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--no-cache", action="store_true", help="neither read nor write the columnar cache"
    )


def add_jobs(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--jobs",
        type=_num_processes,
        metavar="N",
        help="processes to use for several files (default: one per core)",
    )


def add_hardware(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hardware",
        type=Path,
        metavar="FILE",
        help="judge by what `stepscope calibrate` measured, not by datasheets (default: the file "
        "that STEPSCOPE_HARDWARE names)",
    )


def add_scaling(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--scaling", action="store_true", help=f"each {what} width: how the job scales"
    )
    parser.add_argument(
        "--scaling-kind",
        choices=("weak", "strong"),
        help="whether ranks keep their work as the job widens, or share it",
    )


def step_time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a step time in milliseconds; give a number above 0, such as 65.5"
        )
    return value


def _num_processes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; give 1 or more")
    return int(text)
