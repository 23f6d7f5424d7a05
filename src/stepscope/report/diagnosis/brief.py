"""A diagnosis in under a kilobyte: the verdict and three findings, for a chat, a commit message or
an agent."""

from __future__ import annotations

from stepscope.core.diagnosis import FIXES, Diagnosis, Finding, unjudged_fixes
from stepscope.core.numbers import gain_words
from stepscope.report.diagnosis.out_of_memory import by_detail, failure_words
from stepscope.report.diagnosis.view import all_notes, limit_words, source_words
from stepscope.report.words import NBSP, clean, ms, plural

MAX_BYTES = 1000
MAX_FINDINGS = 3
MAX_VERDICT = 240
MAX_CODE = 40
MAX_LINE = 60
"""Bytes, of what a recording may make long."""


def brief(diagnosis: Diagnosis) -> str:
    """Lines of plain text, at most MAX_BYTES of UTF-8."""
    verdict, step = diagnosis.verdict, diagnosis.step
    head = [_short(verdict.summary.strip() or limit_words(verdict), MAX_VERDICT)]
    if step.ms is not None:
        head.append(f"step {ms(step.ms * 1e6)}, {source_words(diagnosis)}")
    for report in by_detail(diagnosis.facts.out_of_memory)[:1]:
        head.insert(0, _short(f"Out of memory: {failure_words(report)}", MAX_VERDICT))
    shown = diagnosis.findings[:MAX_FINDINGS]
    begins = [_begin(number, finding) for number, finding in enumerate(shown, start=1)]
    rest = _rest(diagnosis, len(diagnosis.findings) - len(shown))
    # What the actions may take: they are cut, and nothing else is.
    taken = sum(len(line.encode()) + 1 for line in (*head, *begins, *rest))
    room = (MAX_BYTES - taken) // max(len(shown), 1)
    actions = [_short(finding.action, room) for finding in shown]
    lines = [*head, *(begin + action for begin, action in zip(begins, actions, strict=True)), *rest]
    return "\n".join(lines).replace(NBSP, " ") + "\n"


def _begin(number: int, finding: Finding) -> str:
    gain = gain_words(finding.predicted_speedup, finding.predicted_low, finding.predicted_high)
    where = ""
    if finding.source_locations:
        location = finding.source_locations[0]
        where = f" at {_short(location.line or location.module or '', MAX_LINE)}"
    another = " (changes the training)" if finding.changes_training else ""
    return f"{number}. {_short(finding.code, MAX_CODE)} {gain}{another}{where}: "


def _rest(diagnosis: Diagnosis, num_more: int) -> list[str]:
    """What is not among the lines above."""
    words = [f"{plural(num_more, 'finding')} more"] if num_more > 0 else []
    unjudged = unjudged_fixes(diagnosis.abstentions)
    if not diagnosis.findings and unjudged is not None:
        words.append(f"{FIXES} is not known: {unjudged.reason}: {unjudged.needs}")
    elif not diagnosis.findings and diagnosis.replay is not None:
        words.append("no fault we know would give 2 % or more")
    num_notes = len(all_notes(diagnosis))
    if num_notes:
        words.append(f"{plural(num_notes, 'note')} on what could not be judged")
    return ["; ".join(words)] if words else []


def _short(text: str, most_bytes: int) -> str:
    """Shorten to one line, cut at a word."""
    words = " ".join(clean(text).split())
    data = words.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return words
    return f"{data[: most_bytes - 3].decode('utf-8', 'ignore').rsplit(' ', 1)[0]}..."
