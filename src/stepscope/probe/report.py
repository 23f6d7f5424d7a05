"""What was timed, and what the findings give by it."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.hardware import Dims, OperatorCall, ProbeRow
from stepscope.probe.probing import Judged
from stepscope.probe.process import Probed
from stepscope.report.document.blocks import (
    Block,
    Column,
    Headline,
    Section,
    Table,
    as_document,
    notes,
    numbers,
)

MAX_ROWS = 12
BASES = ("asis", "fp32", "tf32", "bf16", "fp16")


@as_document
def probe_document(judged: Judged, probed: Probed | None, after: Diagnosis) -> Iterator[Block]:
    """The heaviest operators, then each finding before and after."""
    rows = () if probed is None else probed.rows
    timed = sum(row.time is not None for row in rows)
    text = f"{timed} cases timed in {probed.wall_s:.0f} s" if probed else "nothing new to time"
    yield Headline(command="stepscope probe", text=f"{judged.device}: {text}.")
    by_call: dict[OperatorCall, list[ProbeRow]] = {}
    for row in rows:
        if row.time is not None:
            by_call.setdefault(row.call, []).append(row)
    lines = [_line(call, ways) for call, ways in list(by_call.items())[:MAX_ROWS]]
    if lines:
        columns = (
            Column(title="operator, as it ran"),
            Column(title="sizes", fit="shorten"),
            *numbers("us"),
            Column(title="changed, us", fit="wrap"),
        )
        yield Section(title="Timed here", blocks=(Table(columns=columns, rows=tuple(lines)),))
    yield from _gains(judged.diagnosis, after)
    yield from notes(tuple(_left_out(judged, probed)), aside="")


def _line(call: OperatorCall, rows: list[ProbeRow]) -> tuple[str, ...]:
    """Line of a call as it ran, and each other way with how many times as fast it is."""
    rows = sorted(rows, key=lambda row: (len(row.way), BASES.index(row.way.split("+")[0])))
    now, *others = rows
    assert now.time is not None
    changed = [
        f"{row.way} {row.time.ns / 1e3:,.1f} ({now.time.ns / row.time.ns:.2f}x)"
        for row in others
        if row.time is not None
    ]
    sizes = " ".join(_size(dims) for dims in call.dims if dims)
    name = call.op.removeprefix("aten::")
    return (f"{name} {now.way}", sizes, f"{now.time.ns / 1e3:,.1f}", ", ".join(changed))


def _size(dims: Dims) -> str:
    """Size of a tensor, or how many a list has."""
    if all(isinstance(size, int) for size in dims):
        return "x".join(map(str, dims))
    return f"{len(dims)} tensors"


def _gains(before: Diagnosis, after: Diagnosis) -> Iterator[Block]:
    modelled = {finding.code: finding for finding in before.findings}
    rows = [
        (
            finding.code,
            f"{modelled[finding.code].predicted_speedup:.2f}x" if finding.code in modelled else "-",
            f"{finding.predicted_speedup:.2f}x",
            f"{finding.predicted_low:.2f} to {finding.predicted_high:.2f}",
        )
        for finding in after.findings
    ]
    if rows:
        columns = (Column(title="finding"), *numbers("modelled", "measured", "range"))
        yield Section(title="What fixes give", blocks=(Table(columns=columns, rows=tuple(rows)),))


def _left_out(judged: Judged, probed: Probed | None) -> Iterator[str]:
    if judged.num_known:
        yield f"{judged.num_known} cases were timed before and are kept."
    if probed is None:
        return
    if probed.left:
        yield f"The time was too short for {probed.left} cases: give a longer --budget."
    failed = [row.problem for row in probed.rows if row.problem]
    if failed:
        yield f"{len(failed)} cases could not be run; the first says: {failed[0]}"
