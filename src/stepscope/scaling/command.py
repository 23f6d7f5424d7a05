"""What `diagnose --scaling` does: measure the runs one after the other, then compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.cli.additions import ScalingRuns
from stepscope.cli.printing import print_answer
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.cli.gate import AskedGate
    from stepscope.core.gate import Quantities
    from stepscope.core.scaling import WidthRun
    from stepscope.pipeline.options import Options
    from stepscope.scaling.shapes import Scaling

QUANTITIES = ("efficiency", "speedup", "karp_flatt")
"""Quantities of a Gain that --fail-if knows."""


def run_scaling(
    paths: Sequence[str],
    steps_ms: Sequence[float],
    kind: str | None,
    options: Options,
    style: str,
    asked: AskedGate | None = None,
) -> int:
    from stepscope.scaling.contract import scaling_json
    from stepscope.scaling.view import scaling_document

    scaling = scale_paths(paths, steps_ms, kind, options)
    print_answer(scaling, style, scaling_json, scaling_document)
    if asked is None:
        return 0
    from stepscope.cli.gate import judge_quantities, say_gate

    return say_gate(judge_quantities(asked, quantities_of(scaling)))


def quantities_of(scaling: Scaling) -> Quantities:
    """Quantities of the widest run that could be compared."""
    from stepscope.core.gate import Quantities

    gains = [gain for gain in scaling.gains if gain is not None]
    values = {name: getattr(gains[-1], name) if gains else None for name in QUANTITIES}
    return Quantities(
        values=values,
        why={name: scaling.because for name, value in values.items() if value is None},
    )


def scale_paths(
    paths: Sequence[str], steps_ms: Sequence[float], kind: str | None, options: Options
) -> Scaling:
    """Each path is a run. Of each only what scaling needs is kept before the next is read."""
    from stepscope.scaling.scale import scale

    if len(paths) < 2:
        raise UsageError(
            "--scaling compares runs of different widths: name two or more, each a trace, a "
            "folder or a tar"
        )
    if steps_ms and len(steps_ms) != len(paths):
        values = "1 was" if len(steps_ms) == 1 else f"{len(steps_ms)} were"
        needed = f"give --step-ms {len(paths)} times, in the order of the runs, or leave it out"
        raise UsageError(
            f"each of the {len(paths)} runs has a step time of its own and {values} given: {needed}"
        )
    from stepscope.scaling.rates import are_rates, rate_run, scale_rates

    runs: list[WidthRun] = []
    if are_rates(paths):
        if steps_ms or kind:
            raise UsageError("rates have no steps: leave --step-ms and --scaling-kind out")
        for path in paths:
            run = rate_run(path)
            _refuse_same_width(runs, run)
            runs.append(run)
        return scale_rates(runs)
    for number, path in enumerate(paths):
        run = _measured(path, replace(options, step_ms=steps_ms[number] if steps_ms else None))
        _refuse_same_width(runs, run)
        runs.append(run)
    return scale(runs, kind)


def _measured(path: str, options: Options) -> WidthRun:
    """A function of its own, so that the job is gone when the next one is read."""
    from stepscope.analyses.run.width import width_run
    from stepscope.pipeline.recording import measure
    from stepscope.readers.remote import shown

    job = measure([path], options)
    return width_run(shown(path), job.facts, job.world_size, job.notes)


def _refuse_same_width(runs: Sequence[WidthRun], run: WidthRun) -> None:
    for other in runs:
        if other.width == run.width:
            is_recorded = run.width_source == "recorded"
            source = "as their traces say" if is_recorded else "by the ranks found"
            if run.rate_per_s:
                source = "as given" if run.width_source == "given" else f"by {run.width_source}"
            wide = "1 rank" if run.width == 1 else f"{run.width} ranks"
            why = "--scaling needs runs of different widths; leave one of them out"
            raise UsageError(f"{other.path} and {run.path} are both {wide} wide ({source}). {why}")


ADDITION = ScalingRuns(run_scaling, QUANTITIES)
