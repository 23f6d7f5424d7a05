"""What limits a recorded run, measured from its traces.

PATH is a PyTorch profiler (Kineto) or Chrome trace (.json, .json.gz, .json.zst), several of them, a folder with one file per
rank, or a tar of them; here, or behind a URL (s3://, gs://, https://). Logs of NCCL or RCCL (NCCL_DEBUG=INFO) may stand
beside them, named or in the folder.

With --scaling each PATH is a run of one training job at another width, and the report says how it scales and where the loss lies.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import gate as gating
from stepscope.cli.printing import print_report, put, say
from stepscope.json_text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.core.beside import Beside
    from stepscope.core.diagnosis import Diagnosis
    from stepscope.core.gate import Gate
    from stepscope.readers.inputs import Found
    from stepscope.readers.source import Source
    from stepscope.rules.job import Job
    from stepscope.rules.tasks import Workers

FORMATS = ("text", "json", "markdown")
HARDWARE = "STEPSCOPE_HARDWARE"
"""In the environment: the hardware file that every command judges by."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace, folder of rank traces, or tar")
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to print it (default: text)")
    parser.add_argument(
        "--step-ms",
        type=step_time,
        metavar="X",
        action="append",
        default=[],
        help="the step time without a profiler attached, in ms; with --scaling once per run, in their order",
    )
    parser.add_argument("--all", action="store_true", help="also findings whose mend gives less than 2 %%")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the columnar cache")
    parser.add_argument("--scaling", action="store_true", help="each PATH is a run of another width: how the job scales")
    parser.add_argument(
        "--scaling-kind", choices=("weak", "strong"), help="whether ranks keep their work as the job widens, or share it"
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--jobs", type=num_processes, metavar="N", help="processes to use for several files (default: one per core)")
    who.add_argument("--cluster", metavar="ADDRESS", help="read the files on a Dask cluster: its scheduler's address")
    add_hardware(parser)
    gating.add_arguments(parser)


def add_hardware(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hardware",
        type=Path,
        metavar="FILE",
        help=f"judge by what `stepscope calibrate` measured, not by datasheets (default: the file that {HARDWARE} names)",
    )


def hardware_file(given: Path | None) -> Path | None:
    """The hardware file to judge by: the one given, else the environment's; None for datasheets."""
    named = os.environ.get(HARDWARE, "").strip()
    return given if given is not None else Path(named) if named else None


def given_hardware(beside: Beside | None) -> Path | None:
    """The hardware file that was named among the recordings; None where there is none, or several."""
    rates = () if beside is None or beside.system is None else beside.system.rates
    named = [Path(one.path) for one in rates if one.is_hardware and Path(one.path).is_file()]
    return named[0] if len(named) == 1 else None


def run(arguments: argparse.Namespace) -> int:
    _refuse_contradictions(arguments)
    if arguments.scaling:
        return _run_scaling(arguments)
    asked = gating.read_asked(arguments)

    def diagnosed(paths: Sequence[str], step_ms: float | None) -> Diagnosis:
        return diagnose_paths(
            paths,
            step_ms=step_ms,
            use_cache=not arguments.no_cache,
            jobs=arguments.jobs,
            cluster=arguments.cluster,
            every=arguments.all,
            hardware=arguments.hardware,
        )

    baseline = None if asked is None else gating.read_baseline(asked, lambda path: diagnosed([path], None))
    diagnosis = diagnosed(arguments.paths, arguments.step_ms[0] if arguments.step_ms else None)
    if asked is None:
        print_diagnosis(diagnosis, arguments.format)
        return 0
    gate = gating.judge(asked, diagnosis, baseline)
    print_diagnosis(diagnosis, arguments.format, gate)
    return _tell_gate(gate)


def _tell_gate(gate: Gate) -> int:
    """The reasons on stderr, after the report."""
    from stepscope.report.gate import gate_lines

    sys.stdout.flush()
    for line in gate_lines(gate):
        say(line)
    return 0 if gate.is_passed else gating.FAILED


def _run_scaling(arguments: argparse.Namespace) -> int:
    from stepscope.cli.scaling import print_scaling, scale_paths

    def measure(path: str, step_ms: float | None) -> Job:
        return measure_paths(
            [path],
            step_ms=step_ms,
            use_cache=not arguments.no_cache,
            jobs=arguments.jobs,
            cluster=arguments.cluster,
            hardware=arguments.hardware,
        )

    print_scaling(scale_paths(arguments.paths, arguments.step_ms, arguments.scaling_kind, measure), arguments.format)
    return 0


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    from stepscope.errors import UsageError

    if arguments.scaling and arguments.all:
        raise UsageError("--all is about findings, and --scaling compares runs without any: leave out one of the two")
    if arguments.scaling and gating.is_wanted(arguments):
        what = "--fail-if, --budget and --baseline are about one run's diagnosis, and --scaling compares several runs"
        raise UsageError(f"{what}: gate each of them by itself")
    if arguments.scaling and arguments.format == "markdown":
        raise UsageError("--scaling has no Markdown: take --format text or json")
    if not arguments.scaling and arguments.scaling_kind is not None:
        raise UsageError("--scaling-kind says how several runs scale: give it together with --scaling")
    if not arguments.scaling and len(arguments.step_ms) > 1:
        raise UsageError(
            f"--step-ms was given {len(arguments.step_ms)} times: one run has one (--scaling takes one for each run)"
        )


def diagnose_paths(
    paths: Sequence[str],
    *,
    step_ms: float | None,
    use_cache: bool,
    jobs: int | None,
    cluster: str | None = None,
    every: bool = False,
    hardware: Path | None = None,
) -> Diagnosis:
    """Read, measure, judge; progress on stderr when that is a terminal. `hardware` is None for the environment's."""
    from stepscope.analyses.run_known import run_facts
    from stepscope.readers.beside import read_beside
    from stepscope.readers.inputs import find_sources
    from stepscope.rules.untraced import diagnose_untraced
    from stepscope.rules.verdict import diagnose

    with find_sources(paths) as found:
        if not found.sources and found.run is not None:
            return diagnose_untraced(run_facts(found.run), found.notes, read_beside(found.others))
        if not found.sources and (found.others or found.logs):
            return _diagnose_alone(found)
        job = _measure(found, step_ms=step_ms, use_cache=use_cache, jobs=jobs, cluster=cluster, hardware=hardware)
        return diagnose(job, every=every)


def _diagnose_alone(found: Found) -> Diagnosis:
    """Recordings of other tools and logs of NCCL, with no trace. Where none can be read, the reasons are all there is to say."""
    from stepscope.core.beside import Beside
    from stepscope.errors import InputError
    from stepscope.readers.beside import read_beside
    from stepscope.readers.nccl_log import read_nccl_logs
    from stepscope.rules.untraced import diagnose_beside

    beside = read_beside(found.others) or Beside()
    nccl = read_nccl_logs(found.logs) if found.logs else None
    if not beside.recordings and nccl is None:
        raise InputError("\n  ".join(["nothing could be read:", *beside.notes]))
    return diagnose_beside(beside, found.notes, nccl)


def measure_paths(
    paths: Sequence[str],
    *,
    step_ms: float | None,
    use_cache: bool,
    jobs: int | None,
    cluster: str | None,
    hardware: Path | None = None,
) -> Job:
    """The job that these paths hold. `hardware` is None for the environment's."""
    from stepscope.readers.inputs import find_sources

    with find_sources(paths) as found:
        return _measure(found, step_ms=step_ms, use_cache=use_cache, jobs=jobs, cluster=cluster, hardware=hardware)


def _measure(
    found: Found, *, step_ms: float | None, use_cache: bool, jobs: int | None, cluster: str | None, hardware: Path | None
) -> Job:
    from stepscope.analyses.run_known import run_facts
    from stepscope.errors import InputError
    from stepscope.readers.beside import read_beside
    from stepscope.readers.hardware_file import read_hardware
    from stepscope.rules.job import measure_job

    if not found.sources:
        raise InputError(f"{found.run.path}: the profiler recorded no step" if found.run is not None else _logs_alone(found.logs))
    beside = read_beside(found.others)
    path = hardware or given_hardware(beside) or hardware_file(None)
    calibrated = None if path is None else read_hardware(path)
    with ExitStack() as held:
        workers = held.enter_context(_workers(found.sources, jobs, cluster))
        files, read = held.enter_context(_progress(found.sources))
        job = measure_job(
            found.sources,
            logs=found.logs,
            beside=beside,
            run=None if found.run is None else run_facts(found.run),
            workers=workers,
            step_ns=None if step_ms is None else round(step_ms * 1e6),
            use_cache=use_cache,
            progress=files,
            read_progress=read,
            hardware=calibrated,
        )
        return replace(job, notes=(*found.notes, *job.notes))


def _logs_alone(logs: Sequence[Source]) -> str:
    """What to say where NCCL's logs were given and no trace."""
    from stepscope.readers.nccl_log import read_nccl_logs
    from stepscope.report.nccl_view import nccl_text

    names = logs[0].label if len(logs) == 1 else f"{logs[0].label} and {len(logs) - 1} more"
    needed = "A diagnosis needs the run's traces too: name them beside it. Here is what the log says."
    return f"no trace was given, only a log of NCCL ({names}). {needed}\n\n{nccl_text(read_nccl_logs(logs))}"


def print_diagnosis(diagnosis: Diagnosis, style: str, gate: Gate | None = None) -> None:
    """The report on standard output; JSON and Markdown have the gate's answer in them."""
    if style == "json":
        put(_json(diagnosis, gate) + "\n")
        return
    if style == "markdown":
        from stepscope.report.markdown import to_markdown

        put(to_markdown(diagnosis, gate), errors="xmlcharrefreplace")
        return
    from stepscope.report.terminal import render, show

    print_report(lambda console: show(diagnosis, console), lambda: render(diagnosis, color=False))


def _json(diagnosis: Diagnosis, gate: Gate | None) -> str:
    from stepscope.report.gate import gate_contract
    from stepscope.report.json import contract, to_json

    if gate is None:
        return to_json(diagnosis)
    return json_text(contract(diagnosis) | {"gate": gate_contract(gate)}, indent=2)


@contextmanager
def _workers(sources: Sequence[Source], jobs: int | None, cluster: str | None) -> Iterator[Workers | None]:
    """A cluster where one is named, else processes when there are several files and several cores."""
    from stepscope.readers.remote import is_private
    from stepscope.rules.workers import cluster_workers, local_workers

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num = min(len(sources), jobs or cores)
    if cluster is not None:
        _refuse_private(sources)
        with cluster_workers(cluster) as workers:
            yield workers
    elif num < 2 or any(is_private(source.path) for source in sources):
        yield None
    else:
        with local_workers(num) as workers:
            yield workers


def _refuse_private(sources: Sequence[Source]) -> None:
    """What only this machine can read cannot be a cluster's task."""
    from stepscope.errors import UsageError
    from stepscope.readers.remote import is_private

    for source in sources:
        if is_private(source.path) or source.stem != source.path:
            why = "lies, or is unpacked, on this machine alone, where the cluster cannot see it"
            raise UsageError(f"{source.stem} {why}. Unpack it to a place that both see, or leave out --cluster")


@contextmanager
def _progress(sources: Sequence[Source]) -> Iterator[tuple[Callable[[int, int], None] | None, Callable[[int], None] | None]]:
    """Callbacks that move a bar on stderr: files when there are several, bytes when there is one. None off a terminal."""
    if not sys.stderr.isatty():
        yield None, None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from stepscope.readers.remote import size_of

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        if len(sources) == 1:
            size = sources[0].length or size_of(sources[0].path)
            task = bar.add_task("reading", total=size)
            yield None, lambda done: bar.update(task, completed=done)
        else:
            task = bar.add_task(f"{len(sources)} files", total=len(sources))
            yield lambda done, total: bar.update(task, completed=done, total=total), None


def step_time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a step time in milliseconds; give a number above 0, such as 65.5")
    return value


def num_processes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; give 1 or more")
    return int(text)
