"""A recorded run at other widths, as a document and as JSON (the contract
`stepscope.plan-run/1`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from stepscope import __version__
from stepscope.core.codec import encode
from stepscope.plan.contract.plan import Device, PlanRunContract, RecordedRun, Width
from stepscope.plan.from_run import COMMS, COMPUTE, Extrapolation, WidthStep
from stepscope.plan.report.html import curve, drawn
from stepscope.plan.report.words import seconds
from stepscope.report.document.blocks import (
    MAX_NOTES,
    Bar,
    Column,
    Document,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    numbers,
)
from stepscope.report.words import number, percent, plural

BAR_WIDTH = 12


class RunPlan(Struct, frozen=True, kw_only=True):
    """The answer, and what was given beside the run."""

    path: Sequence[str]
    made: Extrapolation
    global_batch: int | None
    """The recorded run's, in samples."""
    seq_len: int | None
    step_source: str
    devices: tuple[Device, ...] = ()
    """Others that were asked about."""
    notes: tuple[str, ...]

    def samples_per_s(self, step: WidthStep) -> float | None:
        if self.global_batch is None:
            return None
        return self.global_batch * step.speedup / self.made.run.step_s

    def tokens_per_s(self, step: WidthStep) -> float | None:
        samples = self.samples_per_s(step)
        return None if samples is None or self.seq_len is None else samples * self.seq_len


def run_plan_document(plan: RunPlan) -> Document:
    answer = Headline(
        command="stepscope plan", text=verdict_words(plan), about=(recorded_words(plan),)
    )
    return (answer, *run_plan_sections(plan))


def run_plan_sections(plan: RunPlan) -> tuple[Section, ...]:
    """The widths and other devices, and what they rest on."""
    methods = plan.made.methods
    carried = (
        [f"Collectives carried to other groups by {' and by '.join(methods)}."] if methods else []
    )
    judged = Items((*carried, *plan.notes[:MAX_NOTES]))
    aside = "comms: what of a step is exposed communication; efficiency: against the recorded run"
    devices = (devices_section(plan),) if plan.devices else ()
    return (
        Section(title="Widths", aside=aside, blocks=(_widths_table(plan),)),
        *devices,
        Section(title="How this was judged", blocks=(judged,)),
    )


def devices_section(plan: RunPlan) -> Section:
    """The step on each other device that was asked about."""
    rows = []
    for each in plan.devices:
        compute, known = each.parts_s.get(COMPUTE, 0.0), percent(each.share_known)
        figures = (seconds(each.step_s), f"{each.speedup:.2f}x", seconds(compute), known)
        rows.append((each.device, *figures))
    words = (
        "kernels' work known: others go with the memory's rate. The host's time, copies and "
        "collectives stay as recorded; a faster device may wait for a host that this one hid. No "
        "run of one job on two devices was at hand to compare with."
    )
    columns = (Column(), *numbers("step", "speed", "compute", "work known"))
    table = Table(columns=columns, rows=tuple(rows))
    return Section(title="On another device", blocks=(table, Prose(words, "quiet")))


def recorded_words(plan: RunPlan) -> str:
    """What was recorded, and what stays."""
    run = plan.made.run
    kind = "the global batch stays" if plan.made.is_strong else "each rank's batch stays"
    return f"A recorded run of {plural(run.width, 'rank')}, {seconds(run.step_s)} a step; {kind}."


def verdict_words(plan: RunPlan) -> str:
    """The answer in a sentence."""
    derived = [step for step in plan.made.steps if not step.is_measured]
    if not derived and plan.devices:
        best = min(plan.devices, key=lambda each: each.step_s)
        return (
            f"On {best.device} the recorded step would take {seconds(best.step_s)}, "
            f"{best.speedup:.2f} times as fast."
        )
    if not derived:
        return "The widths asked for are the recorded one: there is nothing to derive."
    last = derived[-1]
    head = f"On {plural(last.width, 'rank')} a step would take {seconds(last.step_s)}"
    if plan.made.is_ideal:
        return (
            f"{head} at best: no collective over data ranks was recorded, and what they would take "
            "is not known."
        )
    return (
        f"{head}: {last.speedup:.2f}x the work of the recorded run in the same time, "
        f"{percent(last.efficiency)} of the ideal."
    )


def _widths_table(plan: RunPlan) -> Table:
    rows: list[tuple[str | Bar, ...]] = []
    has_samples = plan.global_batch is not None
    for step in plan.made.steps:
        comms = percent(step.parts_s.get(COMMS, 0.0) / step.step_s)
        figures = (
            str(step.num_nodes),
            str(step.width),
            seconds(step.step_s),
            comms,
            percent(step.efficiency),
        )
        rate = (
            (number(plan.tokens_per_s(step) or plan.samples_per_s(step) or 0.0),)
            if has_samples
            else ()
        )
        source = "at best" if plan.made.is_ideal else "derived"
        rows.append(
            (*figures, Bar(step.efficiency), *rate, "measured" if step.is_measured else source)
        )
    titles = ("samples/s" if plan.seq_len is None else "tokens/s",) if has_samples else ()
    columns = numbers("nodes", "ranks", "step", "comms", "efficiency")
    return Table(
        columns=(*columns, Column(most=BAR_WIDTH), *numbers(*titles), Column()), rows=tuple(rows)
    )


def run_plan_json(plan: RunPlan) -> str:
    """Write as indented text."""
    made = plan.made
    document = PlanRunContract(
        run=RecordedRun(
            paths=tuple(plan.path),
            width=made.run.width,
            step_s=made.run.step_s,
            step_source=plan.step_source,
        ),
        scaling="strong" if made.is_strong else "weak",
        ranks_per_node=made.per_node,
        widths=tuple(_width(plan, step) for step in made.steps),
        devices=plan.devices,
        methods=made.methods,
        notes=plan.notes,
    )
    return encode(document)


def _width(plan: RunPlan, step: WidthStep) -> Width:
    return Width(
        width=step.width,
        step_s=step.step_s,
        parts_s=step.parts_s,
        speedup=step.speedup,
        efficiency=step.efficiency,
        nodes=step.num_nodes,
        data_ranks=step.num_data,
        source="measured" if step.is_measured else "derived",
        samples_per_s=plan.samples_per_s(step),
        tokens_per_s=plan.tokens_per_s(step),
    )


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
