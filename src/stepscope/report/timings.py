"""What the stages of a command cost, as a table."""

from __future__ import annotations

from typing import get_args

from stepscope.core.timings import Stage, Timings
from stepscope.report.document.blocks import Column, Document, Table
from stepscope.report.words import fixed


def timings_document(timings: Timings) -> Document:
    """A row for each stage that was gone through, and their sum."""
    stages = [(name, timings.stages[name]) for name in get_args(Stage) if name in timings.stages]
    rows = [(name, spent.cpu_s, spent.wall_s, spent.peak_bytes) for name, spent in stages]
    total = (
        "all",
        sum(spent.cpu_s for _, spent in stages),
        sum(spent.wall_s or 0.0 for _, spent in stages),
        max(spent.peak_bytes for _, spent in stages),
    )
    return (
        Table(
            columns=(
                Column(title="stage"),
                Column(title="CPU s", right=True),
                Column(title="wall s", right=True),
                Column(title="peak MB", right=True),
            ),
            rows=tuple(
                (
                    name,
                    fixed(cpu_s, 2),
                    "" if wall_s is None else fixed(wall_s, 2),
                    fixed(peak_bytes / 1e6, 0),
                )
                for name, cpu_s, wall_s, peak_bytes in (*rows, total)
            ),
        ),
    )
