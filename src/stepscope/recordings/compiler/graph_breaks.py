"""graph-breaks: what torch.compile's own logs show."""

from __future__ import annotations

import re

from msgspec import structs

from stepscope.api import Advice, Auxiliary
from stepscope.core.numbers import times
from stepscope.core.recordings.compiler import NO_REASON, Break, BreakCount

CODE = "graph-breaks"
BOUND = "host"
FIXES = (
    (
        re.compile(r"Tensor\.item\b|TensorVariable\(\) item\b|\.item\(\)|\.tolist\b|\.numpy\(\)"),
        "keep the value on the device (torch.where instead of a branch on it)",
    ),
    (
        re.compile(r"[Dd]ata-dependent branch|generic_jump"),
        "compute both sides and choose with torch.where, or use torch.cond",
    ),
    (re.compile(r"\bprint\b|logging|Logger"), "print and log outside of compiled code"),
    (
        re.compile(r"graph_break\(\)"),
        "somebody put this break there: take it out if its reason is gone",
    ),
    (
        re.compile(r"torch\.compiler\.disable|_dynamo\.disable"),
        "it is excluded from compiling on purpose: call it before or after",
    ),
)
"""What the reason speaks of, and what to do about it."""
MAX_ADVICE = 4
"""Places of breaks that are spoken of one by one; the recording lists all."""


def advise(auxiliary: Auxiliary) -> tuple[Advice, ...]:
    """One for each place where TorchDynamo could not go on, the most frequent first."""
    break_counts = () if auxiliary.compiler is None else auxiliary.compiler.break_counts()
    shown = break_counts[:MAX_ADVICE]
    more = break_counts[MAX_ADVICE:]
    advice = [_advice(break_count) for break_count in shown]
    if more:
        names = ", ".join(
            dict.fromkeys(
                break_count.graph_break.location or break_count.graph_break.reason
                for break_count in more[:8]
            )
        )
        rest = ", ..." if len(more) > 8 else ""
        line = f"graph breaks at {len(more)} more places: {names}{rest}"
        advice[-1] = structs.replace(advice[-1], evidence=(*advice[-1].evidence, line))
    return tuple(advice)


def _advice(break_count: BreakCount) -> Advice:
    graph_break = break_count.graph_break
    code = f" ({graph_break.code})" if graph_break.code else ""
    where = f"at {graph_break.location}"
    if not graph_break.location:
        where = (
            f"over {graph_break.reason} (the line was not recorded; TORCH_LOGS=graph_breaks does)"
        )
    again = times(break_count.count)
    called = f", called from {graph_break.called_from}" if graph_break.called_from else ""
    why = (
        f"{graph_break.reason}: {graph_break.explanation}"
        if graph_break.explanation
        else graph_break.reason
    )
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"torch.compile broke off {where}.",
        action=_fix(graph_break),
        evidence=(
            f"graph break {where}{code}{called}; {again} while compiling",
            f"{graph_break.location or 'graph break'}: {why}",
        ),
    )


def _fix(graph_break: Break) -> str:
    """Our own advice for the common ones, then TorchDynamo's first hint. Where no reason is
    recorded, the line of code is looked at."""
    text = (
        graph_break.code
        if graph_break.reason == NO_REASON
        else f"{graph_break.reason} {graph_break.explanation}"
    )
    own = next((words for pattern, words in FIXES if pattern.search(text)), "")
    hint = f"torch says: {graph_break.hints[0]}" if graph_break.hints else ""
    return (
        "; ".join(part for part in (own, hint) if part)
        or "remove it, or find all breaks with torch.compile(fullgraph=True)"
    )
