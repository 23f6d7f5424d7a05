"""What limits a recorded run, measured from its traces.

PATH is a PyTorch profiler (Kineto) or Chrome trace (.json, .json.gz, .json.zst), several of them, a
folder with one file per rank, or a tar of them; here, or behind a URL (s3://, gs://, https://).
Logs of NCCL or RCCL (NCCL_DEBUG=INFO) may stand beside them, named or in the folder.

With --scaling each PATH is a run of one training job at another width, and the report says how it
scales and where the loss lies.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import gate as gating
from stepscope.cli.printing import print_document, put, say
from stepscope.cli.progress import progress_bar

if TYPE_CHECKING:
    from stepscope.core.diagnosis import Diagnosis
    from stepscope.core.gate import Gate
    from stepscope.pipeline.options import Options

FORMATS = ("text", "json", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="trace, folder of rank traces, or tar"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="how to print it (default: text)"
    )
    parser.add_argument(
        "--step-ms",
        type=step_time,
        metavar="X",
        action="append",
        default=[],
        help="the step time without a profiler attached, in ms; with --scaling once per run, in "
        "their order",
    )
    parser.add_argument(
        "--all", action="store_true", help="also findings whose fix gives less than 2 %%"
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="neither read nor write the columnar cache"
    )
    parser.add_argument(
        "--scaling",
        action="store_true",
        help="each PATH is a run of another width: how the job scales",
    )
    parser.add_argument(
        "--scaling-kind",
        choices=("weak", "strong"),
        help="whether ranks keep their work as the job widens, or share it",
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--jobs",
        type=num_processes,
        metavar="N",
        help="processes to use for several files (default: one per core)",
    )
    who.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="read the files on a Dask cluster: its scheduler's address",
    )
    add_hardware(parser)
    gating.add_arguments(parser)


def add_hardware(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hardware",
        type=Path,
        metavar="FILE",
        help="judge by what `stepscope calibrate` measured, not by datasheets (default: the file "
        "that STEPSCOPE_HARDWARE names)",
    )


def options_of(arguments: argparse.Namespace) -> Options:
    """How to read and judge, as the arguments of any command say; the step time is left to the
    command."""
    from stepscope.pipeline.options import Options

    given = vars(arguments)
    return Options(
        use_cache=not given.get("no_cache", False),
        jobs=given.get("jobs"),
        cluster=given.get("cluster"),
        all_findings=given.get("all", False),
        hardware=given.get("hardware"),
        progress=progress_bar,
    )


def run(arguments: argparse.Namespace) -> int:
    _refuse_contradictions(arguments)
    if arguments.scaling:
        return _run_scaling(arguments)
    asked = gating.read_asked(arguments)

    from stepscope.pipeline.recording import diagnose

    options = options_of(arguments)
    baseline = (
        None
        if asked is None
        else gating.read_baseline(asked, lambda path: diagnose([path], options))
    )
    step_ms = arguments.step_ms[0] if arguments.step_ms else None
    diagnosis = diagnose(arguments.paths, replace(options, step_ms=step_ms))
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

    scaling = scale_paths(
        arguments.paths, arguments.step_ms, arguments.scaling_kind, options_of(arguments)
    )
    print_scaling(scaling, arguments.format)
    return 0


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    from stepscope.errors import UsageError

    if arguments.scaling and arguments.all:
        raise UsageError(
            "--all is about findings, and --scaling compares runs without any: leave out one of "
            "the two"
        )
    if arguments.scaling and gating.is_wanted(arguments):
        what = (
            "--fail-if, --budget and --baseline are about one run's diagnosis, and --scaling "
            "compares several runs"
        )
        raise UsageError(f"{what}: gate each of them by itself")
    if arguments.scaling and arguments.format == "markdown":
        raise UsageError("--scaling has no Markdown: take --format text or json")
    if not arguments.scaling and arguments.scaling_kind is not None:
        raise UsageError(
            "--scaling-kind says how several runs scale: give it together with --scaling"
        )
    if not arguments.scaling and len(arguments.step_ms) > 1:
        raise UsageError(
            f"--step-ms was given {len(arguments.step_ms)} times: one run has one (--scaling "
            "takes one for each run)"
        )


def print_diagnosis(diagnosis: Diagnosis, style: str, gate: Gate | None = None) -> None:
    """The report on standard output; JSON and Markdown have the gate's answer in them."""
    if style == "json":
        from stepscope.report.diagnosis.json import to_json

        put(to_json(diagnosis, gate) + "\n")
        return
    from stepscope.report.diagnosis.view import diagnosis_document

    shown = gate if style == "markdown" else None
    print_document(diagnosis_document(diagnosis, shown), style)


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


def num_processes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; give 1 or more")
    return int(text)
