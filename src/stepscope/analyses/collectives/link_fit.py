"""Latency and bandwidth of a link, fitted to how long collectives of several sizes take.

T = steps * alpha + volume / beta, on relative error, so that small messages count. Steps and
volumes are a ring's (Thakur, Rabenseifner and Gropp, 2005, section 3); nccl-tests'
doc/PERFORMANCE.md has the same volumes as bus factors. `fit` gives the link's own constants, and
says nothing where no line holds; `cost_of` what a message of one job costs, and always has an
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from stepscope.core.trace import Float64

MIN_SIZES = 3
MIN_SPREAD = 2.0
"""Largest over smallest size: closer ones do not separate latency from bandwidth."""
MIN_GOODNESS = 0.5
"""Goodness below which a constant time fits nearly as well, and the line says nothing."""
RING_STEPS = {
    "all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "broadcast": 1,
    "reduce": 1,
}  # fmt: skip
"""Times n - 1; the rest are one step."""

SLOWEST_LINK_BYTES_PER_NS = 1.25
"""10 Gb/s Ethernet, the slowest network that ranks are put on:
assumed of a link whose messages are too small to measure it."""


class Line(Struct, frozen=True, kw_only=True):
    """A fit that holds."""

    alpha_ns: float
    beta: float
    goodness: float
    worst: float
    worst_bytes: int


def bus_factor(op: str, n: int) -> float:
    """Bytes over the bus per byte of message among n ranks."""
    if op == "all_reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def ring_steps(op: str, n: int) -> int:
    """Messages one after the other."""
    return RING_STEPS[op] * (n - 1) if op in RING_STEPS else 1


def fit(op: str, n: int, sizes: Sequence[int], times_ns: Sequence[float]) -> Line | None:
    """The line through (size, time);
    None with fewer than three sizes, sizes too close, or when no line makes sense of them."""
    if (
        n < 2
        or len(set(sizes)) < MIN_SIZES
        or min(sizes) <= 0
        or max(sizes) < MIN_SPREAD * min(sizes)
        or min(times_ns) <= 0
    ):
        return None
    time = np.array(times_ns, np.float64)
    steps = np.full(len(time), float(ring_steps(op, n)))
    volume = np.array(sizes, np.float64) * bus_factor(op, n)
    alpha, slope = _line(steps, volume, time)
    if alpha < 0:
        share = volume / time
        alpha, slope = 0.0, float(share.sum() / (share @ share))
    if slope <= 0:
        return None
    misfit = np.abs((alpha * steps + slope * volume) / time - 1)
    flat = float((1 / time).sum() / (1 / time**2).sum())
    constant = float(((flat / time - 1) ** 2).sum())
    goodness = 1 - float((misfit**2).sum()) / constant if constant else 0.0
    if goodness < MIN_GOODNESS:
        return None
    worst = int(misfit.argmax())
    return Line(
        alpha_ns=alpha,
        beta=1e9 / slope,
        goodness=goodness,
        worst=float(misfit[worst]),
        worst_bytes=sizes[worst],
    )


def _line(steps: Float64, volume: Float64, took_ns: Float64) -> tuple[float, float]:
    """Alpha and 1 / beta of the least relative error."""
    rows = np.stack((steps / took_ns, volume / took_ns), axis=1)
    (alpha, slope), *_ = np.linalg.lstsq(rows, np.ones(len(took_ns)), rcond=None)
    return float(alpha), float(slope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """T = alpha + bytes / beta, per message whatever its steps."""

    alpha_ns: float
    beta_bytes_per_ns: float
    measured: bool
    """Large enough messages were seen to measure beta; else it is the least that it can be."""

    def of(self, size_bytes: float) -> float:
        return self.alpha_ns + size_bytes / self.beta_bytes_per_ns


def cost_of(size_bytes: Float64, took_ns: Float64) -> Cost | None:
    """The line through the times of messages of one kind.

    Where even the largest message spends less time on its bytes than on its start, the slope is
    noise. Then the link is taken to be no faster than a message has shown it to be, nor slower than
    SLOWEST_LINK_BYTES_PER_NS.
    """
    good = (size_bytes > 0) & (took_ns > 0)
    size, took = size_bytes[good], took_ns[good]
    if len(size) == 0:
        return None
    if len(np.unique(size)) > 1:
        alpha, slope = _line(np.ones(len(size)), size, took)
        if alpha >= 0 and slope * float(size.max()) > alpha:
            return Cost(alpha_ns=alpha, beta_bytes_per_ns=1.0 / slope, measured=True)
    return least_cost_of(size, took)


def least_cost_of(size: Float64, took: Float64) -> Cost:
    """The least that bytes can have cost: at the best rate that a message has shown."""
    beta = max(SLOWEST_LINK_BYTES_PER_NS, float((size / took).max()))
    return Cost(
        alpha_ns=max(float(np.median(took - size / beta)), 0.0),
        beta_bytes_per_ns=beta,
        measured=False,
    )
