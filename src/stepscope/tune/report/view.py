"""A search: the verdict, what to write, the trials with the best on top, and which knob matters."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from stepscope.report.document.blocks import (
    Block,
    Column,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    Tone,
    as_document,
    notes,
    numbers,
)
from stepscope.report.units import NBSP, percent, plural
from stepscope.tune.report.words import (
    aside_words,
    budget_words,
    check_words,
    gain_words,
    ordered,
    summary_words,
    time_words,
    value_words,
)
from stepscope.tune.shapes.tuning import PROVEN, REFUSED, Tuning

TONES: dict[str, Tone] = {PROVEN: "good", REFUSED: "bad"}
MAX_ROWS = 60


@as_document
def tuning_document(tuning: Tuning) -> Iterator[Block]:
    yield Headline(
        command="stepscope tune",
        text=summary_words(tuning),
        about=(f"tuned: {shlex.join(tuning.command)}",),
        tone=TONES.get(tuning.verdict, ""),
    )
    if tuning.winner is not None:
        title = "To write" if tuning.verdict == PROVEN else "What was tried for it"
        blocks = (Items(tuning.winner.words), Prose(check_words(tuning)))
        yield Section(title=title, blocks=blocks)
    yield _trials_section(tuning)
    if tuning.importance:
        shares = sorted(tuning.importance.items(), key=lambda pair: -pair[1])
        rows = tuple((name, percent(share)) for name, share in shares)
        table = Table(columns=(Column(title="knob"), *numbers("share")), rows=rows)
        aside = "share of the differences that each knob makes"
        yield Section(title="What matters", aside=aside, blocks=(table,))
    spent = [] if tuning.spent is None else [budget_words(tuning.spent)]
    yield from notes([*spent, *tuning.notes], aside="")


def _trials_section(tuning: Tuning) -> Section:
    trials = ordered(tuning)
    names = [knob.name for knob in tuning.knobs]
    columns = (
        *numbers("trial"),
        *(Column(title=name, right=True, fit="shorten") for name in names),
        *numbers(f"a {tuning.per}", "speed"),
        Column(fit="wrap"),
    )
    rows = [("0", *("" for _ in names), time_words(tuning.baseline), "1x", "as it was given")]
    for tried in trials[:MAX_ROWS]:
        values = [
            value_words(tried.settings[name]) if name in tried.settings else "" for name in names
        ]
        figures = (time_words(tried), gain_words(tuning, tried), aside_words(tried))
        rows.append((str(tried.number), *values, *figures))
    blocks: list[Block] = [Table(columns=columns, rows=tuple(rows))]
    if len(trials) > MAX_ROWS:
        num = plural(len(trials) - MAX_ROWS, "trial")
        blocks.append(Prose(f"and {num} more, in the JSON", "quiet"))
    of = "" if tuning.size is None else f" of {tuning.size:,} settings".replace(",", NBSP)
    ended = f", {tuning.ended}" if tuning.ended else ""
    aside = f"{plural(len(trials), 'trial')}{of} in {tuning.wall_s:.0f} s{ended}"
    return Section(title="Trials", aside=aside, blocks=tuple(blocks))
