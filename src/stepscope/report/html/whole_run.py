"""The whole run on the page: a strip over its time, and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.core.run import RUN_PARTS, WholeRun
from stepscope.report.diagnosis.whole_run import (
    PART_WORDS,
    part_note,
    seconds,
    shown_parts,
    whole_run_lines,
    whole_run_words,
)

HEIGHT = 100.0
COLOURS = {
    "steady": "compute", "waits": "comms_wait", "start_up": "idle_sync",
    "first_batch": "idle_input", "epoch_start": "idle_input", "compile": "idle_compile",
    "warm_up": "idle_sync", "saves": "idle_io", "evaluation": "transfer", "gc": "idle_allocator",
    "logging": "idle_io", "stalls": "idle_launch", "idle": "idle_other",
}  # fmt: skip
"""Colours as the parts of a step have them; the rest is what other time of a step is."""


def whole_run_page(run: WholeRun) -> dict[str, Any]:
    return {
        "words": whole_run_words(run),
        "num": len(run.over_time),
        "height": HEIGHT,
        "end": seconds(run.seconds),
        "bars": list(_bars(run.over_time)),
        "parts": [
            {
                "part": colour(part.what),
                "word": PART_WORDS.get(part.what, part.what),
                "seconds": f"{part.seconds:,.2f}",
                "share": f"{part.share:.1%}",
                "note": part_note(run, part),
            }
            for part in shown_parts(run)
        ],
        "lines": whole_run_lines(run),
    }


def colour(what: str) -> str:
    return COLOURS.get(what, "idle_other")


def _bars(stretches: tuple[Mapping[str, float], ...]) -> Iterator[dict[str, Any]]:
    """Each stretch as a column, its parts one on the other, steady steps at the bottom."""
    order = sorted(RUN_PARTS, key=lambda what: what != "steady")
    for number, stretch in enumerate(stretches):
        total, y = sum(stretch.values()) or 1.0, HEIGHT
        for what in order:
            height = HEIGHT * stretch.get(what, 0) / total
            y -= height
            if height:
                yield {
                    "x": number,
                    "y": round(max(y, 0.0), 2),
                    "height": round(height, 2),
                    "part": colour(what),
                    "word": PART_WORDS[what],
                }
