"""Whether memory rises steadily: the trend of medians over stretches of a run, with bounded memory.

A leak adds a little all the time; a cache that fills, or a step that needs more than the others,
rises and stays. The samples are put into bins; when there are too many bins, neighbours are joined
and bins are twice as long from then on, so that an hour and a week are looked at with the same few
numbers. The trend is judged by Kendall's S over the bins (Mann 1945).
"""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from stepscope.analyses.run.host_growth import kendall_z

NUM_BINS = 24
MIN_BINS = 12
"""A twelve-bin series that only rises has z = 4.5."""
Z = 4.0
MIN_SHARE = 0.05
"""Share of what there was at first; less is nobody's trouble."""
MIN_BYTES = 64 << 20
LASTING = 0.5
"""The last third must rise at this share of the mean rate: what levels off is no leak."""


class Trend(Struct, frozen=True, kw_only=True):
    """Rise from one size to another that still goes on."""

    first_bytes: float
    last_bytes: float
    num_samples: int
    """Samples between the two."""


class TrendDetector:
    """Takes one size a sample; reports steady growth once,
    and again only when it has grown as much once more."""

    def __init__(self, num_a_bin: int = 10) -> None:
        self._num_a_bin = num_a_bin
        self._bins: list[float] = []
        self._current: list[float] = []
        self._reported_bytes: float | None = None

    def add(self, size_bytes: float) -> Trend | None:
        self._current.append(size_bytes)
        if len(self._current) < self._num_a_bin:
            return None
        self._bins.append(median(self._current))
        self._current = []
        trend = self._judge()
        if len(self._bins) >= NUM_BINS:
            self._bins = [
                (a + b) / 2 for a, b in zip(self._bins[::2], self._bins[1::2], strict=True)
            ]
            self._num_a_bin *= 2
        return trend

    def _judge(self) -> Trend | None:
        bins = self._bins
        if len(bins) < MIN_BINS or kendall_z(bins) < Z:
            return None
        first, last = bins[0], bins[-1]
        grown = last - first
        third = len(bins) // 3
        late = last - bins[-1 - third]
        if grown < max(MIN_BYTES, MIN_SHARE * first) or late < LASTING * grown * third / (
            len(bins) - 1
        ):
            return None
        if self._reported_bytes is not None and last < self._reported_bytes:
            return None
        self._reported_bytes = last + grown
        return Trend(
            first_bytes=first, last_bytes=last, num_samples=(len(bins) - 1) * self._num_a_bin
        )
