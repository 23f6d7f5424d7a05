"""A health check: the answer, and a line for each question."""

from __future__ import annotations

from stepscope.live.shapes.triage import BAD, OK, Health
from stepscope.report.document.blocks import Document, Facts, Headline

MARKS = {OK: "ok", BAD: "BAD"}
ANSWERS = {OK: "Healthy.", BAD: "Not healthy."}


def health_document(answer: Health) -> Document:
    rows = tuple(
        (f"{MARKS.get(check.state, '?'):<3}  {check.name}", check.words) for check in answer.checks
    )
    return (
        Headline(command="stepscope health", text=ANSWERS.get(answer.state, "Could not tell.")),
        Facts(rows),
    )
