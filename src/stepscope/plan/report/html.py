"""A plan as one HTML page: opens from disk, asks nobody for anything, and reads well with scripts
off.

Bars and curves are drawings in the page itself, placed by attributes: the page's policy lets no
style run that is not ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from stepscope import __version__
from stepscope.plan.contract.plan import Account, RecordedMemory, Variant
from stepscope.plan.report.account import MEMORY_WORDS, TIME_WORDS, Plan
from stepscope.plan.report.text import (
    answer_sections,
    budget_section,
    explained_sections,
    failures_section,
    frameworks_section,
    measured_memory_section,
    name_section,
    scaling_section,
    trust_section,
    what_ifs_section,
    zero_section,
)
from stepscope.plan.report.words import (
    count_words,
    days_words,
    gib,
    headline_words,
    job_words,
    seconds,
    tokens_words,
)
from stepscope.report.document.blocks import Section
from stepscope.report.html import render
from stepscope.report.words import fixed, number, percent

SCRIPTS = ("charts.js", "page.js")
STYLES = ("page.css", "plan.css")
COLORS = {
    "weights": 0, "gradients": 1, "optimizer": 2, "activations": 3, "logits": 4, "gathered": 5,
    "buffers": 6, "update": 9, "slack": 7, "context": 8,
    "gemm": 3, "attention": 1, "stream": 9, "recompute": 4, "head": 11, "host": 10,
    "tensor_comms": 2, "expert_comms": 5, "context_comms": 0, "shard_comms": 5,
    "pipeline_comms": 0, "bubble": 7, "data_comms": 6, "offload": 10, "jitter": 8,
}  # fmt: skip
LEFT, RIGHT, TOP, BOTTOM = 64.0, 400.0, 26.0, 212.0
NEGLIGIBLE = 0.001


def plan_html(plan: Plan, measured: RecordedMemory | None = None) -> str:
    """The whole file."""
    return drawn(page_of(plan, measured))


def drawn(page: dict[str, Any]) -> str:
    """A page of plain values as a file."""
    return render("plan.html", page, SCRIPTS, STYLES, seconds=seconds, number=number, gib=gib)


def page_of(plan: Plan, measured: RecordedMemory | None = None) -> dict[str, Any]:
    """What the template shows: plain values, and sections of the plan's document."""
    account = plan.explained or plan.best
    job = plan.training
    page: dict[str, Any] = {
        "title": f"{job.model.name} on {job.cluster.name}",
        "job": job_words(job),
        "headline": headline_words(plan),
        "version": __version__,
        "advice": plan.advice,
        "counts": count_words(plan),
        "chips": [] if account is None else _chips(plan, account),
        "best": plan.best,
        "layouts": plan.layouts if len(plan.layouts) > 1 else (),
        "pareto": plan.pareto if len(plan.pareto) > 1 else (),
        "front_curve": _front_curve(plan.pareto) if len(plan.pareto) > 1 else None,
        "scaling": scaling_section(plan.scaling) if plan.scaling else None,
        "scaling_curve": _scaling_curve(plan.scaling),
        "parts": list(_parts_of(plan, measured)),
        "memory": [],
    }
    if account is not None:
        whole = job.cluster.memory_bytes
        share = percent(account.memory_bytes / whole)
        fill = "It does not fit."
        if account.fits:
            fill = "The bar is the whole device; what is empty is free."
        page |= {
            "memory": _parts(account.memory, MEMORY_WORDS, max(whole, account.memory_bytes), gib),
            "memory_words": f"{gib(account.memory_bytes)} of {gib(whole)}, {share}. {fill}",
            "time": _parts(
                dict(sorted(account.time.items(), key=lambda each: -each[1])),
                TIME_WORDS,
                account.step_s,
                seconds,
            ),
            "time_words": f"{seconds(account.step_s)} with {account.layout}.",
        }
    return page


def _chips(plan: Plan, account: Account) -> list[tuple[str, str, str]]:
    chips = [
        ("step", seconds(account.step_s), ""),
        ("tokens/s", number(account.tokens_per_s), "all devices"),
        ("MFU", percent(account.mfu), f"HFU {percent(account.hfu)}"),
        ("memory", gib(account.memory_bytes), f"of {gib(plan.training.cluster.memory_bytes)}"),
    ]
    if plan.budget is not None:
        chips.append((tokens_words(plan.budget.tokens), days_words(plan.budget.days), ""))
    return chips


