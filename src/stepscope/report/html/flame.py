"""The host's stacks in the report: a flame graph, and the lines with most time of their own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from stepscope.report.flame import flame_of
from stepscope.report.words import clean, ms, shorten

MAX_LINES = 10
MAX_CHARACTERS = 100
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Address of a built-in's object: it differs from call to call and says nothing."""
LABEL = "Flame graph of the training thread; the table below has the lines with most time"


def flame_section(stacks: Sequence[tuple[tuple[str, ...], int]]) -> dict[str, Any] | None:
    """None where no stacks were recorded."""
    from markupsafe import Markup

    total = sum(own for _, own in stacks)
    if not total:
        return None
    safe: dict[str, str] = {}
    named = [
        (tuple(safe.setdefault(name, _short(name)) for name in stack), own) for stack, own in stacks
    ]
    lines: Counter[str] = Counter()
    for stack, own in named:
        lines[stack[-1]] += own
    return {
        # Every name in it was escaped where it was drawn.
        "svg": Markup(flame_of(named, LABEL)),  # noqa: S704
        "rows": [
            {"line": line, "ms": ms(own), "share": f"{own / total:.1%}"}
            for line, own in lines.most_common(MAX_LINES)
        ],
    }


def _short(name: str) -> str:
    return shorten(ADDRESS.sub("", clean(name)), MAX_CHARACTERS)
