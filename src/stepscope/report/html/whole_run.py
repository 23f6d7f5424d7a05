"""The whole run on the page: a strip over its time, and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.core.contract.codec import filled
from stepscope.core.contract.whole_run import WholeRun
from stepscope.core.run import RUN_PARTS, RunAdvice, RunPart, SlowSteps
from stepscope.core.run import WholeRun as Measured
from stepscope.report.diagnosis.whole_run import (
    PART_WORDS,
    advice_words,
    part_note,
    seconds,
    shown_parts,
    slow_words,
    whole_run_words,
)

HEIGHT = 100.0
COLOURS = {
    "steady": "compute",
    "waits": "comms_wait",
    "start_up": "idle_sync",
    "first_batch": "idle_input",
    "epoch_start": "idle_input",
    "compile": "idle_compile",
    "warm_up": "idle_sync",
    "saves": "idle_io",
    "evaluation": "transfer",
    "gc": "idle_allocator",
    "logging": "idle_io",
    "stalls": "idle_launch",
}
"""As the parts of a step have them; the rest is what other time of a step is."""


def whole_run_page(document: WholeRun) -> dict[str, Any]:
    run = measured(document)
    return {
        "words": whole_run_words(run),
        "num": len(run.over_time),
        "height": HEIGHT,
        "end": seconds(run.dur_ns),
        "bars": list(_bars(run.over_time)),
        "parts": [
            {
                "part": colour(part.what),
                "word": PART_WORDS.get(part.what, part.what),
                "seconds": f"{part.dur_ns / 1e9:,.2f}",
                "share": f"{part.dur_ns / run.dur_ns:.1%}",
                "note": part_note(run, part),
            }
            for part in shown_parts(run)
        ],
        "lines": [*map(slow_words, run.slow), *map(advice_words, run.advice)],
    }


def measured(document: WholeRun) -> Measured:
    """As it was measured, from what was kept of it."""
    return filled(
        Measured,
        document,
        dur_ns=max(_ns(document.seconds), 1),
        parts=tuple(
            filled(RunPart, part, dur_ns=_ns(part.seconds), of_it=_all_ns(part.of_it))
            for part in document.parts
        ),
        slow=tuple(
            filled(
                SlowSteps,
                stall,
                every=stall.every_steps,
                once_ns=_ns(stall.once_seconds),
                dur_ns=_ns(stall.seconds),
            )
            for stall in document.stalls
        ),
        advice=tuple(
            filled(RunAdvice, advice, dur_ns=_ns(advice.seconds)) for advice in document.advice
        ),
        over_time=tuple(map(_all_ns, document.over_time)),
        step_ns=_ns(document.step_ms / 1e3),
        num_clean=document.num_clean_steps,
    )


def colour(what: str) -> str:
    return COLOURS.get(what, "idle_other")


def _bars(stretches: tuple[Mapping[str, int], ...]) -> Iterator[dict[str, Any]]:
    """Each stretch as a column, its parts one on the other, steady steps at the bottom."""
    order = sorted(RUN_PARTS, key=lambda what: what != "steady")
    for number, stretch in enumerate(stretches):
        total, y = max(sum(stretch.values()), 1), HEIGHT
        for what in order:
            height = HEIGHT * stretch.get(what, 0) / total
            y -= height
            if height:
                yield {
                    "x": number,
                    "y": round(y, 2),
                    "height": round(height, 2),
                    "part": colour(what),
                    "word": PART_WORDS[what],
                }


def _ns(spent: float) -> int:
    return round(1e9 * spent)


def _all_ns(spent: Mapping[str, float]) -> dict[str, int]:
    return {name: _ns(each) for name, each in spent.items()}
