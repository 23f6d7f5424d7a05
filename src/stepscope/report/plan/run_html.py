"""A recorded run at other widths, as one HTML page: the plan's own page, with what this has of it."""

from __future__ import annotations

from typing import Any

from stepscope import __version__
from stepscope.planner.from_run import COMMS, WidthStep
from stepscope.report.names import clean
from stepscope.report.plan.html import curve, drawn
from stepscope.report.plan.run import RunPlan, recorded_words, verdict_words
from stepscope.report.plan.words import seconds
from stepscope.report.units import fixed, number, percent

EMPTY: dict[str, Any] = {
    "advice": [], "counts": "", "layouts": [], "pareto": [], "front_curve": None, "what_ifs": [], "facts": [], "facts_title": "",
    "explained": [], "memory": [],
}  # fmt: skip


def run_plan_html(plan: RunPlan) -> str:
    """The whole file."""
    made = plan.made
    last = made.steps[-1]
    rate = "work/s" if plan.global_batch is None else "samples/s" if plan.seq_len is None else "tokens/s"
    methods = [f"Collectives carried to other groups by {' and by '.join(made.methods)}."] if made.methods else []
    kind = "The global batch stays" if made.is_strong else "Each rank's batch stays"
    page = EMPTY | {
        "title": clean(plan.path[0]),
        "job": clean(recorded_words(plan)),
        "headline": clean(verdict_words(plan)),
        "version": __version__,
        "notes": [clean(line) for line in (*methods, *plan.notes)],
        "chips": [
            {"word": "recorded", "value": seconds(made.run.step_s), "of": f"{made.run.width} ranks"},
            {"word": "at the widest", "value": seconds(last.step_s), "of": f"{last.width} ranks"},
            {"word": "efficiency", "value": percent(last.efficiency), "of": "against the recorded run"},
        ],
        "scaling_words": f"{kind}. Dashed: as much more as there are ranks. Work is that of the recorded run in a second.",
        "scaling_rate": rate,
        "scaling_what": "exposed communication",
        "scaling": [_row(plan, step) for step in made.steps],
        "scaling_curve": _curve_of(plan, rate),
    }
    return drawn(page)


def _rate(plan: RunPlan, step: WidthStep) -> float:
    told = plan.tokens_per_s(step) or plan.samples_per_s(step)
    return told if told is not None else step.speedup / plan.made.run.step_s


def _row(plan: RunPlan, step: WidthStep) -> dict[str, str]:
    said = "measured" if step.is_measured else "derived"
    return {
        "num": fixed(step.width, 0),
        "step": seconds(step.step_s),
        "tokens": number(_rate(plan, step)),
        "efficiency": percent(step.efficiency),
        "layout": f"{percent(step.parts_s.get(COMMS, 0.0) / step.step_s)} of the step; {said}",
    }


def _curve_of(plan: RunPlan, rate: str) -> dict[str, Any] | None:
    points = [(float(step.width), _rate(plan, step), f"{step.width} ranks") for step in plan.made.steps]
    if len(points) < 2:
        return None
    base = _rate(plan, plan.made.steps[0]) / plan.made.steps[0].efficiency / plan.made.steps[0].width
    ideal = [(points[0][0], base * points[0][0]), (points[-1][0], base * points[-1][0])]
    return curve(points, logarithmic=True, ideal=ideal) | {"x_word": "ranks", "y_word": rate}
