"""The picture of where the peak goes: places of its bars, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msgspec import UnsetType

from stepscope.core.diagnosis import DiagnosisDocument, Rank
from stepscope.core.peak import ACHIEVED, PeakPart, PeakWaterfall
from stepscope.report.diagnosis.peak import TITLE, peak_part_words, reference_words

WIDTH, LEFT, RIGHT = 960, 316, 884
TOP, ROW, BAR = 74, 27, 19
MIN_SHARE = 0.0005
"""Share of the whole from which a part has a bar; the table has them all."""
NOT_TOLD = ("below_peak", "unknown_work", "unexplained")
MAX_NAMED = 3


def peak_picture(contract: DiagnosisDocument) -> dict[str, Any] | None:
    """None where no waterfall was measured."""
    waterfall = contract.peak_waterfall
    if isinstance(waterfall, UnsetType) or not waterfall.total_ns:
        return None
    bars = _bars(waterfall)
    achieved = waterfall.achieved
    words = "how much was achieved is not known"
    if achieved is not None:
        words = f"{'at least ' if waterfall.is_least else ''}{achieved * 100:.1f} % achieved"
    return {
        "title": f"{TITLE}: {words}",
        "reference": reference_words(waterfall),
        "source": waterfall.source,
        "width": WIDTH,
        "height": TOP + ROW * len(bars) + 8,
        "bars": bars,
        "lines": _lines(bars),
        "rows": [
            {"word": peak_part_words(part.what, waterfall), "share": f"{part.share:.2%}"}
            for part in waterfall.parts
        ],
        "ranks": _ranks(contract.ranks),
    }


def _bars(waterfall: PeakWaterfall) -> list[dict[str, Any]]:
    """Bars from the whole down to what was achieved, each below the end of the one before."""
    bars = [_bar(0, "the peak", 0.0, 1.0, "whole")]
    left = waterfall.total_ns
    for part in waterfall.parts:
        if part.what == ACHIEVED:
            continue
        before, left = left, left - part.ns
        if part.share < MIN_SHARE:
            continue
        words = peak_part_words(part.what, waterfall)
        ends = (left / waterfall.total_ns, before / waterfall.total_ns)
        bars.append(_bar(len(bars), words, *ends, _colour(part)))
    if waterfall.achieved is not None:
        words = peak_part_words(ACHIEVED, waterfall)
        bars.append(_bar(len(bars), words, 0.0, waterfall.achieved, "part-compute"))
    return bars


def _bar(at: int, words: str, low: float, high: float, colour: str) -> dict[str, Any]:
    y = TOP + ROW * at
    return {
        "word": words,
        "value": f"{(high - low) * 100:.1f} %" if at else "100 %",
        "x": round(_x(low), 1),
        "end": round(_x(high), 1),
        "width": round(max(_x(high) - _x(low), 1.0), 1),
        "y": y,
        "height": BAR,
        "baseline": y + BAR - 5,
        "colour": colour,
    }


def _x(share: float) -> float:
    return LEFT + share * (RIGHT - LEFT)


def _colour(part: PeakPart) -> str:
    if part.what.startswith(("idle_", "comms_", "transfer")):
        return f"part-{part.what}"
    return "part-idle_other" if part.what in NOT_TOLD else "kernels"


def _lines(bars: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Lines from where a bar ends to the next one."""
    return [
        {"x": after["end"], "y1": before["y"] + BAR, "y2": after["y"]}
        for before, after in pairwise(bars)
    ]


def _ranks(ranks: Sequence[Rank]) -> list[dict[str, str]]:
    """A row each, where there are several."""
    made = [(rank.rank, rank.peak_waterfall) for rank in ranks if rank.peak_waterfall is not None]
    if len(made) < 2:
        return []
    return [
        {
            "rank": str(number),
            "achieved": "not known" if fall.achieved is None else f"{fall.achieved:.1%}",
            "most": "; ".join(
                f"{peak_part_words(part.what, fall)} {part.share:.1%}" for part in _largest(fall)
            ),
        }
        for number, fall in made
    ]


def _largest(waterfall: PeakWaterfall) -> list[PeakPart]:
    lost = [part for part in waterfall.parts if part.what != ACHIEVED and part.ns]
    return sorted(lost, key=lambda part: -part.ns)[:MAX_NAMED]
