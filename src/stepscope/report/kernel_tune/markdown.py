"""A kernel's tuning as markdown, for a pull request or a page."""

from __future__ import annotations

from stepscope.core.kernel_tuning import FAILED, WRONG, KernelTuning
from stepscope.report.kernel_tune.words import fault_words, head_words, how_words, order, row_words, settings_words, verdict_words
from stepscope.report.names import clean
from stepscope.report.units import NBSP


def kernel_tuning_markdown(found: KernelTuning) -> str:
    lines = [f"### {_safe(found.what)}", "", _safe(head_words(found)), _safe(how_words(found)), ""]
    lines += [f"- **{_safe(verdict_words(found, result))}**" for result in found.cases]
    for result in found.cases:
        rows = order(result)
        if not rows:
            continue
        lines += ["", f"| {_safe(result.case.words)} | time | spread | speedup | of floor |", "|---|---:|---:|---:|---:|"]
        for at in rows:
            time, spread, speedup, floor, name = row_words(found, result, at)
            lines.append(f"| {' | '.join(_safe(cell) for cell in (name, time, spread, speedup, floor))} |")
    faults = [one for one in found.tryings if one.outcome in (WRONG, FAILED)]
    if faults:
        lines += ["", "| not timed | outcome | why |", "|---|---|---|"]
        lines += [f"| {_safe(settings_words(one))} | {one.outcome} | {_safe(fault_words(one))} |" for one in faults]
    if found.notes:
        lines += ["", *(f"- {_safe(note)}" for note in found.notes)]
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """Nothing in it that markdown or a page obeys."""
    out = clean(text).replace(NBSP, " ")
    for char in "\\`|*[]<>":
        out = out.replace(char, f"&#{ord(char)};")
    return out
