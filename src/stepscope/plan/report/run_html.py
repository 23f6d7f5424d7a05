"""A recorded run at other widths, as one HTML page: the plan's own page, with what this has of
it."""

from __future__ import annotations

from typing import Any

from stepscope import __version__
from stepscope.plan.from_run import WidthStep
from stepscope.plan.report.html import curve, drawn
from stepscope.plan.report.run import RunPlan, recorded_words, run_plan_sections, verdict_words
from stepscope.plan.report.words import seconds
from stepscope.report.units import percent

EMPTY: dict[str, Any] = {
    "advice": [],
    "counts": "",
    "best": None,
    "layouts": (),
    "pareto": (),
    "front_curve": None,
    "memory": [],
}


def run_plan_html(plan: RunPlan) -> str:
    """The whole file."""
    made = plan.made
    last = made.steps[-1]
    rate = "samples/s" if plan.seq_len is None else "tokens/s"
    if plan.global_batch is None:
        rate = "work/s"
    widths, *others, judged = run_plan_sections(plan)
    page = EMPTY | {
        "title": plan.path[0],
        "job": recorded_words(plan),
        "headline": verdict_words(plan),
        "version": __version__,
        "chips": [
            ("recorded", seconds(made.run.step_s), f"{made.run.width} ranks"),
            ("at the widest", seconds(last.step_s), f"{last.width} ranks"),
            ("efficiency", percent(last.efficiency), "against the recorded run"),
        ],
        "scaling": widths,
        "scaling_curve": _curve_of(plan, rate),
        "parts": [*(("devices", section) for section in others), ("notes", judged)],
    }
    return drawn(page)


def _rate(plan: RunPlan, step: WidthStep) -> float:
    rate = plan.tokens_per_s(step) or plan.samples_per_s(step)
    return rate if rate is not None else step.speedup / plan.made.run.step_s


def _curve_of(plan: RunPlan, rate: str) -> dict[str, Any] | None:
    points = [
        (float(step.width), _rate(plan, step), f"{step.width} ranks") for step in plan.made.steps
    ]
    if len(points) < 2:
        return None
    base = (
        _rate(plan, plan.made.steps[0]) / plan.made.steps[0].efficiency / plan.made.steps[0].width
    )
    ideal = [(points[0][0], base * points[0][0]), (points[-1][0], base * points[-1][0])]
    return curve(points, logarithmic=True, ideal=ideal) | {"x_word": "ranks", "y_word": rate}
