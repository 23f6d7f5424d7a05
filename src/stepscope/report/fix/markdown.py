"""What became of a run's findings, as Markdown, for a comment on a pull request."""

from __future__ import annotations

from stepscope.core.fixed import BY_HAND, KEPT, Fixed
from stepscope.report.document.markdown import escape
from stepscope.report.fix.view import gave_words, head_words, knob_words, predicted_words
from stepscope.report.units import NBSP


def fixed_markdown(fixed: Fixed) -> str:
    """The comment."""
    blocks = [f"## stepscope fix: {escape(head_words(fixed))}"]
    if fixed.attempts:
        rows = ["| finding | predicted | gave | outcome | set from outside |", "|---|---:|---:|---|---|"]
        rows += [
            f"| {escape(one.code)} | {predicted_words(one)} | {gave_words(one)} | {one.outcome} | {escape(knob_words(one))} |"
            for one in fixed.attempts
        ]
        blocks.append("\n".join(rows))
    for outcome, title in ((KEPT, "To make it stay"), (BY_HAND, "By hand")):
        chosen = [one for one in fixed.attempts if one.outcome == outcome]
        if chosen:
            blocks.append("\n".join([f"**{title}**", "", *(f"- {escape(one.code)}: {escape(one.action)}" for one in chosen)]))
    if fixed.notes:
        blocks.append("\n".join(f"- {escape(note)}" for note in fixed.notes))
    return "\n\n".join(blocks).replace(NBSP, " ") + "\n"
