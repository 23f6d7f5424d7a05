"""How runs of one job scale with their width:
speedup, efficiency, and which parts of the step the loss lies in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stepscope.core.scaling import SCALING_PARTS, WidthRun
from stepscope.scaling.shapes import Amdahl, Gain, Loss, Scaling

SAME_WORK = 0.05
"""FLOPs of two runs are the same within this share:
batches that do not divide evenly leave a few percent."""
MIN_ALIKE = 0.5
"""Share of operators' calls that two runs of one model have in common, at the least."""
SAME_BYTES = 0.05
"""Gradients of one model are the same size within this share: shards are padded to the width."""
MIN_WIDTHS = 3
"""Amdahl's law has two unknowns: two widths always fit it, and so say nothing for it."""


def scale(runs: Sequence[WidthRun], kind: str | None = None) -> Scaling:
    """Compare runs of different widths with the narrowest.
    `kind` overrides what their FLOPs say."""
    ordered = tuple(sorted(runs, key=lambda run: run.width))
    assert len({run.width for run in ordered}) == len(ordered) >= 2
    measured, source, because = infer_kind(ordered)
    chosen = kind or measured
    gains = tuple(
        None if run is ordered[0] or chosen is None else gain(ordered[0], run, chosen)
        for run in ordered
    )
    fitted = fit_amdahl(ordered) if chosen == "strong" else None
    notes = [*_doubts(ordered), *_unlike(ordered)]
    if kind is not None and measured is not None and kind != measured:
        notes.append(f"{kind} scaling was asked for; measured, it is {measured}: {because}")
    timed = [run for run in ordered if run.step.ns is not None]
    if chosen == "strong" and fitted is None and len(timed) >= MIN_WIDTHS:
        notes.append(
            "the step does not shrink with the width: Amdahl's law does not describe it, and no "
            "serial share is fitted"
        )
    return Scaling(
        kind=chosen,
        kind_source=source if kind is None else "given",
        because=because,
        runs=ordered,
        gains=gains,
        amdahl=fitted,
        notes=tuple(notes),
    )


def infer_kind(runs: Sequence[WidthRun]) -> tuple[str | None, str, str]:
    """weak, strong or None; measured, mixed or not measured; and why.
    By the FLOPs of one rank in one step."""
    base = runs[0]
    unknown = [run for run in runs if not run.flops]
    if unknown:
        widths = ", ".join(str(run.width) for run in unknown)
        return (
            None,
            "not measured",
            (
                f"the FLOPs of a step were not measured at width {widths} (record_shapes=True "
                "records them)"
            ),
        )
    grown = [run.width / base.width for run in runs[1:]]
    ratios = [(run.flops or 0.0) / (base.flops or 1.0) for run in runs[1:]]
    weak = all(abs(ratio - 1) <= SAME_WORK for ratio in ratios)
    strong = all(
        abs(ratio * width - 1) <= SAME_WORK for ratio, width in zip(ratios, grown, strict=True)
    )
    listed = ", ".join(
        f"{ratio:.3g}x at width {run.width}" for ratio, run in zip(ratios, runs[1:], strict=True)
    )
    ratios_text = f"the FLOPs of a rank's step, against width {base.width}: {listed}"
    if weak and strong:
        return None, "mixed", f"{ratios_text}; the widths are too close to tell"
    if not weak and not strong:
        return None, "mixed", f"{ratios_text}; neither the same nor divided by the width"
    return ("weak" if weak else "strong"), "measured", ratios_text


def gain(base: WidthRun, run: WidthRun, kind: str) -> Gain | None:
    """The run against the base; None where either has no step time."""
    before, after = base.step.ns, run.step.ns
    if not before or not after:
        return None
    grown = run.width / base.width
    speedup = before / after * (grown if kind == "weak" else 1.0)
    low, high = _interval(base, run, speedup / grown)
    return Gain(
        ideal_speedup=grown,
        speedup=speedup,
        efficiency=speedup / grown,
        efficiency_low=low,
        efficiency_high=high,
        karp_flatt=karp_flatt(speedup, grown) if kind == "strong" else None,
        loss=loss(base, run, kind),
    )


def karp_flatt(speedup: float, grown: float) -> float:
    """The serial share that would explain a speedup (Karp and Flatt,
    CACM 33(5), 1990, equation 2)."""
    return (1 / speedup - 1 / grown) / (1 - 1 / grown)


def _interval(
    base: WidthRun, run: WidthRun, efficiency: float
) -> tuple[float | None, float | None]:
    """The ends of both steps' intervals, at their worst and at their best."""
    before, after = base.step, run.step
    if not (
        before.ns
        and before.low_ns
        and before.high_ns
        and after.ns
        and after.low_ns
        and after.high_ns
    ):
        return None, None
    return (
        efficiency * (before.low_ns / before.ns) * (after.ns / after.high_ns),
        efficiency * (before.high_ns / before.ns) * (after.ns / after.low_ns),
    )


