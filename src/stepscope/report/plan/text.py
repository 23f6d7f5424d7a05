"""A plan in the terminal: the answer in a sentence, where memory and time go, what else was tried and why it loses."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from stepscope.planner.job import TrainingJob
from stepscope.planner.what_if import Budget
from stepscope.report.plan.account import MEMORY_WORDS, TIME_WORDS, Account, Plan, Variant
from stepscope.report.plan.beside import PlanBeside, draw_beside
from stepscope.report.plan.words import (
    asked_words,
    count_words,
    days_words,
    gib,
    job_words,
    money,
    seconds,
    short_count,
    tokens_words,
    trust_words,
    verdict_words,
)
from stepscope.report.sheet import Column, Sheet
from stepscope.report.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.units import number, percent, plural

BAR_WIDTH = 34
WHY_INDENT = 33
FORMULA_INDENT = 36
NEGLIGIBLE = 0.001
"""Of the whole: a part below it has no line."""


def render_plan(plan: Plan, beside: PlanBeside | None = None, *, width: int = PLAIN_WIDTH) -> str:
    """The plan as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_plan(plan, console, beside)
    return captured.get()


def show_plan(plan: Plan, console: Console, beside: PlanBeside | None = None) -> None:
    """Print the plan."""
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
    _draw(sheet, plan, beside)
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _draw(sheet: Sheet, plan: Plan, beside: PlanBeside | None) -> None:
    sheet.prose(job_words(plan.job), style="dim")
    sheet.blank()
    sheet.prose(verdict_words(plan), style="bold")
    if plan.explained is not None:
        sheet.prose(asked_words(plan.explained), style="bold")
    for line in plan.advice:
        sheet.prose(line, indent=4, lead="  -")
    account = plan.explained or plan.best
    if account is not None:
        if plan.explained is not None:
            draw_explained(sheet, plan.job, account)
        else:
            _draw_memory(sheet, plan.job, account)
            _draw_time(sheet, account)
    if beside is not None:
        draw_beside(sheet, beside)
    if plan.explained is None:
        _draw_layouts(sheet, plan)
        _draw_pareto(sheet, plan)
    if plan.budget is not None:
        _draw_budget(sheet, plan.job, plan.budget)
    _draw_variants(sheet, "What if", "the best layout of each", plan.what_ifs, plan.best)
    _draw_scaling(sheet, plan)
    for title, one in (("Largest model that fits", plan.largest), ("Smallest cluster that holds it", plan.smallest)):
        if one is not None:
            _draw_answer(sheet, title, one)
    _draw_trust(sheet, plan)


def draw_explained(sheet: Sheet, job: TrainingJob, account: Account) -> None:
    from stepscope.report.plan.explain import explained

    for title, aside, parts in explained(job, account):
        sheet.heading(title, aside)
        for part in parts:
            head = f"  {part.word:<16}{part.value:>9}  {part.share:>5}"
            sheet.prose(part.formula, indent=FORMULA_INDENT, lead=head)


def _draw_parts(sheet: Sheet, parts: Mapping[str, float], words: Mapping[str, str], whole: float, shown: str) -> None:
    rows: list[list[str | Text]] = []
    for name, value in parts.items():
        if value < NEGLIGIBLE * whole:
            continue
        told = gib(value) if shown == "memory" else seconds(value)
        rows.append([words[name], told, percent(value / whole), sheet.bar(value / whole, BAR_WIDTH)])
    sheet.table((Column(), Column(right=True), Column(right=True), Column()), rows)


def _draw_memory(sheet: Sheet, job: TrainingJob, account: Account) -> None:
    whole = job.cluster.memory_bytes
    sheet.heading("Memory of one device", f"{gib(account.memory_bytes)} of {gib(whole)}, {percent(account.memory_bytes / whole)}")
    _draw_parts(sheet, account.memory, MEMORY_WORDS, whole, "memory")
    free = whole - account.memory_bytes
    if free > 0:
        sheet.table((Column(), Column(right=True), Column(right=True)), [[f"{'free':<15}", gib(free), percent(free / whole)]])


def _draw_time(sheet: Sheet, account: Account) -> None:
    sheet.heading("A step", seconds(account.step_s))
    ordered = dict(sorted(account.time.items(), key=lambda each: -each[1]))
    _draw_parts(sheet, ordered, TIME_WORDS, account.step_s, "time")


def _draw_layouts(sheet: Sheet, plan: Plan) -> None:
    if len(plan.layouts) > 1:
        sheet.heading("Layouts", count_words(plan))
        _draw_accounts(sheet, plan.layouts, plan.best)


