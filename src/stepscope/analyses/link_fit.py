"""Latency and bandwidth of a link, fitted to how long collectives of several sizes take.

T = steps * alpha + volume / beta, on relative error, so that small messages count. Steps and volumes are a ring's (Thakur,
Rabenseifner and Gropp, 2005, section 3); nccl-tests' doc/PERFORMANCE.md has the same volumes as bus factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SIZES = 3
LEAST_SPREAD = 2.0
"""Largest over smallest size: closer ones do not tell latency from bandwidth."""
LEAST_GOODNESS = 0.5
"""Below this a constant time fits nearly as well, and the line says nothing."""
RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "broadcast": 1, "reduce": 1}
"""Times n - 1; the rest are one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
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
    """The line through (size, time); None with fewer than three sizes, sizes too close, or when no line makes sense of them."""
    if n < 2 or len(set(sizes)) < LEAST_SIZES or min(sizes) <= 0 or max(sizes) < LEAST_SPREAD * min(sizes) or min(times_ns) <= 0:
        return None
    time = np.array(times_ns, np.float64)
    steps = ring_steps(op, n) / time
    volume = np.array(sizes, np.float64) * bus_factor(op, n) / time
    one = np.ones(len(time))
    (alpha, slope), *_ = np.linalg.lstsq(np.stack((steps, volume), axis=1), one, rcond=None)
    if alpha < 0:
        alpha, slope = 0.0, float(volume @ one / (volume @ volume))
    if slope <= 0:
        return None
    misfit = np.abs(alpha * steps + slope * volume - 1)
    flat = float((1 / time).sum() / (1 / time**2).sum())
    constant = float(((flat / time - 1) ** 2).sum())
    goodness = 1 - float((misfit**2).sum()) / constant if constant else 0.0
    if goodness < LEAST_GOODNESS:
        return None
    at = int(misfit.argmax())
    return Line(alpha_ns=float(alpha), beta=float(1e9 / slope), goodness=goodness, worst=float(misfit[at]), worst_bytes=sizes[at])
