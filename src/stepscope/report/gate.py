"""What a gate found, in words."""

from __future__ import annotations

from stepscope.core.gate import Gate, Result
from stepscope.report.document.blocks import Block, Cell, Column, Prose, Section, Table, more
from stepscope.report.words import clean

MAX_CHECKS = 24
STATUS_WORDS = {"passed": "passed", "failed": "failed", "undecided": "not decided"}


def gate_section(gate: Gate) -> Section:
    """Every check; what stopped the gate first: a long budget must not push it out of the table."""
    ranked = sorted(gate.results, key=lambda result: result not in gate.stopped_by)
    rows = tuple(
        (
            result.check,
            Cell(_status(result), "strong" if result in gate.stopped_by else ""),
            result.reason,
        )
        for result in ranked[:MAX_CHECKS]
    )
    columns = (Column(title="check", fit="shorten"), Column(), Column(title="why", fit="wrap"))
    rest = "" if len(gate.stopped_by) > MAX_CHECKS else ", none of which failed"
    blocks: list[Block] = [Table(columns=columns, rows=rows)]
    blocks += more(len(ranked) - MAX_CHECKS, "check", rest)
    if gate.baseline is not None:
        blocks.append(Prose(f"Baseline: {gate.baseline}"))
    title = f"Gate {'passed' if gate.is_passed else 'failed'}"
    return Section(title=title, blocks=tuple(blocks))


def gate_lines(gate: Gate) -> list[str]:
    """What to tell on stderr: what stopped the gate and why, or that nothing did."""
    num = len(gate.results)
    checks = f"{num} check{'' if num == 1 else 's'}"
    let_by = [
        result for result in gate.results if result.status == "undecided" and gate.missing == "pass"
    ]
    passed = [f"not decided, let pass: {_line(result)}" for result in let_by]
    if gate.is_passed:
        return [f"the gate passed: {checks}, none failed", *passed]
    stopped = gate.stopped_by
    return [
        f"the gate failed: {len(stopped)} of {checks}",
        *(f"{_status(r)}: {_line(r)}" for r in stopped),
        *passed,
    ]


def _status(result: Result) -> str:
    return STATUS_WORDS[result.status]


def _line(result: Result) -> str:
    return clean(f"{result.check} ({result.source}): {result.reason}")
