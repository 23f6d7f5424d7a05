"""Kernels and operators as rows of the HTML report's tables."""

from __future__ import annotations

from typing import Any

from stepscope.core.facts import COLLECTIVE, RangeRow, RankFacts
from stepscope.core.views import KernelView, OperatorView, ProfilerViews
from stepscope.report.diagnosis.kernels import compute_ns
from stepscope.report.words import kernel_name

MAX_KERNELS = 500
MAX_OPS = 300
MAX_NAME = 400


def kernel_rows(
    rank: RankFacts, views: ProfilerViews | None = None
) -> tuple[list[dict[str, Any]], int]:
    """The kernels that take most, a step, and how many more there are."""
    num_steps = len(rank.steps.windows)
    if not num_steps:
        return [], 0
    compute = compute_ns(rank)
    kernels = () if views is None else views.kernels
    figures = {(view.name, view.op): view for view in kernels}
    ordered = sorted(rank.kernels, key=lambda row: -row.total_ns)
    rows = [
        {
            "name": kernel_name(row.name)[:MAX_NAME],
            "full": row.name[:MAX_NAME],
            "kind": row.category,
            "op": row.op,
            "calls": row.count / num_steps,
            "ms": row.total_ns / num_steps / 1e6,
            "share": row.total_ns / compute if compute and row.category != COLLECTIVE else None,
            "roof": row.roof_share,
            "mean_us": row.total_ns / row.count / 1e3 if row.count else None,
            **_call_figures(figures.get((row.name, row.op))),
        }
        for row in ordered[:MAX_KERNELS]
    ]
    return rows, max(0, len(ordered) - MAX_KERNELS)


def _call_figures(view: KernelView | None) -> dict[str, float | None]:
    """Figures of its single calls; nothing where they are not at hand."""
    return {
        "min_us": None if view is None else view.min_ns / 1e3,
        "max_us": None if view is None else view.max_ns / 1e3,
        "occupancy": None if view is None else view.occupancy_pct,
        "blocks_per_sm": None if view is None else view.blocks_per_sm,
    }


def op_rows(rank: RankFacts, views: ProfilerViews | None = None) -> list[dict[str, Any]]:
    """Operators, modules and marks by the device time launched inside them; without a device, by
    their own."""
    num_steps = len(rank.steps.windows)
    if not num_steps:
        return []
    operators = () if views is None else views.operators
    figures = {view.name: view for view in operators}
    kinds = (("operator", rank.ops), ("module", rank.modules or ()), ("mark", rank.marks))
    rows: list[dict[str, Any]] = [
        {
            "name": row.name[:MAX_NAME],
            "kind": kind,
            "calls": row.count / num_steps,
            "ms": None if (ns := _spent_ns(rank, row)) is None else ns / num_steps / 1e6,
            **_host_figures(figures.get(row.name) if kind == "operator" else None, num_steps),
        }
        for kind, ranges in kinds
        for row in ranges
    ]
    return sorted(rows, key=lambda row: -(row["ms"] or 0))[:MAX_OPS]


def _spent_ns(rank: RankFacts, row: RangeRow) -> int | None:
    return row.device_ns if rank.steps.where == "device" else row.host_ns


def _host_figures(view: OperatorView | None, num_steps: int) -> dict[str, float | None]:
    """Figures of an operator's own calls, a step; its backward is an operator by itself here."""
    return {
        "host_calls": None if view is None else view.count / num_steps,
        "host_ms": None if view is None else view.host_ns / num_steps / 1e6,
        "own_host_ms": None if view is None else view.own_host_ns / num_steps / 1e6,
        "own_device_ms": None if view is None else view.own_device_ns / num_steps / 1e6,
    }
