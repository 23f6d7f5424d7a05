"""Where the peak of device memory goes, as plain values of the HTML report."""

from __future__ import annotations

from typing import Any

from msgspec import UnsetType

from stepscope.core.diagnosis import DiagnosisDocument
from stepscope.core.memory import MemoryUse, OutOfMemoryReport
from stepscope.core.numbers import size_words
from stepscope.report.diagnosis.memory import (
    MIN_SHARE,
    TITLE,
    batch_words,
    fullest,
    kind_words,
    peak_words,
)
from stepscope.report.diagnosis.out_of_memory import MAX_REPORTS, by_detail

MAX_ROWS = 12
COLOURS = {
    "weights": "compute", "gradients": "comms_transfer", "optimizer": "comms_wait",
    "activations": "idle_input", "inputs": "transfer", "temporary": "idle_launch",
    "autograd": "idle_launch", "workspace": "idle_io", "cache": "idle_allocator",
}  # fmt: skip
"""Colours as the parts of a step have them; the rest is what other time of a step is."""


def memory_page(contract: DiagnosisDocument) -> dict[str, Any] | None:
    """None where no recording says what holds a peak."""
    if isinstance(contract.memory, UnsetType):
        return None
    use = fullest(contract.memory)
    if use is None:
        return None
    return {
        "title": TITLE,
        "words": peak_words(use),
        "batch": "" if use.largest_times is None else batch_words(use),
        "of": "" if len(contract.memory) == 1 else f"The fullest of {len(contract.memory)}.",
        "kinds": _kinds(use),
        "use": use,
        "most": MAX_ROWS,
    }


def out_of_memory_page(contract: DiagnosisDocument) -> list[OutOfMemoryReport]:
    """Each time that memory ran out; empty where it never did."""
    if isinstance(contract.out_of_memory, UnsetType):
        return []
    return by_detail(contract.out_of_memory)[:MAX_REPORTS]


def _kinds(use: MemoryUse) -> list[dict[str, Any]]:
    """What is held and what the allocator keeps, one after the other along a bar."""
    parts = [(kind, size) for kind, size in use.by_size if size >= MIN_SHARE * use.peak_bytes]
    if use.cache_bytes:
        parts.append(("cache", use.cache_bytes))
    whole = max(sum(size for _, size in parts), 1)
    rows, x = [], 0.0
    for kind, size in parts:
        width = 100 * size / whole
        is_cache = kind == "cache"
        rows.append(
            {
                "word": "the allocator's cache" if is_cache else kind_words(kind),
                "part": COLOURS.get(kind, "idle_other"),
                "size": size_words(size),
                "share": "" if is_cache else f"{size / max(use.peak_bytes, 1):.1%}",
                "x": round(x, 2),
                "width": round(width, 2),
            }
        )
        x += width
    return rows