def loss(base: WidthRun, run: WidthRun, kind: str) -> Loss:
    """The step less the ideal, split by parts that sum to it.

            compute  comms_transfer  sum
    base         80               0   80
    ideal        40               0   40    strong scaling, twice the width
    run          44              11   55
    lost          4              11   15
    """
    before, after = base.step.ns, run.step.ns
    assert before is not None and after is not None
    over, under = (base.width, run.width) if kind == "strong" else (1, 1)
    ideal = _scaled(before, over, under)
    parts = _lost_parts(base.parts_ns, run.parts_ns, over, under)
    measured = {} if parts is None else {part: ns for part, ns in parts.items() if ns is not None}
    worst = max(measured, key=lambda part: measured[part]) if measured and after > ideal else None
    return Loss(ideal_ns=ideal, lost_ns=after - ideal, parts_ns=parts, worst=worst)


def _lost_parts(
    base: Mapping[str, int | None] | None,
    run: Mapping[str, int | None] | None,
    over: int,
    under: int,
) -> dict[str, int | None] | None:
    if base is None or run is None:
        return None
    # One run's waits being inside its transfers, only the sum of both can be compared.
    merged = base["comms_wait"] is None or run["comms_wait"] is None
    before, after = (_merged(base), _merged(run)) if merged else (base, run)
    lost: dict[str, int | None] = {}
    reached = 0
    for part in SCALING_PARTS:
        # Rounding the running sum, not each part, keeps the sum of the ideal parts the ideal step.
        begun, reached = reached, reached + (before[part] or 0)
        ideal = _scaled(reached, over, under) - _scaled(begun, over, under)
        lost[part] = None if part == "comms_wait" and merged else (after[part] or 0) - ideal
    return lost


def _merged(parts: Mapping[str, int | None]) -> dict[str, int | None]:
    return {
        **parts,
        "comms_transfer": (parts["comms_transfer"] or 0) + (parts["comms_wait"] or 0),
        "comms_wait": None,
    }


def _scaled(ns: int, over: int, under: int) -> int:
    return (2 * ns * over + under) // (2 * under)


def fit_amdahl(runs: Sequence[WidthRun]) -> Amdahl | None:
    """Fit by the step times of strong scaling."""
    return fit_times([(run.width, float(run.step.ns)) for run in runs if run.step.ns])


def fit_times(timed: Sequence[tuple[int, float]]) -> Amdahl | None:
    """Least squares of relative errors over T(n) = serial + parallel / n, neither negative, by
    widths and their times of the same work; None where these do not shrink.

    G. M. Amdahl, Validity of the single processor approach, AFIPS 1967.
    """
    if len(timed) < MIN_WIDTHS:
        return None
    width = np.array([n for n, _ in timed], np.float64)
    step = np.array([ns for _, ns in timed], np.float64)
    terms = np.stack([1 / step, 1 / (width * step)], axis=1)
    serial, parallel = np.linalg.lstsq(terms, np.ones(len(timed)), rcond=None)[0].tolist()
    if serial < 0:
        # Better than linear: the nearest that the law allows has no serial part.
        serial, parallel = 0.0, float(terms[:, 1].sum() / (terms[:, 1] ** 2).sum())
    if parallel <= 0:
        return None
    misfit = np.abs(terms @ np.array([serial, parallel]) - 1)
    return Amdahl(
        serial_fraction=serial / (serial + parallel),
        worst=float(misfit.max()),
        num_widths=len(timed),
    )


def _doubts(runs: Sequence[WidthRun]) -> Iterator[str]:
    """What makes the step times less than they seem."""
    untimed = [str(run.width) for run in runs if not run.step.ns]
    if untimed:
        yield f"no step was measured at width {', '.join(untimed)}: it is compared with nothing"
    if all(run.step.source == "trace" for run in runs):
        yield (
            "step times are the profiled ones, the profiler's own cost in each: give the real "
            "ones, --step-ms once per run"
        )
        if any(run.step.ns and run.step.low_ns is None for run in runs):
            yield "no intervals: they need seven whole steps or more in every recording"


def _unlike(runs: Sequence[WidthRun]) -> Iterator[str]:
    """Signs that these are not runs of one job."""
    base = runs[0]
    for run in runs[1:]:
        which = f"widths {base.width} and {run.width}"
        alike = _alike(base.op_shares, run.op_shares)
        if alike is not None and alike < MIN_ALIKE:
            yield (
                f"{which} seem to run different models: {alike:.0%} of their operators' calls are "
                "the same"
            )
        if base.device_name and run.device_name and base.device_name != run.device_name:
            yield f"{which} ran on different devices: {base.device_name} and {run.device_name}"
    reduced = [run for run in runs if run.gradient_bytes]
    for run in reduced[1:]:
        first_bytes, run_bytes = reduced[0].gradient_bytes or 1.0, run.gradient_bytes or 1.0
        if abs(run_bytes / first_bytes - 1) > SAME_BYTES:
            sizes = f"{first_bytes / 1e6:.3g} and {run_bytes / 1e6:.3g} MB"
            which = f"widths {reduced[0].width} and {run.width}"
            yield (
                f"{which} seem to run different models, or divide one another way: they reduce "
                f"{sizes} of gradients a step"
            )


def _alike(shares: Mapping[str, float], others: Mapping[str, float]) -> float | None:
    """What two lists of shares have in common; None where either is empty."""
    if not shares or not others:
        return None
    return sum(min(share, others.get(name, 0.0)) for name, share in shares.items())
