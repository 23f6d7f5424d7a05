"""What limits a recorded run, and what each fix would give.

PATH is a PyTorch profiler (Kineto) or Chrome trace (.json, .json.gz, .json.zst), several of them, a
folder with one file per rank, or a tar of them; here, or behind a URL (s3://, gs://, https://).
A text that was pasted may be one (- is stdin): its prompts, colours and marks of quotation are
passed over, and what several tools printed is taken apart.
Logs of NCCL or RCCL (NCCL_DEBUG=INFO) may stand beside them, named or in the folder.

With --scaling each PATH is a run of one training job at another width, and the report says how it
scales and where the loss lies.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.cli import gate as gating
from stepscope.cli import given_work
from stepscope.cli import options as declare
from stepscope.cli.additions import scaling_runs
from stepscope.cli.options import step_time
from stepscope.cli.printing import print_diagnosis, put, refuse_empty
from stepscope.errors import UsageError

STDIN = "-"
MAX_COMMAND = 60
"""Characters of a command that stand on one line beside what it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Options for who reads the files."""

    jobs: int | None = declare.jobs()
    cluster: str | None = declare.option(
        "--cluster ADDRESS", "read the files on a Dask cluster: its scheduler's address"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    paths: list[str] = declare.paths(
        "PATH",
        "trace, folder of rank traces, tar, or a run: its folder or its name (last, last~1)",
    )
    format: str = declare.style((*declare.FORMATS, "brief"))
    verbose: bool = declare.verbose()
    step_ms: list[float] = declare.option(
        "--step-ms X",
        "the step time without a profiler attached, in ms; with --scaling once per run, in "
        "their order",
        step_time,
        [],
    )
    all: bool = declare.all_findings()
    no_cache: bool = declare.no_cache()
    scaling: bool = declare.scaling("PATH is a run of another")
    scaling_kind: str | None = declare.scaling_kind()
    readers: Readers = declare.one_alone(Readers)
    hardware: Path | None = declare.hardware()
    work: given_work.WorkOptions = declare.group(
        given_work.WorkOptions, "for a log alone: how much of the peak was achieved"
    )
    timings: bool = declare.option(
        "--timings", "what each stage cost, as a table on stderr after the report"
    )
    gate: gating.GateOptions = declare.group(
        gating.GateOptions,
        "gate",
        "exit code 1, with the reasons on stderr, when the run does not keep a limit",
    )


def run(options: Options) -> int:
    if not options.timings:
        return _run(options)
    from stepscope.core.timings import timed

    with timed() as timings:
        code = _run(options)

    from stepscope.report.document.terminal import to_text
    from stepscope.report.timings import timings_document

    sys.stdout.flush()
    put(to_text(timings_document(timings)), sys.stderr)
    return code


def _run(options: Options) -> int:
    _refuse_contradictions(options)
    if options.scaling:
        reading, runs = declare.reading_of(options), scaling_runs()
        wanted = gating.read_asked(options.gate, only=runs.quantities)
        return runs.run(
            options.paths, options.step_ms, options.scaling_kind, reading, options.format, wanted
        )
    asked = gating.read_asked(options.gate)

    from stepscope.pipeline.recording import diagnose

    reading = declare.reading_of(options)
    baseline = None
    if asked is not None:
        baseline = gating.read_baseline(asked, lambda path: diagnose([path], reading))
    step_ms = options.step_ms[0] if options.step_ms else None
    work = given_work.work_of(options.work)
    diagnosis = diagnose(options.paths, replace(reading, step_ms=step_ms, work=work))
    whole = None if options.verbose else _whole(options)
    if asked is None:
        print_diagnosis(diagnosis, options.format, whole=whole)
        return refuse_empty(diagnosis)
    gate = gating.judge(asked, diagnosis, baseline)
    print_diagnosis(diagnosis, options.format, gate, whole=whole)
    return gating.say_gate(gate)


def _whole(options: Options) -> str:
    """The command that shows all of it, as far as what is printed depends on it."""
    given = [*options.paths, *(f"--step-ms={value:g}" for value in options.step_ms)]
    every = ["--all"] if options.all else []
    command = shlex.join(["stepscope", "diagnose", *given, *every, "-v"])
    is_again = STDIN not in options.paths and len(command) <= MAX_COMMAND
    return command if is_again else "the same command with -v"


def _refuse_contradictions(options: Options) -> None:
    if options.scaling and options.all:
        raise UsageError(
            "--all is about findings, and --scaling compares runs without any: leave out one of "
            "the two"
        )
    if options.scaling and options.gate.baseline is not None:
        raise UsageError(
            "--baseline is about one run's diagnosis, and --scaling compares several runs with "
            "the narrowest: take --fail-if 'efficiency < 0.8'"
        )
    if options.scaling and options.format not in ("text", "json"):
        what = "Markdown" if options.format == "markdown" else "brief form"
        raise UsageError(f"--scaling has no {what}: take --format text or json")
    if not options.scaling and options.scaling_kind is not None:
        raise UsageError(
            "--scaling-kind says how several runs scale: give it together with --scaling"
        )
    if not options.scaling and len(options.step_ms) > 1:
        raise UsageError(
            f"--step-ms was given {len(options.step_ms)} times: one run has one (--scaling "
            "takes one for each run)"
        )
