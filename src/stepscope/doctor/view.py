"""What this machine allows, as a table, and what to do about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.doctor.checks import MachineCheck
from stepscope.report.document.blocks import (
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    Section,
    Table,
    Tone,
    as_document,
)

TONES: dict[str, Tone] = {"yes": "good", "partly": "warn", "no": "bad", "not here": "quiet"}


@as_document
def doctor_document(checks: Sequence[MachineCheck]) -> Iterator[Block]:
    """The answer, each check, and what to do."""
    lacking = [check for check in checks if check.is_needed and check.state == "no"]
    text = "Runs can be recorded here."
    if lacking:
        text = f"Runs cannot be recorded here: {', '.join(check.name for check in lacking)}."
    rows = tuple(
        (check.name, Cell(check.state, TONES[check.state]), check.words) for check in checks
    )
    columns = (Column(), Column(), Column(fit="wrap"))
    yield Headline(text=text, command="stepscope doctor", tone="bad" if lacking else "good")
    yield Table(columns=columns, rows=rows)
    actions = tuple((check.name, check.action) for check in checks if check.action)
    if actions:
        yield Section(title="What to do", blocks=(Facts(actions),))
