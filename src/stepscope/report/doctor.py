"""What this machine allows, as a table, and what to do about the rest."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.readers.system.this_machine import MachineCheck
from stepscope.report.document.blocks import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Headline,
    Section,
    Table,
    Tone,
)

TONES: dict[str, Tone] = {"yes": "good", "partly": "warn", "no": "bad", "not here": "quiet"}


def doctor_document(checks: Sequence[MachineCheck]) -> Document:
    """The answer, each check, and what to do."""
    lacking = [check for check in checks if check.is_needed and check.state == "no"]
    text = "Runs can be recorded here."
    if lacking:
        text = f"Runs cannot be recorded here: {', '.join(check.name for check in lacking)}."
    rows = tuple(
        (check.name, Cell(check.state, TONES[check.state]), check.words) for check in checks
    )
    columns = (Column(), Column(), Column(fit="wrap"))
    blocks: list[Block] = [
        Headline(text=text, command="stepscope doctor", tone="bad" if lacking else "good"),
        Table(columns=columns, rows=rows),
    ]
    actions = tuple((check.name, check.action) for check in checks if check.action)
    if actions:
        blocks.append(Section(title="What to do", blocks=(Facts(actions),)))
    return tuple(blocks)
