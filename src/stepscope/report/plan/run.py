"""A recorded run at other widths, in the terminal and as JSON (the contract `stepscope.plan-run/1`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.json_text import json_text
from stepscope.planner.from_run import COMMS, Extrapolation, WidthStep
from stepscope.report.document.blocks import MOST_NOTES as MAX_NOTES
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.plan.words import seconds
from stepscope.report.sheet import Column, Sheet
from stepscope.report.units import number, percent, plural

SCHEMA = "stepscope.plan-run/1"
BAR_WIDTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The answer, and what was given beside the run."""

    path: Sequence[str]
    made: Extrapolation
    global_batch: int | None
    """The recorded run's, in samples."""
    seq_len: int | None
    step_source: str
    notes: tuple[str, ...]

    def samples_per_s(self, step: WidthStep) -> float | None:
        if self.global_batch is None:
            return None
        return self.global_batch * step.speedup / self.made.run.step_s

    def tokens_per_s(self, step: WidthStep) -> float | None:
        samples = self.samples_per_s(step)
        return None if samples is None or self.seq_len is None else samples * self.seq_len


def run_plan_text(plan: RunPlan, *, width: int = PLAIN_WIDTH) -> str:
    """As plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_run_plan(plan, console)
    return captured.get()


def show_run_plan(plan: RunPlan, console: Console) -> None:
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
    made = plan.made
    sheet.prose(recorded_words(plan), style="dim")
    sheet.blank()
    sheet.prose(verdict_words(plan), style="bold")
    sheet.heading("Widths", "comms: what of a step is exposed communication; efficiency: against the recorded run")
    _draw_widths(sheet, plan)
    sheet.heading("How this was judged")
    if made.methods:
        sheet.prose(f"Collectives carried to other groups by {' and by '.join(made.methods)}.", indent=4, lead="  -")
    for note in plan.notes[:MAX_NOTES]:
        sheet.prose(note, indent=4, lead="  -")
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def recorded_words(plan: RunPlan) -> str:
    """What was recorded, and what stays."""
    run = plan.made.run
    kind = "the global batch stays" if plan.made.is_strong else "each rank's batch stays"
    return f"A recorded run of {plural(run.width, 'rank')}, {seconds(run.step_s)} a step; {kind}."


def verdict_words(plan: RunPlan) -> str:
    """The answer in a sentence."""
    derived = [step for step in plan.made.steps if not step.is_measured]
    if not derived:
        return "The widths asked for are the recorded one: there is nothing to derive."
    last = derived[-1]
    head = f"On {plural(last.width, 'rank')} a step would take {seconds(last.step_s)}"
    return f"{head}: {last.speedup:.2f}x the work of the recorded run in the same time, {percent(last.efficiency)} of the ideal."


def _draw_widths(sheet: Sheet, plan: RunPlan) -> None:
    rows: list[list[str | Text]] = []
    has_samples = plan.global_batch is not None
    for step in plan.made.steps:
        said = "measured" if step.is_measured else "derived"
        comms = percent(step.parts_s.get(COMMS, 0.0) / step.step_s)
        row: list[str | Text] = [str(step.num_nodes), str(step.width), seconds(step.step_s), comms, percent(step.efficiency)]
        row.append(sheet.bar(step.efficiency, BAR_WIDTH))
        if has_samples:
            row.append(number(plan.tokens_per_s(step) or plan.samples_per_s(step) or 0.0))
        rows.append([*row, said])
    columns = [Column(title=title, right=True) for title in ("nodes", "ranks", "step", "comms", "efficiency")]
    columns.append(Column())
    if has_samples:
        columns.append(Column(title="samples/s" if plan.seq_len is None else "tokens/s", right=True))
    sheet.table((*columns, Column()), rows)


def run_plan_json(plan: RunPlan) -> str:
    """As indented text. What is not known is null."""
    made = plan.made
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "run": {"paths": list(plan.path), "width": made.run.width, "step_s": made.run.step_s, "step_source": plan.step_source},
        "scaling": "strong" if made.is_strong else "weak",
        "ranks_per_node": made.per_node,
        "widths": [
            {
                "nodes": step.num_nodes,
                "width": step.width,
                "data_ranks": step.num_data,
                "source": "measured" if step.is_measured else "derived",
                "step_s": step.step_s,
                "parts_s": dict(step.parts_s),
                "speedup": step.speedup,
                "efficiency": step.efficiency,
                "samples_per_s": plan.samples_per_s(step),
                "tokens_per_s": plan.tokens_per_s(step),
            }
            for step in made.steps
        ],
        "methods": list(made.methods),
        "notes": list(plan.notes),
    }
    return json_text(told, indent=2)
