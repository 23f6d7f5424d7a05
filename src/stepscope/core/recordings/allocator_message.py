"""What the message of torch's allocator says when memory ran out: in a job's output, and in what a
run recorded of its own failure."""

from __future__ import annotations

import re

SIZE = r"(\d{1,12}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB)"
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
FAILED_MARK = "out of memory. Tried to allocate "
FAILED = re.compile(rf"out of memory\. Tried to allocate {SIZE}")
DEVICE = re.compile(r"GPU (\d{1,6})(?: has a total|;)")
FIGURES = {
    "total_bytes": re.compile(rf"total capaci?ty of {SIZE}|{SIZE} total capacity"),
    "free_bytes": re.compile(rf"of which {SIZE} is free|{SIZE} free;"),
    "own_bytes": re.compile(rf"this process has {SIZE} memory in use"),
    "allocated_bytes": re.compile(
        rf"allocated memory {SIZE} is allocated by PyTorch|{SIZE} already allocated"
    ),
    "idle_bytes": re.compile(rf"{SIZE} is reserved by PyTorch but unallocated"),
    "allowed_bytes": re.compile(rf"{SIZE} allowed;"),
}
"""Patterns of the figures as they are written since 2.1; and before: `(GPU 0; 6.00 GiB total
capacity; 781.59 MiB already allocated; ...)`."""
RESERVED = re.compile(rf"{SIZE} reserved in total by PyTorch")


def size_of(match: re.Match[str], first: int = 1) -> int:
    """Bytes, of a number and its unit."""
    return round(float(match[first]) * UNITS[match[first + 1]])


def figure(pattern: re.Pattern[str], text: str) -> int | None:
    """The bytes that a pattern finds, in whichever of its wordings."""
    match = pattern.search(text)
    if match is None:
        return None
    first = next(
        group for group in range(1, len(match.groups()) + 1, 2) if match[group] is not None
    )
    return size_of(match, first)


def failure_figures(text: str, failed: re.Match[str]) -> dict[str, int | None]:
    """The fields of an OutOfMemory that its message gives, from where FAILED matched."""
    said = text[failed.start() :]
    figures = {name: figure(pattern, said) for name, pattern in FIGURES.items()}
    reserved, allocated = figure(RESERVED, said), figures["allocated_bytes"]
    if figures["idle_bytes"] is None and reserved is not None and allocated is not None:
        figures["idle_bytes"] = max(reserved - allocated, 0)
    device = DEVICE.search(said)
    return {
        **figures,
        "tried_bytes": size_of(failed),
        "device": int(device[1]) if device else None,
    }
