"""The comparison as JSON: the document `stepscope.comparison/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET
from msgspec.structs import asdict

from stepscope.core.contract.codec import S, encode, filled
from stepscope.core.contract.comparison import (
    Account,
    Compared,
    ComparisonContract,
    Device,
    RankMemory,
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
    return filled(
        Compared,
        comparison,
        before=_run(comparison.before),
        after=_run(comparison.after),
        speedup=_speedup(Speedup, comparison.speedup),
        throughput=_throughput(comparison),
        same_work=not comparison.unequal,
        changed=() if device is None else device.changed,
        device=None if device is None else filled(Device, device),
        accounts={account.by: filled(Account, account) for account in comparison.accounts},
        memory=tuple(_memory(comparison)),
        predicted=comparison.held,
    )


def _run(run: core.ComparedRun) -> Run:
    return filled(Run, run, step_ms=None if run.step_ns is None else run.step_ns / 1e6)


def _memory(comparison: core.Comparison) -> Iterator[RankMemory]:
    for rank, (before, after) in comparison.memory.items():
        yield RankMemory(rank=rank, before_bytes=before, after_bytes=after)


def _speedup(shape: type[S], speedup: core.Speedup, **given: str) -> S:
    return filled(shape, speedup, smallest_shown=speedup.smallest, why=speedup.why or None, **given)


def _throughput(comparison: core.Comparison) -> Throughput | None:
    if comparison.throughput is None:
        return None
    return _speedup(Throughput, comparison.throughput, unit=comparison.throughput_unit)