def _parts(
    parts: Mapping[str, float], words: Mapping[str, str], whole: float, unit: Any
) -> list[dict[str, Any]]:
    at, drawn_parts = 0.0, []
    for name, value in parts.items():
        if value >= NEGLIGIBLE * whole:
            width = 1000 * value / whole
            words_of = {
                "word": words[name],
                "value": unit(value),
                "share": percent(value / whole),
                "color": f"c{COLORS[name]}",
            }
            drawn_parts.append(words_of | {"at": f"{at:.2f}", "width": f"{width:.2f}"})
            at += width
    return drawn_parts


def _parts_of(plan: Plan, measured: RecordedMemory | None) -> Iterator[tuple[str, Section]]:
    """Sections as the terminal has them, by what a link to each is called."""
    if plan.frameworks:
        yield "frameworks", frameworks_section(plan.frameworks)
    if plan.zero_stages:
        yield "zero", zero_section(plan.zero_stages)
    if plan.what_ifs:
        yield "what-if", what_ifs_section(plan.what_ifs, plan.best)
    if plan.budget is not None:
        yield "budget", budget_section(plan.training, plan.budget)
    if plan.failures is not None:
        yield "failures", failures_section(plan.training, plan.failures)
    for at, section in enumerate(answer_sections(plan), 1):
        yield f"answer-{at}", section
    accounts = (
        [] if plan.explained is None else list(explained_sections(plan.training, plan.explained))
    )
    accounts += [] if measured is None else [measured_memory_section(measured)]
    for at, section in enumerate(accounts, 1):
        yield f"account-{at}", replace(section, title=f"The account: {section.title.lower()}")
    named = plan.explained or plan.best
    if named is not None:
        yield "name", name_section(named.layout)
    yield "notes", trust_section(plan)


# Curves.


def _front_curve(accounts: Sequence[Account]) -> dict[str, Any]:
    points = [(each.memory_bytes / 2**30, each.step_s, str(each.layout)) for each in accounts]
    return curve(points, logarithmic=False) | {
        "x_word": "GiB of a device",
        "y_word": "seconds a step",
    }


def _scaling_curve(variants: Sequence[Variant]) -> dict[str, Any] | None:
    points = [
        (each.num_devices, each.best.tokens_per_s, str(each.best.layout))
        for each in variants
        if each.best is not None
    ]
    if len(points) < 2:
        return None
    first, last = points[0], points[-1]
    ideal = [(first[0], first[1]), (last[0], first[1] * last[0] / first[0])]
    made = curve([(float(x), y, word) for x, y, word in points], logarithmic=True, ideal=ideal)
    return made | {"x_word": "devices", "y_word": "tokens/s"}


def curve(
    points: Sequence[tuple[float, float, str]],
    *,
    logarithmic: bool,
    ideal: Sequence[tuple[float, float]] = (),
) -> dict[str, Any]:
    """Positions of points, lines and ticks. Ticks stand where points do."""
    scale = math.log if logarithmic else float
    xs = [scale(x) for x, _, _ in points] + [scale(x) for x, _ in ideal]
    ys = [scale(y) for _, y, _ in points] + [scale(y) for _, y in ideal]
    low_y = min(ys) if logarithmic else 0.0

    def x_at(x: float) -> float:
        return LEFT + (RIGHT - LEFT) * (scale(x) - min(xs)) / ((max(xs) - min(xs)) or 1)

    def y_at(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (scale(y) - low_y) / ((max(ys) - low_y) or 1)

    ordered = sorted(points)
    return {
        "dots": [
            {"x": f"{x_at(x):.1f}", "y": f"{y_at(y):.1f}", "word": word} for x, y, word in ordered
        ],
        "line": _polyline([(x_at(x), y_at(y)) for x, y, _ in ordered]),
        "ideal": _polyline([(x_at(x), y_at(y)) for x, y in ideal]),
        "x_ticks": _ticks([x for x, _, _ in ordered], x_at, apart=38),
        "y_ticks": _ticks([y for _, y, _ in ordered], y_at, apart=16),
    }


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _ticks(values: Sequence[float], at: Any, apart: float) -> list[dict[str, str]]:
    """Ticks that do not touch the one before."""
    ticks: list[tuple[float, str]] = []
    for value in sorted(values):
        position = at(value)
        if all(abs(position - other) >= apart for other, _ in ticks):
            ticks.append(
                (
                    position,
                    fixed(value, 0) if value >= 100 or value == int(value) else number(value),
                )
            )
    return [{"at": f"{position:.1f}", "word": word} for position, word in ticks]