def _draw_pareto(sheet: Sheet, plan: Plan) -> None:
    if len(plan.pareto) > 1:
        sheet.heading("Less memory for more time", "each is the fastest of those that need no more memory")
        _draw_accounts(sheet, plan.pareto, plan.best, has_why=False)


def _draw_accounts(sheet: Sheet, accounts: tuple[Account, ...], best: Account | None, *, has_why: bool = True) -> None:
    """A line for each; what costs it more stands below, as names of layouts take the width there is."""
    fastest = best.step_s if best is not None else min(each.step_s for each in accounts)
    titles = ("step", "", "MFU", "memory")
    rows: list[list[str | Text]] = []
    for each in accounts:
        more = each.step_s / fastest - 1
        loss = "best" if best is not None and each.layout == best.layout else f"{more * 100:+.1f}\u00a0%"
        rows.append([seconds(each.step_s), loss, percent(each.mfu), gib(each.memory_bytes), str(each.layout)])
    start = len(sheet.lines)
    sheet.table((*(Column(title=title, right=True) for title in titles), Column(title="layout")), rows)
    title, *lines = sheet.lines[start:]
    del sheet.lines[start:]
    sheet.lines.append(title)
    for line, each in zip(lines, accounts, strict=True):
        sheet.lines.append(line)
        if has_why and each.why and (best is None or each.layout != best.layout):
            sheet.prose(each.why, indent=WHY_INDENT, style="dim")


def _draw_budget(sheet: Sheet, job: TrainingJob, budget: Budget) -> None:
    price = job.cluster.price_per_hour
    sheet.heading(f"For {tokens_words(budget.tokens)}")
    sheet.entry("time", f"{days_words(budget.days)}, {plural(round(budget.num_steps), 'step')}, without restarts")
    sheet.entry("device-hours", number(budget.device_hours))
    if budget.cost is not None:
        sheet.entry("cost", f"{money(budget.cost)} at {price:g} a device-hour")
    if budget.energy_kwh is not None:
        sheet.entry("energy", f"{number(budget.energy_kwh / 1000)} MWh, at {job.cluster.power_w or 0:g} W a device")
    else:
        sheet.entry("energy", "not known: this device's power is not")


def _draw_variants(sheet: Sheet, title: str, aside: str, variants: tuple[Variant, ...], base: Account | None) -> None:
    if not variants:
        return
    sheet.heading(title, aside)
    rows: list[list[str | Text]] = []
    for each in variants:
        if each.best is None:
            rows.append([each.name, "-", "", "", "", each.note or "nothing fits or divides"])
            continue
        rate = "" if base is None else f"{each.best.tokens_per_s / base.tokens_per_s:.2f}x"
        one = each.best
        rows.append([each.name, seconds(one.step_s), rate, percent(one.mfu), gib(one.memory_bytes), str(one.layout)])
    names = ("", "step", "tokens/s", "MFU", "memory")
    sheet.table((*(Column(title=name, right=bool(name)) for name in names), Column(title="layout", shrinks=True)), rows)


def _draw_scaling(sheet: Sheet, plan: Plan) -> None:
    if not plan.scaling:
        return
    sheet.heading("Scaling", "the same global batch at each width; efficiency against the narrowest that fits")
    told = [each for each in plan.scaling if each.best is not None]
    base = told[0] if told else None
    rows: list[list[str | Text]] = []
    for each in plan.scaling:
        if each.best is None or base is None or base.best is None:
            rows.append([str(each.num_devices), "-", "", "", "", each.note or "nothing fits or divides"])
            continue
        one = each.best
        gain = one.tokens_per_s / base.best.tokens_per_s
        efficiency = gain / (each.num_devices / base.num_devices)
        bar = sheet.bar(efficiency, 8)
        rows.append(
            [str(each.num_devices), seconds(one.step_s), short_count(one.tokens_per_s), percent(efficiency), bar, str(one.layout)]
        )
    columns = [Column(title=name, right=True) for name in ("devices", "step", "tokens/s", "efficiency")]
    sheet.table((*columns, Column(), Column(title="layout", shrinks=True)), rows)


def _draw_answer(sheet: Sheet, title: str, one: Variant) -> None:
    sheet.heading(title)
    sheet.entry("answer", one.name)
    if one.best is not None:
        sheet.entry("layout", str(one.best.layout))
        sheet.entry("step", f"{seconds(one.best.step_s)}, {number(one.best.tokens_per_s)} tokens/s, {percent(one.best.mfu)} MFU")
        sheet.entry("memory", gib(one.best.memory_bytes))
    if one.note:
        sheet.prose(one.note, indent=2, style="dim")


def _draw_trust(sheet: Sheet, plan: Plan) -> None:
    sheet.heading("How this was judged")
    for line in (*trust_words(plan), *plan.assumptions):
        sheet.prose(line, indent=4, lead="  -")
