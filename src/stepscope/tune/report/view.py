"""A search: the verdict, what to write, the trials with the best on top, and which knob matters."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from stepscope.core.experiments.trials import Value
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
from stepscope.report.words import NBSP, capital, number, percent, plural, short_time
from stepscope.tune.shapes.tuning import (
    AGAIN,
    CACHE,
    DIAGNOSIS,
    MEASURED,
    NOT_MEASURED,
    NOT_PROVEN,
    NOTHING_FASTER,
    PROVEN,
    REFUSED,
    Spent,
    Tried,
    Tuning,
)

HEADS = {
    PROVEN: "Proven",
    NOT_PROVEN: "Not proven",
    NOTHING_FASTER: "Nothing faster",
    REFUSED: "Refused",
    NOT_MEASURED: "Nothing measured",
}
ORIGINS = {DIAGNOSIS: "from the diagnosis", CACHE: "from the cache", AGAIN: "a second look"}


def value_words(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def setting_words(settings: Mapping[str, Value]) -> str:
    """`num_workers=4 compile_mode=off`."""
    return (
        " ".join(f"{name}={value_words(value)}" for name, value in settings.items())
        or "as it was given"
    )


def summary_words(tuning: Tuning) -> str:
    """The verdict in a sentence or two."""
    head, winner = HEADS[tuning.verdict], tuning.winner
    if winner is None:
        return f"{head}: {tuning.because}. The command stays as it was given."
    setting = setting_words(winner.settings)
    if (
        tuning.verdict == PROVEN
        and tuning.verified is not None
        and tuning.verified.speedup is not None
    ):
        gain = tuning.verified.speedup
        return (
            f"{head}: {setting} is {gain.value:.2f}x as fast as the command as it was given "
            f"({gain.lowest:.2f}-{gain.highest:.2f})."
        )
    seen = ""
    if winner.speedup is not None:
        seen = f" looked {winner.speedup:.2f}x as fast in its trial, but that is not proven"
    if tuning.verdict == REFUSED:
        return (
            f"{head}: {setting} changes what is computed. {capital(tuning.because)}. The command "
            "stays as it was given."
        )
    return f"{head}: {setting}{seen}. {capital(tuning.because)}. The command stays as it was given."


def check_words(tuning: Tuning) -> str:
    """What is known of the numbers that the winner computes."""
    if tuning.check is None:
        return "What it computes was not compared with the baseline."
    return f"What it computes against the baseline: {tuning.check.verdict}; {tuning.check.because}."


def budget_words(spent: Spent) -> str:
    """How the time that was given was divided, and what it went to."""
    rounds = "one round" if spent.num_rounds == 1 else f"{spent.num_rounds} rounds"
    kept = "nothing was kept for a proof"
    if spent.num_rounds:
        kept = (
            f"{spent.kept_s:.0f} s were kept for check and proof ({rounds}, a run takes about "
            f"{spent.run_s:.1f} s)"
        )
    proof = f", check and proof {spent.proof_s:.0f} s" if spent.proof_s >= 1 else ""
    return (
        f"of the budget of {spent.total_s:.0f} s, {kept}; the search took {spent.search_s:.0f} "
        f"s{proof}"
    )


def ordered(tuning: Tuning) -> list[Tried]:
    """The trials as a table has them: measured ones first, the fastest on top; then the rest in
    order."""
    measured = [
        tried for tried in tuning.trials if tried.state == MEASURED and tried.ms is not None
    ]
    rest = [tried for tried in tuning.trials if tried not in measured]
    return sorted(measured, key=lambda tried: tried.ms or 0.0) + rest


def time_words(tried: Tried) -> str:
    return "-" if tried.ms is None else short_time(tried.ms * 1e6)


def rate_words(tried: Tried) -> str:
    """Rate of what is minimised, in a second."""
    return "-" if not tried.ms else number(1e3 / tried.ms)


def gain_words(tuning: Tuning, tried: Tried) -> str:
    if tried.ms is None or tuning.baseline.ms is None:
        return "-"
    return f"{tuning.baseline.ms / tried.ms:.2f}x"


def aside_words(tried: Tried) -> str:
    """Where it came from, and why it does not count."""
    state = ""
    if tried.state != MEASURED:
        state = f"{tried.state}: {tried.why}" if tried.why else tried.state
    idle = f"{', '.join(tried.not_taken)} never took hold" if tried.not_taken else ""
    return "; ".join(word for word in (state, ORIGINS.get(tried.origin, ""), idle) if word)


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
        *numbers(f"a {tuning.per}", f"{tuning.per}s/s", "speed"),
        Column(fit="wrap"),
    )
    base = (time_words(tuning.baseline), rate_words(tuning.baseline), "1x", "as it was given")
    rows = [("0", *("" for _ in names), *base)]
    for tried in trials[:MAX_ROWS]:
        values = [
            value_words(tried.settings[name]) if name in tried.settings else "" for name in names
        ]
        figures = (time_words(tried), rate_words(tried), gain_words(tuning, tried))
        rows.append((str(tried.number), *values, *figures, aside_words(tried)))
    blocks: list[Block] = [Table(columns=columns, rows=tuple(rows))]
    if len(trials) > MAX_ROWS:
        num = plural(len(trials) - MAX_ROWS, "trial")
        blocks.append(Prose(f"and {num} more, in the JSON", "quiet"))
    of = "" if tuning.size is None else f" of {tuning.size:,} settings".replace(",", NBSP)
    ended = f", {tuning.ended}" if tuning.ended else ""
    aside = f"{plural(len(trials), 'trial')}{of} in {tuning.wall_s:.0f} s{ended}"
    return Section(title="Trials", aside=aside, blocks=tuple(blocks))
