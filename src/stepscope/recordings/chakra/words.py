"""Execution traces in words: what the report shows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.api import Table, table
from stepscope.core.recordings.training_log import RecordedOperator, TrainingRecording

MAX_ROWS = 64
MAX_FILES = 8


def lines(recording: TrainingRecording) -> Iterator[tuple[str, str]]:
    """The first one whole; of others, how much is in them."""
    first, *others = recording.graphs
    flops = f"{_count(first.flops)} of matrix products, attention and convolutions"
    yield "schema", first.schema
    calls = f"{first.num_operators} calls of {len(first.operators)} different ones"
    yield "operators", f"{calls}, in {first.num_nodes} nodes"
    yield "tensors", f"{first.num_tensors}, over {_size(first.storage_bytes)} of memory"
    yield "FLOPs", flops if first.flops else "none that is known"
    num = sum(operator.num for operator in first.collectives)
    yield "collectives", f"{num} calls" if first.collectives else "none"
    for graph in others[:MAX_FILES]:
        yield f"also {graph.path}", f"{graph.num_operators} operators"


def tables(recording: TrainingRecording) -> Iterator[Table]:
    first = recording.graphs[0]
    heavy = sorted(
        (operator for operator in first.operators if operator.flops),
        key=lambda operator: -(operator.flops or 0.0),
    )
    large = sorted(first.operators, key=lambda operator: (-operator.tensor_bytes, operator.name))
    yield _table("operators by calls", first.operators)
    yield _table(
        "operators by the bytes of their tensors (views have tensors too, and move nothing)", large
    )
    if heavy:
        yield _table("operators by FLOPs", heavy)
    if first.collectives:
        yield _table("collectives", first.collectives)


def _table(title: str, operators: Sequence[RecordedOperator]) -> Table:
    rows = tuple(
        (
            operator.name,
            f"{operator.num}",
            _size(operator.tensor_bytes),
            "" if operator.flops is None else _count(operator.flops),
        )
        for operator in operators[:MAX_ROWS]
    )
    return table(title, "operator|>calls|>tensors|>FLOPs", rows)


def _size(size: float) -> str:
    return f"{size:.0f} B" if size < 1e3 else f"{_count(size)}B"


def _count(value: float) -> str:
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} "
