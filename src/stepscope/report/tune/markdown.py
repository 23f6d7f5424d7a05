"""A search as Markdown, for a comment on a pull request."""

from __future__ import annotations

import shlex

from stepscope.core.tuning import PROVEN, Tuning
from stepscope.report.document.markdown import escape
from stepscope.report.tune.words import (
    aside_words,
    budget_words,
    check_words,
    gain_words,
    ordered,
    setting_words,
    summary_words,
    time_words,
)
from stepscope.report.units import NBSP, percent

MAX_ROWS = 30
MAX_NOTES = 12


def tuning_markdown(tuning: Tuning) -> str:
    """The comment."""
    blocks = [f"## stepscope tune: {escape(summary_words(tuning))}", f"Tuned: {escape(shlex.join(tuning.command))}"]
    if tuning.winner is not None:
        head = "To write" if tuning.verdict == PROVEN else "What was tried for it"
        blocks.append("\n".join([f"**{head}**", "", *(f"- {escape(words)}" for words in tuning.winner.words)]))
        blocks.append(escape(check_words(tuning)))
    blocks.append(_table(tuning))
    if tuning.importance:
        shares = sorted(tuning.importance.items(), key=lambda pair: -pair[1])
        blocks.append("**What matters:** " + ", ".join(f"{escape(name)} {percent(share)}" for name, share in shares))
    notes = [*([] if tuning.spent is None else [budget_words(tuning.spent)]), *tuning.notes]
    if notes:
        blocks.append("\n".join(f"- {escape(note)}" for note in notes[:MAX_NOTES]))
    return "\n\n".join(blocks).replace(NBSP, " ") + "\n"


def _table(tuning: Tuning) -> str:
    rows = [f"| trial | setting | a {tuning.per} | speed | |", "|---:|---|---:|---:|---|"]
    rows.append(f"| 0 | as it was given | {time_words(tuning.baseline)} | 1x | |")
    trials = ordered(tuning)
    for tried in trials[:MAX_ROWS]:
        setting, aside = escape(setting_words(tried.settings)), escape(aside_words(tried), 120)
        rows.append(f"| {tried.number} | {setting} | {time_words(tried)} | {gain_words(tuning, tried)} | {aside} |")
    if len(trials) > MAX_ROWS:
        rows.append(f"| | and {len(trials) - MAX_ROWS} more | | | |")
    return "\n".join(rows)
