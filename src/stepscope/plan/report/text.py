"""A plan: the answer in a sentence, where memory and time go, what else was tried and why it
loses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stepscope.plan.contract.plan import (
    Account,
    Budget,
    Failures,
    FrameworkRow,
    RecordedMemory,
    RecordedMemoryRow,
    Variant,
)
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout
from stepscope.plan.layout_words import name_parts
from stepscope.plan.report.account import MEMORY_WORDS, TIME_WORDS, Plan
from stepscope.plan.report.words import (
    GIB,
    asked_words,
    count_words,
    days_words,
    gib,
    hours_words,
    job_words,
    memory_range_words,
    money,
    range_words,
    seconds,
    short_count,
    tokens_words,
    trust_words,
    verdict_words,
)
from stepscope.report.document.blocks import (
    Bar,
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    as_document,
    numbers,
)
from stepscope.report.words import NBSP, fixed, number, percent, plural

FORMULA = 80
"""Cells of what a part is made of."""
NEGLIGIBLE = 0.001
"""Share of the whole: a part below it has no line."""


NO_LAYOUT = "nothing fits or divides"


@as_document
def plan_document(plan: Plan, measured: RecordedMemory | None = None) -> Iterator[Block]:
    """The plan, and what a recording of it shows."""
    yield Headline(
        command="stepscope plan", text=verdict_words(plan), about=(job_words(plan.training),)
    )
    if plan.explained is not None:
        yield Prose(asked_words(plan.explained), "strong")
    if plan.advice:
        yield Items(plan.advice)
    named = plan.explained or plan.best
    if named is not None:
        yield name_section(named.layout)
    if plan.frameworks:
        yield frameworks_section(plan.frameworks)
    if plan.zero_stages:
        yield zero_section(plan.zero_stages)
    if plan.explained is not None:
        yield from explained_sections(plan.training, plan.explained)
    elif plan.best is not None:
        yield _memory_section(plan.training, plan.best)
        yield _time_section(plan.best)
    if measured is not None:
        yield measured_memory_section(measured)
    if plan.explained is None:
        yield from _layouts_sections(plan)
    if plan.budget is not None:
        yield budget_section(plan.training, plan.budget)
    if plan.failures is not None:
        yield failures_section(plan.training, plan.failures)
    if plan.what_ifs:
        yield what_ifs_section(plan.what_ifs, plan.best)
    if plan.scaling:
        yield scaling_section(plan.scaling)
    yield from answer_sections(plan)
    yield trust_section(plan)


def name_section(layout: Layout) -> Section:
    return Section(title="The layout's name", blocks=(Facts(tuple(name_parts(layout))),))


def explained_sections(job: TrainingJob, account: Account) -> Iterator[Section]:
    from stepscope.plan.report.explain import explained

    columns = (Column(), *numbers("", ""), Column(fit="wrap", most=FORMULA))
    for title, aside, parts in explained(job, account):
        rows = tuple((part.word, part.value, part.share, part.formula) for part in parts)
        yield Section(title=title, aside=aside, blocks=(Table(columns=columns, rows=rows),))


def _parts_table(
    parts: Mapping[str, float],
    words: Mapping[str, str],
    whole: float,
    unit: Callable[[float], str],
    free: float = 0.0,
) -> Table:
    rows: list[tuple[str | Bar, ...]] = [
        (words[name], unit(value), percent(value / whole), Bar(value / whole))
        for name, value in parts.items()
        if value >= NEGLIGIBLE * whole
    ]
    if free > 0:
        rows.append(("free", unit(free), percent(free / whole), ""))
    return Table(columns=(Column(), *numbers("", ""), Column()), rows=tuple(rows))


def _memory_section(job: TrainingJob, account: Account) -> Section:
    held, whole = account.memory_bytes, job.cluster.memory_bytes
    aside = f"{gib(held)} of {gib(whole)}, {percent(held / whole)}"
    table = _parts_table(account.memory, MEMORY_WORDS, whole, gib, free=whole - held)
    return Section(title="Memory of one device", aside=aside, blocks=(table,))


def _time_section(account: Account) -> Section:
    ordered = dict(sorted(account.time.items(), key=lambda part: -part[1]))
    table = _parts_table(ordered, TIME_WORDS, account.step_s, seconds)
    return Section(title="A step", aside=seconds(account.step_s), blocks=(table,))


def _layouts_sections(plan: Plan) -> Iterator[Section]:
    if len(plan.layouts) > 1:
        table = _layouts_table(plan.layouts, plan.best)
        yield Section(title="Layouts", aside=count_words(plan), blocks=(table,))
    if len(plan.pareto) > 1:
        table = _layouts_table(plan.pareto, plan.best, has_why=False)
        aside = "each is the fastest of those that need no more memory"
        yield Section(title="Less memory for more time", aside=aside, blocks=(table,))


def _layouts_table(
    accounts: tuple[Account, ...], best: Account | None, *, has_why: bool = True
) -> Table:
    """A line for each, with what costs it more."""
    fastest = best.step_s if best is not None else min(account.step_s for account in accounts)
    rows = []
    for account in accounts:
        is_best = best is not None and account.layout == best.layout
        # Of variants that take as long the plainest is the best: another may be a hair faster.
        slower = max(account.step_s / fastest - 1, 0.0)
        loss = "best" if is_best else f"{slower * 100:+.1f}{NBSP}%"
        why = (account.why or "") if has_why and not is_best else ""
        figures = (seconds(account.step_s), loss, percent(account.mfu), gib(account.memory_bytes))
        rows.append((*figures, Cell(str(account.layout), note=why)))
    return Table(
        columns=(*numbers("step", "", "MFU", "memory"), Column(title="layout")), rows=tuple(rows)
    )


def frameworks_section(rows: tuple[FrameworkRow, ...]) -> Section:
    """The best of each, the fastest first, and what it takes to use it."""
    ordered = sorted(rows, key=lambda row: row.best.step_s if row.best else float("inf"))
    answered = next((row.best for row in rows if row.is_answered and row.best), None)
    lines: list[tuple[str | Cell, ...]] = []
    for row in ordered:
        best = row.best
        if best is None:
            lines.append((row.name, "", "", "", Cell("none", note=row.reason or NO_LAYOUT)))
            continue
        gain = "shown" if row.is_answered else ""
        if answered is not None and not row.is_answered:
            gain = f"{(best.step_s / answered.step_s - 1) * 100:+.1f}{NBSP}%"
        figures = (seconds(best.step_s), gain, gib(best.memory_bytes))
        lines.append((row.name, *figures, Cell(str(best.layout), note=row.adoption)))
    columns = (Column(), *numbers("step", "", "memory"), Column(title="layout"))
    return Section(
        title="Frameworks",
        aside="the best layout of each that --emit writes, and what it takes to use it",
        blocks=(Table(columns=columns, rows=tuple(lines)),),
    )


def zero_section(stages: tuple[Variant, ...]) -> Section:
    """What each ZeRO stage keeps on a device, and what a step takes."""
    rows: list[tuple[str, ...]] = []
    for stage, variant in enumerate(stages):
        best = variant.best
        if best is None:
            rows.append((str(stage), "", "", "", "", "", "", variant.note or NO_LAYOUT))
            continue
        states = [best.memory[name] for name in ("weights", "gradients", "optimizer")]
        working = best.memory["activations"] + best.memory["logits"]
        rest = best.memory_bytes - sum(states) - working
        sizes = [fixed(size / GIB, 1) for size in (*states, working, rest, best.memory_bytes)]
        note = seconds(best.step_s) + ("" if best.fits else ", too large")
        rows.append((str(stage), *sizes, note))
    heads = ("", "weights", "gradients", "optimizer", "activations", "rest", "all")
    shown = next((each.best for each in stages if each.best is not None), None)
    plain = "" if shown is None else f" {str(shown.layout).replace('-z0', '')}"
    return Section(
        title="ZeRO stages",
        aside=f"GiB of a device, and a step; {stages[0].name.split(',')[0]},{plain}",
        blocks=(Table(columns=(*numbers(*heads), Column(title="step")), rows=tuple(rows)),),
    )


def budget_section(job: TrainingJob, budget: Budget) -> Section:
    days = f"{days_words(budget.days)}, {plural(round(budget.num_steps), 'step')}, without restarts"
    facts = [("time", days), ("device-hours", number(budget.device_hours))]
    if budget.cost is not None:
        facts.append(
            ("cost", f"{money(budget.cost)} at {job.cluster.price_per_hour:g} a device-hour")
        )
    energy = "not known: this device's power is not"
    if budget.energy_kwh is not None:
        energy = (
            f"{number(budget.energy_kwh / 1000)} MWh, at {job.cluster.power_w or 0:g} W a device"
        )
    facts.append(("energy", energy))
    return Section(title=f"For {tokens_words(budget.tokens)}", blocks=(Facts(tuple(facts)),))


def failures_section(job: TrainingJob, told: Failures) -> Section:
    """How often to write a checkpoint, and what of the time is work that stays."""
    steps, num = plural(told.every_steps, "step"), fixed(job.cluster.num_devices, 0)
    mean = f"on {num} devices, each after {fixed(told.mtbf_hours, 0)} hours in the mean"
    pause = f"it takes {seconds(told.checkpoint_s)}, a restart {seconds(told.restart_s)}"
    facts = [
        ("a failure", f"every {hours_words(told.job_mtbf_hours)} {mean}"),
        ("checkpoint", f"every {hours_words(told.every_s / 3600)} ({steps}); {pause}"),
        ("goodput", f"{percent(told.goodput)} of the time is work that stays"),
    ]
    if told.days is not None and told.num_failures is not None:
        count = number(told.num_failures)
        facts.append(("time", f"{days_words(told.days)} with {count} failures"))
    return Section(title="With failures", blocks=(Facts(tuple(facts)),))


def what_ifs_section(variants: tuple[Variant, ...], base: Account | None) -> Section:
    rows = []
    for variant in variants:
        best = variant.best
        if best is None:
            rows.append((variant.name, "-", "", "", "", variant.note or NO_LAYOUT))
            continue
        rate = "" if base is None else f"{best.tokens_per_s / base.tokens_per_s:.2f}x"
        figures = (seconds(best.step_s), rate, percent(best.mfu), gib(best.memory_bytes))
        rows.append((variant.name, *figures, str(best.layout)))
    layout = Column(title="layout", fit="shorten")
    columns = (Column(), *numbers("step", "tokens/s", "MFU", "memory"), layout)
    notes = [f"{each.name}: {each.note}" for each in variants if each.best and each.note]
    return Section(
        title="What if",
        aside="the best layout of each",
        blocks=(
            Table(columns=columns, rows=tuple(rows)),
            *((Items(tuple(notes)),) if notes else ()),
        ),
    )


def scaling_section(variants: tuple[Variant, ...]) -> Section:
    base = next(((each.num_devices, each.best) for each in variants if each.best is not None), None)
    rows: list[tuple[str | Bar, ...]] = []
    for variant in variants:
        best = variant.best
        if best is None or base is None:
            rows.append((str(variant.num_devices), "-", "", "", "", variant.note or NO_LAYOUT))
            continue
        num, narrowest = base
        efficiency = best.tokens_per_s / narrowest.tokens_per_s / (variant.num_devices / num)
        figures = (seconds(best.step_s), short_count(best.tokens_per_s), percent(efficiency))
        rows.append((str(variant.num_devices), *figures, Bar(efficiency), str(best.layout)))
    layout = Column(title="layout", fit="shorten")
    columns = (*numbers("devices", "step", "tokens/s", "efficiency"), Column(most=8), layout)
    aside = "the same global batch at each width; efficiency against the narrowest that fits"
    return Section(title="Scaling", aside=aside, blocks=(Table(columns=columns, rows=tuple(rows)),))


def answer_sections(plan: Plan) -> Iterator[Section]:
    answers = {
        "Largest model that fits": plan.largest,
        "Smallest cluster that holds it": plan.smallest,
    }
    for title, answer in answers.items():
        if answer is None:
            continue
        facts, best = [("answer", answer.name)], answer.best
        if best is not None:
            step = (
                f"{seconds(best.step_s)}{range_words(best)}, {number(best.tokens_per_s)} tokens/s, "
                f"{percent(best.mfu)} MFU"
            )
            facts += [
                ("layout", str(best.layout)),
                ("step", step),
                ("memory", f"{gib(best.memory_bytes)}{memory_range_words(best)}"),
            ]
        note = (Prose(answer.note, "quiet"),) if answer.note else ()
        yield Section(title=title, blocks=(Facts(tuple(facts)), *note))


def trust_section(plan: Plan) -> Section:
    return Section(
        title="How this was judged", blocks=(Items((*trust_words(plan), *plan.assumptions)),)
    )


PART_WORDS = {
    "activations": "activations, logits",
    "others": "others",
    "peak": "all tensors, peak",
    "reserved": "reserved",
}
"""What is not here is called as it is."""
UNKNOWN = "-"


def measured_memory_section(measured: RecordedMemory) -> Section:
    columns = (Column(), *numbers("planned", "recorded", "at the peak", "planned/recorded"))
    rows = tuple(
        (
            PART_WORDS.get(row.part, row.part),
            *_sizes(row),
            (UNKNOWN if row.ratio is None else f"{row.ratio:.2f}x"),
        )
        for row in measured.rows
    )
    blocks: list[Block] = [Table(columns=columns, rows=rows)]
    if measured.notes:
        blocks.append(Items(measured.notes))
    files = ", ".join(measured.recordings)
    return Section(
        title="Compared with the recording",
        aside=f"{measured.layout or 'nothing planned, as no layout fits'}; {files}",
        blocks=tuple(blocks),
    )


def _sizes(row: RecordedMemoryRow) -> tuple[str, str, str]:
    planned, most, at_peak = (
        UNKNOWN if size is None else gib(size)
        for size in (row.planned_bytes, row.most_bytes, row.at_peak_bytes)
    )
    return planned, most, at_peak
