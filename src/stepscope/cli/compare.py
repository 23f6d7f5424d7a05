"""What changed between two runs: how much faster the second is, how sure that is, and where the
difference lies.

A and B are what `diagnose` takes: a run that `stepscope run` recorded, traces (a file, a folder
with one file per rank, a tar), or a diagnosis that was kept as JSON. Each further run is compared
with the first. A speedup is before / after.

Exit code 1 where the steps of a run cannot be compared with A's, or a limit (--fail-if, --budget)
is not kept. With --scaling each is a run of one training job at another width, as with `diagnose
--scaling`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import gate as gating
from stepscope.cli.diagnose import add_hardware, num_processes, options_of, step_time
from stepscope.cli.printing import print_document, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.experiments.comparison import Comparison
    from stepscope.core.gate import Check, Gate, Quantities
    from stepscope.experiments.compare.side import CompareSide

FORMATS = ("text", "json", "markdown", "html")
NOT_COMPARED = 1
OWN_NAMES = ("speedup", "speedup_low", "speedup_high")
"""What --fail-if may name beside the quantities of a diagnosis: the run against A, before /
after."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="RUN",
        help="run folder, traces, or a diagnosis as JSON; two or more",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="how to print it (default: text)"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write it to a file")
    parser.add_argument(
        "--step-ms",
        type=step_time,
        metavar="MS",
        nargs="+",
        action="extend",
        default=[],
        help="the step times without a profiler attached, one for each run in their order: "
        "--step-ms 65.5 31.5",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="neither read nor write the columnar cache"
    )
    parser.add_argument(
        "--jobs",
        type=num_processes,
        metavar="N",
        help="processes to use for several files (default: one per core)",
    )
    add_hardware(parser)
    parser.add_argument(
        "--scaling", action="store_true", help="each RUN is of another width: how the job scales"
    )
    parser.add_argument(
        "--scaling-kind",
        choices=("weak", "strong"),
        help="whether ranks keep their work as the job widens, or share it",
    )
    gate = parser.add_argument_group(
        "gate",
        "exit code 1, with the reasons on stderr, when a run does not keep a limit against A",
    )
    gate.add_argument(
        "--fail-if",
        metavar="CONDITION",
        action="append",
        default=[],
        help='a condition that must not hold; `baseline` is A: "step_ms > baseline*1.05", '
        '"speedup_high < 1"',
    )
    gate.add_argument("--budget", type=Path, metavar="FILE", help="limits in a TOML file")


def run(arguments: argparse.Namespace) -> int:
    _refuse_contradictions(arguments)
    if arguments.scaling:
        return _run_scaling(arguments)
    asked = _asked(arguments)
    from stepscope.experiments.compare.comparison import compare

    sides = [_side(path, place, arguments) for place, path in enumerate(arguments.paths)]
    comparisons = [compare(sides[0][0], side) for side, _ in sides[1:]]
    gate = (
        None
        if asked is None
        else _judge(asked, comparisons, [text for _, text in sides], arguments.paths[0])
    )
    _give(comparisons, arguments, gate)
    sys.stdout.flush()
    is_compared = _say_uncompared(comparisons)
    if gate is None:
        return 0 if is_compared else NOT_COMPARED
    from stepscope.report.gate import gate_lines

    for line in gate_lines(gate):
        say(line)
    return gating.FAILED if not gate.is_passed else 0 if is_compared else NOT_COMPARED


def _say_uncompared(comparisons: Sequence[Comparison]) -> bool:
    """Whether every run's steps could be compared with A's; says which could not."""
    from stepscope.report.comparison.words import letter

    lacking = [
        (letter(place), one)
        for place, one in enumerate(comparisons, start=1)
        if one.speedup.value is None
    ]
    for name, one in lacking:
        say(f"nothing to compare between the steps of A and {name}: {one.speedup.why}")
    return not lacking


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    from stepscope.errors import UsageError

    num = len(arguments.paths)
    if num < 2:
        raise UsageError("compare needs two runs or more: stepscope compare BEFORE AFTER")
    if arguments.step_ms and len(arguments.step_ms) != num:
        told = f"{len(arguments.step_ms)} step times for {num} runs"
        raise UsageError(
            f"{told}: give --step-ms one for each, in their order (--step-ms 65.5 31.5), or leave "
            "it out"
        )
    if arguments.scaling and (arguments.fail_if or arguments.budget is not None):
        raise UsageError(
            "--fail-if and --budget are about runs that do the same, and --scaling compares "
            "widths: leave out one"
        )
    if arguments.scaling and (
        arguments.format not in ("text", "json") or arguments.out is not None
    ):
        raise UsageError(
            "--scaling has text and JSON on standard output alone: take --format text or json, "
            "and no -o"
        )
    if not arguments.scaling and arguments.scaling_kind is not None:
        raise UsageError(
            "--scaling-kind says how several runs scale: give it together with --scaling"
        )
    if arguments.format == "html" and arguments.out is None and sys.stdout.isatty():
        raise UsageError("a page is no reading for a terminal: name its file with -o compare.html")


