"""Execution traces in words: what the report shows of them."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.recording import Recording, Table
from stepscope.core.training_log import ExecutionGraph, RecordedOperator

MAX_ROWS = 64
MAX_FILES = 8


def recording_of(graphs: Sequence[ExecutionGraph], notes: Sequence[str]) -> Recording:
    """The first one whole; of others, how much is in them."""
    first = graphs[0]
    others = tuple((f"also {graph.path}", f"{graph.num_operators} operators") for graph in graphs[1 : MAX_FILES + 1])
    lines = (
        ("schema", first.schema),
        ("operators", f"{first.num_operators} calls of {len(first.operators)} different ones, in {first.num_nodes} nodes"),
        ("tensors", f"{first.num_tensors}, over {_size(first.storage_bytes)} of memory"),
        (
            "FLOPs",
            f"{_count(first.flops)} of matrix products, attention and convolutions" if first.flops else "none that is known",
        ),
        ("collectives", f"{sum(one.num for one in first.collectives)} calls" if first.collectives else "none"),
        *others,
    )
    heavy = sorted((one for one in first.operators if one.flops), key=lambda one: -(one.flops or 0.0))
    large = sorted(first.operators, key=lambda one: (-one.tensor_bytes, one.name))
    tables = [
        _table("operators by calls", first.operators),
        _table("operators by the bytes of their tensors (views have tensors too, and move nothing)", large),
    ]
    tables += [_table("operators by FLOPs", heavy)] if heavy else []
    tables += [_table("collectives", first.collectives)] if first.collectives else []
    said = ("an execution trace has no times: it tells what ran, not how long", *notes)
    return Recording(format="chakra", paths=tuple(graph.path for graph in graphs), lines=lines, tables=tuple(tables), notes=said)


def _table(title: str, operators: Sequence[RecordedOperator]) -> Table:
    rows = tuple(
        (one.name, f"{one.num}", _size(one.tensor_bytes), "" if one.flops is None else _count(one.flops))
        for one in operators[:MAX_ROWS]
    )
    return Table(title=title, columns=("operator", "calls", "tensors", "FLOPs"), rows=rows, right=(1, 2, 3))


def _size(size: float) -> str:
    return f"{size:.0f} B" if size < 1e3 else f"{_count(size)}B"


def _count(value: float) -> str:
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} "
