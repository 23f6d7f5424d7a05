"""Scaling: the answer for the widest run, a line for each run, and where the step and the loss
lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from stepscope.core.scaling import RANK_SPREAD, SCALING_PARTS, UNPROFILED, WidthRun
from stepscope.report.diagnosis.view import PART_WORDS, UNSPLIT_COMMS
from stepscope.report.document.blocks import (
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    Prose,
    Section,
    Table,
    as_document,
    notes,
    numbers,
)
from stepscope.report.words import digits_after_point, in_column, ms, percent, plural, signed
from stepscope.scaling.rates import ANY_UNIT
from stepscope.scaling.shapes import Gain, Loss, Scaling

WORDS = PART_WORDS | {
    RANK_SPREAD: "median rank less the mean",
    UNPROFILED: "given step less recorded",
}
KIND_WORDS = {
    "weak": "each rank does the same work at every width",
    "strong": "all ranks together do the same work",
}
MAX_COLUMNS = 6
"""Runs side by side in a table of parts; what 80 columns hold."""
NEGLIGIBLE = 0.0005
"""Share of the longest step: a part that is less than this in every run has no line."""


@as_document
def scaling_document(scaling: Scaling) -> Iterator[Block]:
    yield Headline(
        command="stepscope diagnose --scaling",
        text=_verdict(scaling),
        about=(_kind_words(scaling),),
    )
    yield _runs_section(scaling)
    yield from _parts_sections(_shown(scaling))
    yield from _laws_sections(scaling)
    yield from notes(_all_notes(scaling))


def _kind_words(scaling: Scaling) -> str:
    *widths, widest = (str(run.width) for run in scaling.runs)
    runs = f"{len(scaling.runs)} runs, {', '.join(widths)} and {widest} ranks wide"
    if scaling.kind_source == "rates":
        return f"{runs}, by the work that they do in a second."
    if scaling.kind is None:
        return f"{runs}: whether it is weak or strong scaling is not known."
    said = "as asked for" if scaling.kind_source == "given" else "by their FLOPs"
    return f"{runs}: {scaling.kind} scaling, {said} ({KIND_WORDS[scaling.kind]})."


def _verdict(scaling: Scaling) -> str:
    """The widest run that could be compared, in a sentence."""
    compared = [
        (run, gain)
        for run, gain in zip(scaling.runs, scaling.gains, strict=True)
        if gain is not None
    ]
    if not compared:
        why = "the step times to compare were not measured"
        if scaling.kind is None:
            why = scaling.because
        hint = " --scaling-kind weak or --scaling-kind strong says which it is."
        if scaling.kind is not None:
            hint = ""
        return f"Step times alone, no efficiency: {why}.{hint}"
    run, gain = compared[-1]
    head = (
        f"{plural(run.width, 'rank')} do {gain.speedup:.2f}x the work of {scaling.runs[0].width} "
        "in the same time"
    )
    of_ideal = f"{head}, {percent(gain.efficiency)} of the ideal {gain.ideal_speedup:.3g}x."
    if gain.loss is None:
        return f"{of_ideal} {_widening_words(compared, scaling.runs[0])}".strip()
    return f"{of_ideal} {_loss_words(gain.loss, run)}"


def _widening_words(compared: Sequence[tuple[WidthRun, Gain]], base: WidthRun) -> str:
    """The widening that loses most: what it keeps of the efficiency before it."""
    steps = [(base.width, 1.0), *((run.width, gain.efficiency) for run, gain in compared)]
    kept = [
        (after[1] / before[1], before[0], after[0])
        for before, after in pairwise(steps)
        if before[1] > 0
    ]
    if len(kept) < 2:
        return ""
    share, narrow, wide = min(kept)
    return f"The most is lost from {narrow} to {wide} ranks, which keep {percent(share)} of it."


def _loss_words(loss: Loss, run: WidthRun) -> str:
    if loss.lost_ns <= 0:
        return "Nothing is lost."
    lost = (
        f"A step takes {ms(run.step.ns or 0)}, {ms(loss.lost_ns)} more than the ideal "
        f"{ms(loss.ideal_ns)}"
    )
    if loss.worst is None or loss.parts_ns is None:
        return f"{lost}; where they go was not measured."
    most = loss.parts_ns[loss.worst] or 0
    return f"{lost}; what lost most is {_part_words(loss.worst, loss.parts_ns)}, {ms(most)}."


def _part_words(part: str, parts: Mapping[str, int | None]) -> str:
    if part == "comms_transfer" and parts["comms_wait"] is None:
        return UNSPLIT_COMMS
    return WORDS[part]


def _runs_section(scaling: Scaling) -> Section:
    if scaling.kind_source == "rates":
        return _rates_section(scaling)
    columns = (
        *numbers("ranks", "step", "ideal", "speedup"),
        Column(title="efficiency"),
        Column(title="run", fit="shorten"),
    )
    pairs = zip(scaling.runs, scaling.gains, strict=True)
    rows = tuple(_row(run, gain, scaling.runs[0]) for run, gain in pairs)
    blocks: list[Block] = [Table(columns=columns, rows=rows)]
    counted = [str(run.width) for run in scaling.runs if run.width_source == "counted"]
    if counted:
        words = (
            f"Width {', '.join(counted)}: no world size was recorded; the ranks that were found."
        )
        blocks.append(Prose(words, "quiet"))
    return Section(title="Runs", blocks=tuple(blocks))


def _rates_section(scaling: Scaling) -> Section:
    stated = (run.rate_unit for run in scaling.runs if run.rate_unit != ANY_UNIT)
    unit = next(stated, ANY_UNIT)
    columns = (
        *numbers("ranks", unit, "ideal", "speedup"),
        Column(title="efficiency"),
        Column(title="width by"),
        Column(title="run", fit="shorten"),
    )
    base = scaling.runs[0]
    rows = tuple(
        (
            str(run.width),
            f"{run.rate_per_s or 0.0:,.4g}",
            f"{(base.rate_per_s or 0.0) * run.width / base.width:,.4g}",
            "-" if gain is None else f"{gain.speedup:.2f}x",
            "the base" if gain is None else percent(gain.efficiency),
            run.width_source,
            run.path,
        )
        for run, gain in zip(scaling.runs, scaling.gains, strict=True)
    )
    return Section(title="Runs", blocks=(Table(columns=columns, rows=rows),))


def _row(run: WidthRun, gain: Gain | None, base: WidthRun) -> tuple[str, ...]:
    step = "not measured" if run.step.ns is None else ms(run.step.ns)
    if gain is None:
        return (str(run.width), step, "-", "-", "-" if run is not base else "the base", run.path)
    sure = ""
    if gain.efficiency_low is not None and gain.efficiency_high is not None:
        sure = f" ({gain.efficiency_low * 100:.0f}-{gain.efficiency_high * 100:.0f})"
    return (
        str(run.width),
        step,
        "-" if gain.loss is None else ms(gain.loss.ideal_ns),
        f"{gain.speedup:.2f}x",
        f"{percent(gain.efficiency)}{sure}",
        run.path,
    )


Shown = Sequence[tuple[WidthRun, Gain | None]]


def _shown(scaling: Scaling) -> Shown:
    """The base and the widest runs, as many as stand side by side."""
    pairs = list(zip(scaling.runs, scaling.gains, strict=True))
    return pairs if len(pairs) <= MAX_COLUMNS else [pairs[0], *pairs[1 - MAX_COLUMNS :]]


def _parts_sections(shown: Shown) -> Iterator[Section]:
    """Where the steps go, and where what they lose is lost."""
    split = [
        (str(run.width), run.parts_ns, run.step.ns or 0)
        for run, _ in shown
        if run.parts_ns is not None
    ]
    if split:
        table = _table(split, in_column)
        yield Section(title="Where the step goes", aside="ms, the mean over ranks", blocks=(table,))
    lost = [
        (str(run.width), gain.loss.parts_ns, gain.loss.lost_ns)
        for run, gain in shown
        if gain is not None and gain.loss is not None and gain.loss.parts_ns is not None
    ]
    if lost:
        aside = "ms above the ideal step; the parts sum to the loss"
        yield Section(title="Where it is lost", aside=aside, blocks=(_table(lost, signed),))


Runs = Sequence[tuple[str, Mapping[str, int | None], int]]


def _table(runs: Runs, number: Callable[[float, int], str]) -> Table:
    """A column for each run, a line for each part that any has, and their sum."""
    longest = max(1, *(abs(total) for _, _, total in runs))
    # As many as the shortest column needs, and one up to a second, as a single run's parts have.
    shortest = min(abs(total) for _, _, total in runs)
    decimals = max(digits_after_point(shortest / 1e6), 1 if longest < 1e9 else 0)
    kept = [
        part
        for part in SCALING_PARTS
        if any(abs(parts[part] or 0) > NEGLIGIBLE * longest for _, parts, _ in runs)
    ]
    merged = "comms_wait" not in kept and any(parts["comms_wait"] is None for _, parts, _ in runs)
    rows: list[tuple[str | Cell, ...]] = []
    for part in kept:
        words = UNSPLIT_COMMS if part == "comms_transfer" and merged else WORDS[part]
        values = [parts[part] for _, parts, _ in runs]
        rows.append((words, *("-" if ns is None else number(ns / 1e6, decimals) for ns in values)))
    rest = [
        sum(parts[part] or 0 for part in SCALING_PARTS if part not in kept) for _, parts, _ in runs
    ]
    if any(rest):
        rows.append(("all else", *(number(ns / 1e6, decimals) for ns in rest)))
    totals = ("total", *(number(total / 1e6, decimals) for _, _, total in runs))
    rows.append(tuple(Cell(text, "strong") for text in totals))
    return Table(columns=(Column(), *numbers(*(title for title, _, _ in runs))), rows=tuple(rows))


def _laws_sections(scaling: Scaling) -> Iterator[Section]:
    shares = [
        (run, gain.karp_flatt)
        for run, gain in zip(scaling.runs, scaling.gains, strict=True)
        if gain is not None and gain.karp_flatt is not None
    ]
    if not shares:
        return
    base = scaling.runs[0].width
    listed = ", ".join(f"{_share_words(share)} at {run.width} ranks" for run, share in shares)
    facts = [("Karp-Flatt", f"{listed} (of a step at width {base})")]
    if scaling.amdahl is not None:
        fit = scaling.amdahl
        words = (
            f"{percent(fit.serial_fraction)}, fitted to {fit.num_widths} widths within "
            f"{percent(fit.worst)}"
        )
        facts.append(("Amdahl", f"{words} (of a step on one rank)"))
    aside = "of the work, that more ranks do not shorten"
    yield Section(title="Serial share", aside=aside, blocks=(Facts(tuple(facts)),))


def _share_words(share: float) -> str:
    """A step that grows with the width, or shrinks faster than it, is nothing that a serial share
    explains."""
    if share > 1:
        return "over 100\u00a0%"
    return percent(share) if share >= 0 else "under 0\u00a0%"


def _all_notes(scaling: Scaling) -> list[str]:
    """What holds for all, then what was said of single runs, with their widths."""
    widths: dict[str, list[str]] = {}
    for run in scaling.runs:
        for note in run.notes:
            widths.setdefault(note, []).append(str(run.width))
    single = [
        note if len(at) == len(scaling.runs) else f"{note} (width {', '.join(at)})"
        for note, at in widths.items()
    ]
    return [*scaling.notes, *single]
