"""The comparison as JSON: the contract `stepscope.comparison/1`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stepscope.core.comparison import Account, Changed, ComparedRun, Comparison, Row, Speedup, Work
from stepscope.protocol.json_text import json_text

SCHEMA = "stepscope.comparison/1"


def comparisons_json(comparisons: Sequence[Comparison], gate: Mapping[str, Any] | None = None) -> str:
    """The contract as indented text."""
    return json_text(contract(comparisons) | ({} if gate is None else {"gate": dict(gate)}), indent=2)


def contract(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The second run against the first; further runs, each against the first, are under `others`."""
    first, *others = comparisons
    return {"schema": SCHEMA, **_one(first), "others": [_one(other) for other in others]}


def _one(comparison: Comparison) -> dict[str, Any]:
    device, ranks = comparison.device, comparison.ranks
    return {
        "before": _run(comparison.before),
        "after": _run(comparison.after),
        "speedup": _speedup(comparison.speedup),
        "throughput": None
        if comparison.throughput is None
        else {"unit": comparison.throughput_unit, **_speedup(comparison.throughput)},
        "same_work": not comparison.unequal,
        "unequal": list(comparison.unequal),
        "changed": [] if device is None else [_changed(one) for one in device.changed],
        "device": None
        if device is None
        else {
            "where": device.where,
            "ranks": list(device.ranks),
            **_ends(device.before_ns, device.after_ns),
            "rest": _row(device.rest),
            "overlap": _row(device.overlap),
        },
        "accounts": {account.by: _account(account) for account in comparison.accounts},
        "ranks": None if ranks is None else asdict(ranks),
        "memory": [{"rank": rank, "before_bytes": a, "after_bytes": b} for rank, (a, b) in comparison.memory.items()],
        "predicted": [asdict(held) for held in comparison.held],
        "predicted_together": comparison.predicted_together,
        "knobs": [asdict(knob) for knob in comparison.knobs],
        "notes": list(comparison.notes),
    }


def _run(run: ComparedRun) -> dict[str, Any]:
    told = asdict(run)
    step_ns = told.pop("step_ns")
    del told["is_mean"]
    return {"label": told.pop("label"), "kind": told.pop("kind"), "step_ms": None if step_ns is None else step_ns / 1e6, **told}


def _speedup(speedup: Speedup) -> dict[str, Any]:
    return {
        "value": speedup.value,
        "low": speedup.low,
        "high": speedup.high,
        "level": speedup.level,
        "smallest_shown": speedup.smallest,
        "verdict": speedup.verdict,
        "why": speedup.why or None,
    }


def _ends(before_ns: int | None, after_ns: int | None) -> dict[str, Any]:
    change = (after_ns or 0) - (before_ns or 0)
    return {"before_ns": before_ns, "after_ns": after_ns, "change_ns": change}


def _row(row: Row) -> dict[str, Any]:
    return {"name": row.name, **_ends(row.before_ns, row.after_ns)}


def _account(account: Account) -> dict[str, Any]:
    return {
        **_ends(account.before_ns, account.after_ns),
        "rows": [_row(row) for row in account.rows],
        "rest": _row(account.rest),
        "num_left_out": account.num_left_out,
    }


def _changed(one: Changed) -> dict[str, Any]:
    return {
        "name": one.name,
        "phase": one.phase,
        "module": one.module,
        "how": list(one.how),
        "paired_by": one.paired_by,
        **_ends(one.before_ns, one.after_ns),
        "before": _work(one.before),
        "after": _work(one.after),
    }


def _work(work: Work | None) -> dict[str, Any] | None:
    return None if work is None else asdict(work)
