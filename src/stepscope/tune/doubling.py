"""What doubling the batch does to a sample's time: on a device that is full it stays, on one that
is not it gets shorter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.experiments.trials import Value
from stepscope.tune.batch import ACCUMULATION, BATCH
from stepscope.tune.shapes.tuning import MEASURED, SAMPLE, Tried

FULL = 0.9
"""Share of a sample's time, left after doubling, from which the device is taken for full: trials of
one setting differ by some percent (a judgement)."""


def doubling_notes(trials: Sequence[Tried], per: str) -> Iterator[str]:
    """Notes by the largest two batches that differ by a factor of two, all else alike."""
    if per != SAMPLE:
        return
    times: dict[tuple[tuple[str, Value], ...], dict[int, float]] = {}
    for tried in trials:
        size = tried.settings.get(BATCH)
        if tried.state != MEASURED or tried.ms is None or not isinstance(size, int):
            continue
        rest = {k: v for k, v in tried.settings.items() if k not in (BATCH, ACCUMULATION)}
        by_size = times.setdefault(tuple(sorted(rest.items())), {})
        by_size[size] = min(tried.ms, by_size.get(size, tried.ms))
    pairs = [
        (size, by_size[2 * size] / by_size[size])
        for by_size in times.values()
        for size in by_size
        if 2 * size in by_size and not isinstance(size, bool)
    ]
    if not pairs:
        return
    size, left = max(pairs)
    words = f"{BATCH} from {size} to {2 * size} leaves {left:.0%} of a sample's time"
    if left >= FULL:
        yield f"{words}: the device is full, its compute or its memory is the limit"
    else:
        yield f"{words}: the device is not full yet, launches or waits are the limit"
