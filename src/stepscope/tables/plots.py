"""Plots of a diagnosis, as matplotlib figures that Jupyter shows by themselves."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.extras import need
from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.numbers import number_ranges
from stepscope.errors import InputError
from stepscope.report.words import clean, shorten

COLORS = {
    "compute": "#2f6f4f",
    "comms_wait": "#7b3294",
    "comms_transfer": "#b07cc6",
    "transfer": "#2b7bba",
    "idle_input": "#d95f02",
    "idle_sync": "#e6a532",
    "idle_launch": "#c0392b",
    "idle_allocator": "#8c564b",
    "idle_compile": "#666666",
    "idle_io": "#17a2a2",
    "idle_other": "#bdbdbd",
}
"""One colour for each part of a step, distinguished in grey too as far as eleven can be."""
MAX_BARS = 32
"""Ranks drawn as bars of their own; of more the slowest are."""


def step_figure(diagnosis: Diagnosis) -> Any:
    """The parts of the median step, a bar for each rank; the parts of a bar sum to its length."""
    ranks = [rank for rank in diagnosis.facts.ranks if rank.typical_parts_ns is not None]
    if not ranks:
        raise InputError(
            "no step was measured, so that there is none to draw. `run.diagnosis.notes` says why"
        )
    ranks = _slowest(ranks)
    figure = _figure(8, 1.6 + 0.32 * len(ranks))
    axes = figure.add_subplot()
    for part in PARTS:
        lengths = [(rank.typical_parts_ns or {})[part] / 1e6 for rank in ranks]
        if any(lengths):
            starts = [
                sum((rank.typical_parts_ns or {})[p] for p in PARTS[: PARTS.index(part)]) / 1e6
                for rank in ranks
            ]
            axes.barh(
                range(len(ranks)),
                lengths,
                left=starts,
                color=COLORS[part],
                label=part.replace("_", " "),
            )
    axes.set_yticks(range(len(ranks)), [f"rank {rank.rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("ms of the median step, as recorded")
    axes.set_title(
        _words(diagnosis.verdict.summary), parse_math=False, loc="left", fontsize="medium"
    )
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize="small",
    )
    return figure


def findings_figure(diagnosis: Diagnosis) -> Any:
    """Today's step, and the step after each fix alone with its interval.

    The last bar is all of them together.
    """
    today = diagnosis.step.ms
    if today is None:
        raise InputError(
            "the step was not measured, so that no fix can be drawn against it. "
            "`run.diagnosis.notes` says why"
        )
    bars = [("today", today, (math.nan, math.nan))]
    for finding in diagnosis.findings:
        # Bounds are kept on their side of the middle: a replay may round past it.
        low, high = today / finding.predicted_high, today / finding.predicted_low
        middle = finding.predicted_step_ms
        bars.append((finding.code, middle, (max(middle - low, 0.0), max(high - middle, 0.0))))
    if diagnosis.together is not None:
        bars.append(("all of them", today / diagnosis.together, (math.nan, math.nan)))
    figure = _figure(8, 1.2 + 0.36 * len(bars))
    axes = figure.add_subplot()
    errors = [[bar[2][0] for bar in bars], [bar[2][1] for bar in bars]]
    colors = ["#666666"] + ["#2f6f4f"] * (len(bars) - 1)
    drawn = axes.barh(
        range(len(bars)),
        [bar[1] for bar in bars],
        xerr=errors,
        color=colors,
        ecolor="#222222",
        capsize=3,
    )
    axes.bar_label(drawn, [f"{bar[1]:.1f} ms" for bar in bars], padding=6, fontsize="small")
    axes.set_yticks(range(len(bars)), [_words(bar[0]) for bar in bars], parse_math=False)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("ms a step; each fix alone, as the replay predicts")
    axes.set_title(
        "No findings" if not diagnosis.findings else "The step, and after each fix",
        loc="left",
        fontsize="medium",
    )
    return figure


def ranks_figure(diagnosis: Diagnosis) -> Any:
    """Each rank's median step, what it waits for others on top, and a dot for each step.

    Ranks that come last stand out.
    In a job that runs in step all ranks take as long: a straggler is the one that does not wait.
    """
    ranks = [
        rank for rank in diagnosis.facts.ranks if rank.steps.is_step_interval and rank.steps.windows
    ]
    if not ranks:
        raise InputError("no whole step was measured on any rank: record two steps or more")
    comms = diagnosis.facts.comms
    late: set[int] = set()
    if comms is not None:
        late = {rank_comms.rank for rank_comms in comms.ranks if rank_comms.is_straggler}
    positions = range(len(ranks))
    waits = [(rank.typical_parts_ns or {}).get("comms_wait", 0.0) / 1e6 for rank in ranks]
    without_waits = [
        (rank.steps.step_interval_ns or 0.0) / 1e6 - wait
        for rank, wait in zip(ranks, waits, strict=True)
    ]
    figure = _figure(8, 4)
    axes = figure.add_subplot()
    axes.bar(
        positions,
        without_waits,
        color=["#d95f02" if rank.rank in late else "#9ecae1" for rank in ranks],
        label="own work",
    )
    if any(waits):
        axes.bar(
            positions,
            waits,
            bottom=without_waits,
            color=COLORS["comms_wait"],
            label="waits for other ranks",
        )
        figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    dots = [(i, ns / 1e6) for i, rank in enumerate(ranks) for ns in rank.steps.step_intervals]
    axes.scatter(
        [i for i, _ in dots], [value for _, value in dots], s=10, color="#222222", zorder=2
    )
    shown = range(0, len(ranks), max(1, -(-len(ranks) // MAX_BARS)))
    axes.set_xticks(list(shown), [str(ranks[i].rank) for i in shown])
    axes.set_xlabel("rank")
    axes.set_ylabel("ms a step, as recorded")
    named = f"; {number_ranges(late)} arrives last at collectives" if late else ""
    axes.set_title(
        f"Step time of {len(ranks)} rank{'' if len(ranks) == 1 else 's'}{named}",
        loc="left",
        fontsize="medium",
    )
    return figure


def _slowest(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """All of them, or the slowest, by number."""
    chosen = sorted(ranks, key=lambda rank: -(rank.steps.step_interval_ns or 0))[:MAX_BARS]
    return sorted(chosen, key=lambda rank: rank.rank)


def _words(text: str) -> str:
    return shorten(clean(text), 100)


def _figure(width: float, height: float) -> Any:
    """A Figure outside of pyplot.

    Nothing global, no window, and a picture of itself for Jupyter.
    """
    figure_class: Any = need("matplotlib.figure", "notebook", "a plot").Figure

    class Picture(figure_class):  # type: ignore[misc]
        """A Figure that shows itself, whether or not a notebook has set matplotlib up."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Picture(figsize=(width, height), layout="constrained")
