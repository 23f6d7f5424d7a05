"""What rooms add to the core's own commands.

The shapes stand here. A room's module fills one, as its `ADDITION`, and is imported when it is
asked for: the core names it, and imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from stepscope.core.hardware import ProbedTimes
    from stepscope.core.peak import GivenWork
    from stepscope.pipeline.options import Options
    from stepscope.report.document.blocks import Document

T = TypeVar("T")


class Watcher(Protocol):
    def look(self) -> None: ...

    def close(self) -> None: ...


class BesideJob(NamedTuple):
    """What `run` does beside its job."""

    options: type[Any]
    """A dataclass whose fields `cli.options.option` makes."""
    start: Callable[[Path, Any], Watcher]
    """Starts a watcher from the run folder and the options."""


class AfterJob(NamedTuple):
    """What `run` does when its job has ended."""

    options: type[Any]
    """A dataclass whose fields `cli.options.option` makes."""
    time: Callable[[dict[str, ProbedTimes], Sequence[str], Any], bool]
    """Times what was asked for of each device, given the job's command and the options: whether
    there is more to judge by now."""


class PlanAndRun(NamedTuple):
    """What `compare` does where A is no run but a plan."""

    find: Callable[[str], bytes | None]
    """The plan at a path; None where it is something else."""
    compare: Callable[[list[str], bytes, Options, str, Path | None, Path | None], int]
    """Compares from the paths, the plan, how the run is read, the format, the file to write and the
    one for the rates; gives the exit code."""


class WorkInWords(NamedTuple):
    """What a step's work is, where a user names the devices, the model, the tokens of a sequence
    and the sequences of a step."""

    work_of: Callable[[str, str | None, int | None, int | None], GivenWork]


class ScalingRuns(NamedTuple):
    """What `diagnose --scaling` and `compare --scaling` do with runs of several widths."""

    run: Callable[..., int]
    """Judges from the paths, the step times, whether it is weak or strong where that is given, how
    the runs are read, the format, and what a gate asks of it; gives the exit code."""
    quantities: tuple[str, ...]
    """What such a gate may name."""


class LiveRuns(NamedTuple):
    """What `serve` shows of a run that may be under way, by its folder."""

    document: Callable[[Path], tuple[Document, bool]]
    """What `watch` prints, and whether the job has ended."""
    series: Callable[[Path], Callable[[], dict[str, Any]]]
    """What its pictures are drawn of, each time anew; what was read stays."""


def live_runs() -> LiveRuns:
    return _addition("stepscope.live.served", LiveRuns)


def scaling_runs() -> ScalingRuns:
    return _addition("stepscope.scaling.command", ScalingRuns)


def beside_job() -> BesideJob:
    return _addition("stepscope.live.watch.beside_job", BesideJob)


def after_job() -> AfterJob:
    return _addition("stepscope.probe.after_job", AfterJob)


def plan_and_run() -> PlanAndRun:
    return _addition("stepscope.plan.cli.plan_and_run", PlanAndRun)


def work_in_words() -> WorkInWords:
    return _addition("stepscope.plan.cli.work_in_words", WorkInWords)


def _addition(module: str, shape: type[T]) -> T:
    found = import_module(module).ADDITION
    assert isinstance(found, shape), module
    return found
