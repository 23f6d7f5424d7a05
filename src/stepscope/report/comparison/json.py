"""The comparison as JSON: the document `stepscope.comparison/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from stepscope.core.contract.codec import encode
from stepscope.core.contract.comparison import (
    Account,
    Changed,
    Compared,
    ComparisonContract,
    Device,
    RankMemory,
    Row,
    Run,
    Speedup,
    Throughput,
)
from stepscope.core.experiments import comparison as core
from stepscope.core.gate import Gate
from stepscope.report.gate import gate_contract


def comparisons_json(comparisons: Sequence[core.Comparison], gate: Gate | None = None) -> str:
    """The document as indented text."""
    return encode(comparison_contract(comparisons, gate))


def comparison_contract(
    comparisons: Sequence[core.Comparison],
    gate: Gate | None = None,
) -> ComparisonContract:
    """The second run against the first; further runs, each against the first, are under
    `others`."""
    first, *others = map(_compared, comparisons)
    return ComparisonContract(
        **asdict(first),
        others=tuple(others),
        gate=UNSET if gate is None else gate_contract(gate),
    )


def _compared(comparison: core.Comparison) -> Compared:
    device = comparison.device
    return Compared(
        before=_run(comparison.before),
        after=_run(comparison.after),
        speedup=Speedup(**_speedup(comparison.speedup)),
        throughput=_throughput(comparison),
        same_work=not comparison.unequal,
        unequal=comparison.unequal,
        changed=() if device is None else tuple(map(_changed, device.changed)),
        device=None if device is None else _device(device),
        accounts={account.by: _account(account) for account in comparison.accounts},
        ranks=comparison.ranks,
        memory=tuple(_memory(comparison)),
        predicted=comparison.held,
        predicted_together=comparison.predicted_together,
        knobs=comparison.knobs,
        notes=comparison.notes,
    )


def _run(run: core.ComparedRun) -> Run:
    return Run(
        label=run.label,
        kind=run.kind,
        step_ms=None if run.step_ns is None else run.step_ns / 1e6,
        num_steps=run.num_steps,
        source=run.source,
        bound=run.bound,
        num_ranks=run.num_ranks,
        world_size=run.world_size,
        device_name=run.device_name,
        samples=run.samples,
        flops=run.flops,
        peak_bytes=run.peak_bytes,
    )


def _memory(comparison: core.Comparison) -> Iterator[RankMemory]:
    for rank, (before, after) in comparison.memory.items():
        yield RankMemory(rank=rank, before_bytes=before, after_bytes=after)


def _speedup(speedup: core.Speedup) -> dict[str, Any]:
    return {
        "value": speedup.value,
        "low": speedup.low,
        "high": speedup.high,
        "level": speedup.level,
        "smallest_shown": speedup.smallest,
        "verdict": speedup.verdict,
        "why": speedup.why or None,
    }


def _throughput(comparison: core.Comparison) -> Throughput | None:
    if comparison.throughput is None:
        return None
    return Throughput(unit=comparison.throughput_unit, **_speedup(comparison.throughput))


def _times(before_ns: int | None, after_ns: int | None) -> dict[str, Any]:
    change_ns = (after_ns or 0) - (before_ns or 0)
    return {"before_ns": before_ns, "after_ns": after_ns, "change_ns": change_ns}


def _row(row: core.Row) -> Row:
    return Row(name=row.name, **_times(row.before_ns, row.after_ns))


def _device(device: core.DeviceChange) -> Device:
    return Device(
        where=device.where,
        ranks=device.ranks,
        rest=_row(device.rest),
        overlap=_row(device.overlap),
        **_times(device.before_ns, device.after_ns),
    )


def _account(account: core.Account) -> Account:
    return Account(
        rows=tuple(map(_row, account.rows)),
        rest=_row(account.rest),
        num_left_out=account.num_left_out,
        **_times(account.before_ns, account.after_ns),
    )


def _changed(change: core.Changed) -> Changed:
    return Changed(
        name=change.name,
        phase=change.phase,
        module=change.module,
        how=change.how,
        paired_by=change.paired_by,
        before=change.before,
        after=change.after,
        **_times(change.before_ns, change.after_ns),
    )
