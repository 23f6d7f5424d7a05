"""What verify proved, as Markdown, for a comment on a pull request."""

from __future__ import annotations

from stepscope.core.experiment import BASELINE, CANDIDATE, Verified
from stepscope.core.trials import Change
from stepscope.report.document.markdown import escape
from stepscope.report.units import NBSP, percent, short_time
from stepscope.report.verify.view import change_words, loss_words, prediction_words, summary_words

MAX_NOTES = 12


def verified_markdown(verified: Verified) -> str:
    """The comment."""
    blocks = [f"## stepscope verify: {escape(summary_words(verified))}"]
    if verified.speedup is not None:
        blocks.append(_table(verified))
    if (loss := loss_words(verified)) is not None:
        blocks.append(f"**Loss:** {escape(loss)}")
    if verified.check is not None:
        blocks.append(f"**What was computed:** {escape(f'{verified.check.verdict}: {verified.check.because}')}")
    if verified.prediction is not None:
        blocks.append(f"**Predicted:** {escape(prediction_words(verified.prediction, verified.speedup))}")
    if verified.notes:
        blocks.append("\n".join(f"- {escape(note)}" for note in verified.notes[:MAX_NOTES]))
    return "\n\n".join(blocks).replace(NBSP, " ") + "\n"


def _table(verified: Verified) -> str:
    unit = "sample" if verified.per_sample else "step"
    rows = [f"| side | command | change | runs | a {unit} | runs differ by |", "|---|---|---|---:|---:|---:|"]
    for side, summary in ((BASELINE, verified.baseline), (CANDIDATE, verified.candidate)):
        step = "not measured" if summary.step_ns is None else short_time(summary.step_ns)
        spread = "-" if summary.run_spread is None else percent(summary.run_spread)
        change = escape(change_words(verified.changes.get(side, Change()))) or "-"
        command = escape(verified.commands.get(side, "")) or "-"
        rows.append(f"| {side} | {command} | {change} | {summary.num_runs} | {step} | {spread} |")
    return "\n".join(rows)
