"""Steps one by one, modules as a tree, allocations by operator: rows of the HTML report."""

from __future__ import annotations

from typing import Any

from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.views import KernelView, OperatorView, ProfilerViews
from stepscope.report.diagnosis.step import part_words

MAX_STEPS = 50
WIDTH = 1000.0
"""Of a step's bar, in units of the drawing."""


def views_page(rank: RankFacts, views: ProfilerViews | None) -> dict[str, Any]:
    """What the template shows; empty lists where nothing was recorded."""
    num = views.num_steps if views is not None else 0
    return {
        "steps": _steps(rank),
        "modules": [
            {
                "name": module.name,
                "depth": module.depth,
                "calls": module.count / num,
                "host": module.host_ns / num / 1e6,
                "device": module.device_ns / num / 1e6,
            }
            for module in (views.modules if views is not None and num else None) or ()
        ],
        "memory": [
            {
                "name": row.op or "no operator",
                "count": row.count / num,
                "allocated": row.allocated_bytes / num / 1e6,
                "net": row.net_bytes / num / 1e6,
            }
            for row in (views.memory if views is not None and num else None) or ()
        ],
        "memory_device": None if views is None else views.memory_device,
    }


def _steps(rank: RankFacts) -> dict[str, Any] | None:
    """The recorded steps, each by its parts; nothing where there is but one."""
    partition = rank.partition
    if partition is None or len(partition.totals) < 2:
        return None
    num = min(len(partition.totals), MAX_STEPS)
    longest = max(partition.totals[:num])
    shown = [part for part in PARTS if any(partition.parts[part][:num])]
    rows = []
    for step in range(num):
        at, parts = 0.0, []
        for part in shown:
            ns = partition.parts[part][step]
            width = ns / longest * WIDTH if longest else 0.0
            parts.append(
                {"part": part, "at": round(at, 2), "width": round(width, 2), "ms": ns / 1e6}
            )
            at += width
        rows.append({"number": step + 1, "ms": partition.totals[step] / 1e6, "parts": parts})
    on_host = rank.steps.where != "device"
    words = [
        {"part": part, "word": part_words(part, is_split=partition.waits_split, on_host=on_host)}
        for part in shown
    ]
    return {"rows": rows, "parts": words, "num_left_out": len(partition.totals) - num}


def kernel_figures(views: ProfilerViews | None) -> dict[tuple[str, str | None], KernelView]:
    """By name and operator."""
    return {} if views is None else {(row.name, row.op): row for row in views.kernels}


def operator_figures(views: ProfilerViews | None) -> dict[str, OperatorView]:
    """By name."""
    return {} if views is None else {row.name: row for row in views.operators}
