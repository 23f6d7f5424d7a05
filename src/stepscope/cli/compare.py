"""Two recorded runs: how much faster the second is, and where.

A and B are what `diagnose` takes: a run that `stepscope run` recorded, traces (a file, a folder
with one file per rank, a tar), or a diagnosis that was kept as JSON. Each further run is compared
with the first. A speedup is before / after.

Where A is a plan that `stepscope plan --format json` printed, B is compared with it: which part of
the step was off, and with --recalibrate FILE the planner's rates after it.

Exit code 1 where the steps of a run cannot be compared with A's, where they are other work, or
where a limit (--fail-if, --budget) is not kept. With --scaling each is a run of one training job
at another width, as with `diagnose --scaling`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import gate as gating
from stepscope.cli import options as declare
from stepscope.cli.additions import plan_and_run, scaling_runs
from stepscope.cli.options import step_time
from stepscope.cli.printing import print_document, say
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.experiments.comparison import Comparison
    from stepscope.core.gate import Gate, Quantities
    from stepscope.experiments.compare.side import CompareSide
    from stepscope.pipeline.options import Options as ReadingOptions

FORMATS = ("text", "json", "markdown", "html")
NOT_COMPARED = 1
OWN_NAMES = ("speedup", "speedup_low", "speedup_high")
"""What --fail-if may name beside the quantities of a diagnosis: the run against A, before /
after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    fail_if: list[str] = declare.option(
        "--fail-if CONDITION",
        'a condition that must not hold; `baseline` is A: "step_ms > baseline*1.05", '
        '"speedup_high < 1"',
        default=[],
    )
    budget: Path | None = declare.option("--budget FILE", "limits in a TOML file", Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    paths: list[str] = declare.paths(
        "RUN", "run folder, traces, or a diagnosis as JSON; two or more"
    )
    format: str = declare.style(FORMATS)
    out: Path | None = declare.option("-o/--out FILE", "write it to a file", Path)
    step_ms: list[float] = declare.option(
        "--step-ms MS",
        "the step times without a profiler attached, one for each run in their order: "
        "--step-ms 65.5 31.5",
        step_time,
        [],
        nargs="+",
        action="extend",
    )
    recalibrate: Path | None = declare.option(
        "--recalibrate FILE",
        "where A is a plan: keep what the run teaches it, for `plan --calibration FILE`",
        Path,
    )
    no_cache: bool = declare.no_cache()
    jobs: int | None = declare.jobs()
    hardware: Path | None = declare.hardware()
    scaling: bool = declare.scaling("RUN is of another")
    scaling_kind: str | None = declare.scaling_kind()
    limits: Limits = declare.group(
        Limits,
        "gate",
        "exit code 1, with the reasons on stderr, when a run does not keep a limit against A",
    )

    @property
    def is_gated(self) -> bool:
        return bool(self.limits.fail_if) or self.limits.budget is not None


def run(options: Options) -> int:
    reading = declare.reading_of(options)
    _refuse_contradictions(options)
    if options.scaling:
        return scaling_runs().run(
            options.paths, options.step_ms, options.scaling_kind, reading, options.format
        )
    plan = _plan_of(options)
    if plan is not None:
        step_ms = options.step_ms[0] if options.step_ms else None
        reading = replace(reading, step_ms=step_ms)
        return plan_and_run().compare(
            options.paths, plan, reading, options.format, options.out, options.recalibrate
        )
    asked = _asked(options)
    from stepscope.experiments.compare.comparison import compare

    steps_ms: Sequence[float | None] = options.step_ms or [None] * len(options.paths)
    sides = [
        _side(path, replace(reading, step_ms=step_ms))
        for path, step_ms in zip(options.paths, steps_ms, strict=True)
    ]
    comparisons = [compare(sides[0][0], side) for side, _ in sides[1:]]
    gate = None
    if asked is not None:
        gate = _judge(asked, comparisons, [text for _, text in sides], options.paths[0])
    _print_or_write(comparisons, options, gate)
    sys.stdout.flush()
    is_compared = _say_uncompared(comparisons)
    if gate is not None and gating.say_gate(gate) != 0:
        return gating.FAILED
    return 0 if is_compared else NOT_COMPARED


def _plan_of(options: Options) -> bytes | None:
    """The plan that runs are compared with, where A is one."""
    plan = plan_and_run().find(options.paths[0])
    if plan is None and options.recalibrate is not None:
        raise UsageError(
            "--recalibrate is for a plan and its run: stepscope compare PLAN.json RUN, where "
            "`stepscope plan --format json -o PLAN.json` wrote the plan"
        )
    if plan is not None and options.is_gated:
        raise UsageError("--fail-if and --budget compare runs, and A is a plan: leave them out")
    return plan


def _say_uncompared(comparisons: Sequence[Comparison]) -> bool:
    """Whether every run's steps could be compared with A's and are the same work; says which are
    not."""
    from stepscope.report.comparison.words import letter

    is_compared = True
    for index, comparison in enumerate(comparisons, start=1):
        if comparison.speedup.value is None:
            is_compared = False
            say(
                f"nothing to compare between the steps of A and {letter(index)}: "
                f"{comparison.speedup.why}"
            )
        elif comparison.unequal:
            is_compared = False
            say(
                f"A and {letter(index)} do not do the same work: the ratio of their steps is no "
                "speedup (exit code 1)"
            )
    return is_compared


def _refuse_contradictions(options: Options) -> None:
    num = len(options.paths)
    if num < 2:
        raise UsageError("compare needs two runs or more: stepscope compare BEFORE AFTER")
    is_plan = _plan_of(options) is not None
    if is_plan and len(options.step_ms) > 1:
        raise UsageError("a plan is compared with one run: give --step-ms once, of the run")
    if options.step_ms and len(options.step_ms) != num and not is_plan:
        raise UsageError(
            f"{len(options.step_ms)} step times for {num} runs: give --step-ms one for each, in "
            "their order (--step-ms 65.5 31.5), or leave it out"
        )
    if options.scaling:
        _refuse_beside_scaling(options)
    elif options.scaling_kind is not None:
        raise UsageError(
            "--scaling-kind says how several runs scale: give it together with --scaling"
        )
    if options.format == "html" and options.out is None and sys.stdout.isatty():
        raise UsageError("HTML output needs a file: -o compare.html")


def _refuse_beside_scaling(options: Options) -> None:
    from stepscope.readers.remote import shown

    if options.is_gated:
        raise UsageError(
            "--fail-if and --budget are about runs that do the same, and --scaling compares "
            "widths: leave out one"
        )
    if options.format not in ("text", "json") or options.out is not None:
        raise UsageError(
            "--scaling has text and JSON on standard output alone: take --format text or json, "
            "and no -o"
        )
    for path in options.paths:
        if gating.kept_bytes(path) is not None:
            raise UsageError(
                f"{shown(path)} is a kept diagnosis: --scaling measures traces; name the run's, "
                "or leave --scaling out"
            )


def _side(path: str, reading: ReadingOptions) -> tuple[CompareSide, str]:
    """One run, and its diagnosis as JSON, which is what a gate reads."""
    from stepscope.experiments.compare.saved import side_of_json
    from stepscope.pipeline.comparison import read_side
    from stepscope.pipeline.recording import Recording
    from stepscope.readers.remote import shown
    from stepscope.report.diagnosis.json import to_json

    label = shown(path)
    kept = gating.kept_bytes(path)
    if kept is None:
        with Recording([path], reading) as recording:
            return read_side(recording, label), to_json(recording.diagnosis)
    if reading.step_ms is not None:
        raise UsageError(
            f"{label} is a kept diagnosis and has its step time: --step-ms is for traces"
        )
    return side_of_json(kept, label), kept.decode("utf-8", "replace")


def _asked(options: Options) -> gating.AskedGate | None:
    """The gate; mistakes in it are reported before anything is read."""
    if not options.is_gated:
        return None
    gated = gating.GateOptions(
        fail_if=options.limits.fail_if, budget=options.limits.budget, baseline=options.paths[0]
    )
    return gating.read_asked(gated, OWN_NAMES)


def _judge(
    asked: gating.AskedGate, comparisons: Sequence[Comparison], texts: Sequence[str], baseline: str
) -> Gate:
    """Every check's answer for every run but the first, which is the baseline."""
    from msgspec import structs

    from stepscope.core.gate import Gate, decide
    from stepscope.core.gate_quantities import comparable, read_quantities
    from stepscope.readers.remote import shown
    from stepscope.report.comparison.words import letter

    first, first_source = read_quantities(texts[0], shown(baseline), asked.codes)
    results = []
    for index, (comparison, text) in enumerate(zip(comparisons, texts[1:], strict=True), start=1):
        quantities, source = read_quantities(text, comparison.after.label, asked.codes)
        run = _with_speedup(quantities, comparison)
        against = comparable(first, first_source, source)
        for check in asked.checks:
            named = check
            if len(comparisons) > 1:
                named = structs.replace(check, source=f"{check.source}, {letter(index)}")
            results.append(decide(named, run, against))
    return Gate(results=tuple(results), missing=asked.missing, baseline=shown(baseline))


def _with_speedup(quantities: Quantities, comparison: Comparison) -> Quantities:
    from msgspec import structs

    speedup = comparison.speedup
    values = (speedup.value, speedup.low, speedup.high)
    why = dict.fromkeys(OWN_NAMES, f"was not measured: {speedup.why}")
    return structs.replace(
        quantities,
        values={**quantities.values, **dict(zip(OWN_NAMES, values, strict=True))},
        why={**quantities.why, **why},
    )


def _print_or_write(comparisons: Sequence[Comparison], options: Options, gate: Gate | None) -> None:
    """The report, to the file or to standard output."""
    if options.format == "text" and options.out is None:
        from stepscope.report.comparison.view import comparisons_document

        print_document(comparisons_document(comparisons))
        return
    from stepscope.cli.report import put_or_write

    text = _text(comparisons, options.format, gate)
    put_or_write(text, options.out, errors="xmlcharrefreplace")


def _text(comparisons: Sequence[Comparison], style: str, gate: Gate | None) -> str:
    if style == "json":
        from stepscope.core.codec import encode
        from stepscope.core.experiments.comparison import as_document

        return encode(as_document(comparisons, gate)) + "\n"
    if style == "html":
        from stepscope.report.comparison.html import comparisons_html

        return comparisons_html(comparisons)
    from stepscope.report.comparison.view import comparisons_document

    if style == "markdown":
        from stepscope.report.document.markdown import to_markdown

        return to_markdown(comparisons_document(comparisons, gate))
    from stepscope.report.document.terminal import to_text

    return to_text(comparisons_document(comparisons))
