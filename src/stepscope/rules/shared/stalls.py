"""Lines that asked for a save, a collection or an evaluation, as the capture saw them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from stepscope.analyses.host.source_locations import line_of
from stepscope.core.diagnosis import SourceLocation
from stepscope.core.run import Stalls
from stepscope.core.trace import Int64
from stepscope.rules.case import Case
from stepscope.rules.proposal import LEAST_SHARE


def marked_lines(case: Case, events: Int64, stalls: Stalls | None) -> tuple[SourceLocation, ...]:
    """From the names of marks (`torch.save at train.py(41): main`); else of what some steps
    held."""
    trace = case.context.trace
    spent: Counter[str] = Counter()
    for event in events.tolist():
        _, _, line = str(trace.names[trace.name[event]]).partition(" at ")
        spent[line] += int(trace.dur_ns[event])
    total = max(spent.total(), 1)
    lines = {line: ns / total for line, ns in spent.most_common() if line}
    return located(lines or ({} if stalls is None else stalls.lines))


def located(lines: Mapping[str, float]) -> tuple[SourceLocation, ...]:
    return tuple(
        SourceLocation(line=line_of(line), module=None, share=share)
        for line, share in lines.items()
        if share >= LEAST_SHARE
    )


def rounded_up(steps: float) -> int:
    """The next number with one digit that counts: 137 becomes 200."""
    whole = max(math.ceil(steps), 1)
    unit = int("1".ljust(len(str(whole)), "0"))
    return math.ceil(whole / unit) * unit