def _run_scaling(arguments: argparse.Namespace) -> int:
    from stepscope.cli.scaling import print_scaling, scale_paths
    from stepscope.errors import UsageError
    from stepscope.readers.remote import shown

    for path in arguments.paths:
        if _kept_bytes(path) is not None:
            raise UsageError(
                f"{shown(path)} is a kept diagnosis: --scaling measures traces; name the run's, "
                "or leave --scaling out"
            )

    scaling = scale_paths(
        arguments.paths, arguments.step_ms, arguments.scaling_kind, options_of(arguments)
    )
    print_scaling(scaling, arguments.format)
    return 0


def _side(path: str, place: int, arguments: argparse.Namespace) -> tuple[CompareSide, str]:
    """One run, and its diagnosis as JSON, which is what a gate reads."""
    from stepscope.core.saved import load
    from stepscope.experiments.compare.saved import side_of_json
    from stepscope.experiments.compare.side import side_of
    from stepscope.pipeline.comparison import read_side
    from stepscope.pipeline.recording import Recording
    from stepscope.readers.remote import as_path, shown
    from stepscope.report.diagnosis.json import to_json

    label = shown(path)
    step_ms = arguments.step_ms[place] if arguments.step_ms else None
    kept = _kept_bytes(path)
    if kept is not None:
        _refuse_step(step_ms, label)
        if gating.IS_SAVED.search(kept):
            diagnosis = load(Path(as_path(path)))
            return side_of(label, diagnosis), to_json(diagnosis)
        return side_of_json(kept, label), kept.decode("utf-8", "replace")
    with Recording([path], replace(options_of(arguments), step_ms=step_ms)) as recording:
        return read_side(recording, label), to_json(recording.diagnosis)


def _refuse_step(step_ms: float | None, label: str) -> None:
    from stepscope.errors import UsageError

    if step_ms is not None:
        raise UsageError(
            f"{label} is a kept diagnosis and has its step time: --step-ms is for traces"
        )


def _kept_bytes(text: str) -> bytes | None:
    """The bytes of a diagnosis that was kept, as JSON or whole; None when the path is something
    else."""
    from stepscope.protocol.untrusted import read_regular
    from stepscope.readers.remote import as_path

    path = as_path(text)
    if isinstance(path, str) or not path.is_file():
        return None
    try:
        data = read_regular(path, gating.MAX_JSON_BYTES)
    except OSError:
        return None
    return data if gating.IS_SAVED.search(data) or gating.IS_DIAGNOSIS.search(data) else None


def _asked(arguments: argparse.Namespace) -> gating.Asked | None:
    """The gate; mistakes in it are told before anything is read."""
    if not arguments.fail_if and arguments.budget is None:
        return None
    told = argparse.Namespace(
        fail_if=arguments.fail_if, budget=arguments.budget, baseline=arguments.paths[0]
    )
    return gating.read_asked(told, OWN_NAMES)


def _judge(
    asked: gating.Asked, comparisons: Sequence[Comparison], texts: Sequence[str], baseline: str
) -> Gate:
    """Every check's answer for every run but the first, which is the baseline."""
    from stepscope.core.gate import Gate, decide
    from stepscope.readers.remote import shown
    from stepscope.report.comparison.words import letter
    from stepscope.report.gate import comparable, read_quantities

    first, first_source = read_quantities(texts[0], shown(baseline), asked.codes)
    results = []
    for place, (comparison, text) in enumerate(zip(comparisons, texts[1:], strict=True), start=1):
        told, source = read_quantities(text, comparison.after.label, asked.codes)
        run = _with_speedup(told, comparison)
        against = comparable(first, first_source, source)
        for check in asked.checks:
            named: Check = (
                replace(check, source=f"{check.source}, {letter(place)}")
                if len(comparisons) > 1
                else check
            )
            results.append(decide(named, run, against))
    return Gate(results=tuple(results), missing=asked.missing, baseline=shown(baseline))


def _with_speedup(told: Quantities, comparison: Comparison) -> Quantities:
    speedup = comparison.speedup
    values = (speedup.value, speedup.low, speedup.high)
    why = dict.fromkeys(OWN_NAMES, f"was not measured: {speedup.why}")
    return replace(
        told,
        values={**told.values, **dict(zip(OWN_NAMES, values, strict=True))},
        why={**told.why, **why},
    )


def _give(
    comparisons: Sequence[Comparison], arguments: argparse.Namespace, gate: Gate | None
) -> None:
    """The report, to the file or to standard output."""
    if arguments.format == "text" and arguments.out is None:
        from stepscope.report.comparison.view import comparisons_document

        print_document(comparisons_document(comparisons))
        return
    from stepscope.cli.report import put_or_write

    put_or_write(
        _text(comparisons, arguments.format, gate), arguments.out, errors="xmlcharrefreplace"
    )


def _text(comparisons: Sequence[Comparison], style: str, gate: Gate | None) -> str:
    if style == "json":
        from stepscope.report.comparison.json import comparisons_json

        return comparisons_json(comparisons, gate) + "\n"
    if style == "html":
        from stepscope.report.comparison.html import comparisons_html

        return comparisons_html(comparisons)
    from stepscope.report.comparison.view import comparisons_document

    if style == "markdown":
        from stepscope.report.document.markdown import to_markdown

        return to_markdown(comparisons_document(comparisons, gate))
    from stepscope.report.document.terminal import to_text

    return to_text(comparisons_document(comparisons))
