"""Steps and ranks by their parts, modules as a tree, allocations: rows of the HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from stepscope.core.facts import PARTS, RankFacts
from stepscope.core.views import ProfilerViews
from stepscope.report.diagnosis.view import part_words

MAX_STEPS = 50
MAX_RANKS = 64
WIDTH = 1000.0
"""Width of a step's bar, in units of the drawing."""


def views_page(
    rank: RankFacts, views: ProfilerViews | None, ranks: Sequence[RankFacts] = ()
) -> dict[str, Any]:
    """What the template shows; empty lists where nothing was recorded."""
    return {
        "steps": _steps(rank),
        "ranks": _ranks(ranks),
        "recorded": views if views is not None and views.num_steps else None,
    }


def _steps(rank: RankFacts) -> dict[str, Any] | None:
    """The recorded steps, each by its parts; nothing where there is but one."""
    partition = rank.partition
    if partition is None or len(partition.totals) < 2:
        return None
    num = min(len(partition.totals), MAX_STEPS)
    rows: list[Row] = [
        (str(step + 1), {part: partition.parts[part][step] for part in PARTS})
        for step in range(num)
    ]
    words = _Words(is_split=partition.waits_split, on_host=rank.steps.where != "device")
    return _bars(rows, words, len(partition.totals) - num)


def _ranks(ranks: Sequence[RankFacts]) -> dict[str, Any] | None:
    """The median step of each rank by its parts; nothing where there is but one."""
    rows: list[Row] = [
        (str(rank.rank), parts) for rank in ranks if (parts := rank.typical_parts_ns) is not None
    ]
    if len(rows) < 2:
        return None
    words = _Words(
        is_split=all(rank.partition is None or rank.partition.waits_split for rank in ranks),
        on_host=all(rank.steps.where != "device" for rank in ranks),
    )
    return _bars(rows[:MAX_RANKS], words, len(rows) - MAX_RANKS)


Row = tuple[str, Mapping[str, float]]
"""What a bar is of, and the nanoseconds of its parts."""


class _Words(Struct, frozen=True, kw_only=True):
    """How the parts are called."""

    is_split: bool
    on_host: bool


def _bars(rows: Sequence[Row], words: _Words, num_left_out: int) -> dict[str, Any]:
    """All on one scale; parts that none of them has are left out."""
    longest = max(sum(parts.values()) for _, parts in rows)
    shown = [part for part in PARTS if any(parts.get(part) for _, parts in rows)]
    return {
        "rows": [
            {
                "number": number,
                "ms": sum(parts.values()) / 1e6,
                "parts": _placed(parts, shown, longest),
            }
            for number, parts in rows
        ],
        "parts": [
            {
                "part": part,
                "word": part_words(part, is_split=words.is_split, on_host=words.on_host),
            }
            for part in shown
        ],
        "num_left_out": max(0, num_left_out),
    }


def _placed(
    parts: Mapping[str, float], shown: Sequence[str], longest: float
) -> list[dict[str, Any]]:
    at, placed = 0.0, []
    for part in shown:
        ns = parts.get(part, 0)
        width = ns / longest * WIDTH if longest else 0.0
        placed.append({"part": part, "at": round(at, 2), "width": round(width, 2), "ms": ns / 1e6})
        at += width
    return placed
